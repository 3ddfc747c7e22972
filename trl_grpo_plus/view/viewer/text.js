// -- a completion's text: folds, words that differ, marks

const OPEN = "<think>";
const CLOSE = "</think>";

// [from, to, closed] of each stretch of thinking. Some templates open the first one in the prompt.
function thoughts(text, from, to) {
  const found = [];
  let open = text.indexOf(OPEN, from);
  const close = text.indexOf(CLOSE, from);
  let at = from;
  if (close >= 0 && close < to && (open < 0 || close < open)) {
    at = close + CLOSE.length;
    found.push([from, at, true]);
  }
  while ((open = text.indexOf(OPEN, at)) >= 0 && open < to) {
    const end = text.indexOf(CLOSE, open);
    const closed = end >= 0 && end < to;
    at = closed ? end + CLOSE.length : to;
    found.push([open, at, closed]);
  }
  return found;
}

// [role or null, from, to, name of a tool] of each message of a completion.
function turns(attempt) {
  if (!attempt.roles.length) return [[null, 0, attempt.text.length]];
  let at = 0;
  return attempt.roles.map(([role, length, name]) => {
    const from = at;
    at += length + 1;
    return [role, from, from + length, name];
  });
}

// Fill `node` with text[from, to), in which `ranges` [from, to, class] are marked; they may overlap. Of "heat", which
// does not, the fourth is what marks it; of "step" [end, end, "step", node] the node that stands behind the text.
function paint(node, text, from, to, ranges) {
  const events = [];
  for (const [start, end, kind, value] of ranges) {
    if (kind === "step" && from < end && end <= to) events.push([end, kind, 0, value]);
    const a = Math.max(whole(text, start, -1), from);
    const b = Math.min(whole(text, end, 1), to);
    if (a < b) events.push([a, kind, 1, value], [b, kind, -1, null]);
  }
  events.sort((x, y) => x[0] - y[0]);
  const depth = {};
  let at = from;
  let heat = null;
  for (const [place, kind, change, value] of events) {
    paintRun(node, text.slice(at, place), depth, heat);
    if (kind === "heat") heat = value;
    if (kind === "step") node.append(value);
    else depth[kind] = (depth[kind] || 0) + change;
    at = place;
  }
  paintRun(node, text.slice(at, to), depth, heat);
}

function paintRun(node, run, depth, heat) {
  if (!run) return;
  const kinds = Object.keys(depth).filter((kind) => depth[kind] > 0);
  if (!kinds.length) return node.append(...seen(run));
  const mark = el("mark", { className: kinds.join(" ") }, ...seen(run));
  if (heat) heat(mark);
  node.append(mark);
}

function within(ranges, from, to, kind) {
  return ranges.filter(([start, end, of]) => of === kind && start < to && end > from).length;
}

// -- difference by words

const MOST_EDITS = 2000;

function tokens(text) {
  return [...text.matchAll(/[\p{L}\p{N}_]+|[^\s]/gu)].map((match) => [match[0], match.index]);
}

// Where `text` differs from `base`, as [from, to, "differs"], and whether the two could be aligned.
function difference(base, text) {
  const theirs = tokens(base);
  const ours = tokens(text);
  const numbers = new Map();
  const coded = (list) => list.map(([word]) => numbers.get(word) ?? numbers.set(word, numbers.size).get(word));
  const a = coded(theirs);
  const b = coded(ours);
  const shared = common(a, b);
  const known = shared ? null : new Set(a);
  const ranges = [];
  ours.forEach(([word, at], i) => {
    if (shared ? shared[i] : known.has(b[i])) return;
    const last = ranges[ranges.length - 1];
    const adjacent = last && i > 0 && last[1] === ours[i - 1][1] + ours[i - 1][0].length;
    if (adjacent) last[1] = at + word.length;
    else ranges.push([at, at + word.length, "differs"]);
  });
  return { ranges, aligned: Boolean(shared) };
}

// Which elements of b are on a longest common subsequence with a (Myers 1986); null after too many edits.
function common(a, b) {
  const shared = new Uint8Array(b.length);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) shared[start++] = 1;
  let endA = a.length;
  let endB = b.length;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) {
    endA--;
    shared[--endB] = 1;
  }
  const trace = furthest(a.slice(start, endA), b.slice(start, endB));
  return trace && walkBack(trace, endA - start, endB - start, start, shared);
}

// After each number of edits, how far each diagonal got: trace[d][k + d].
function furthest(a, b) {
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const trace = [];
  for (let d = 0; d <= most; d++) {
    const last = trace[d - 1];
    const now = new Int32Array(2 * d + 1);
    for (let k = -d; k <= d; k += 2) {
      let x = d === 0 ? 0 : step(last, d, k)[1];
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      now[k + d] = x;
      if (k === a.length - b.length && x >= a.length) return [...trace, now];
    }
    trace.push(now);
  }
  return null;
}

// The diagonal from which k is reached with the d-th edit, and the x at which it is entered.
function step(last, d, k) {
  const at = (diagonal) => (Math.abs(diagonal) < d ? last[diagonal + d - 1] : -1);
  const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
  return down ? [k + 1, at(k + 1)] : [k - 1, at(k - 1) + 1];
}

function walkBack(trace, endX, endY, start, shared) {
  let x = endX;
  let k = endX - endY;
  for (let d = trace.length - 1; d >= 0; d--) {
    const [from, entered] = d === 0 ? [0, 0] : step(trace[d - 1], d, k);
    for (; x > entered; x--) shared[start + x - 1 - k] = 1;
    if (d > 0) x = trace[d - 1][from + d - 1];
    k = from;
  }
  return shared;
}
