// Draws the text of an attempt: its turns, folds of thinking, tool calls and pictures. It marks invisible characters,
// words that differ, search hits, the answer and credit. Both pages use it. It needs base.js and the `state` of the
// page. Where markdown.js is loaded, that file renders text as Markdown, except verbatim text.

// -- an attempt: its turns, and who wrote what

// Fill `body` with the text of an attempt. `ranges` are marked; see paint(). If `base` is an attempt, the words that
// differ from its text are marked too; `baseName` is the name that the reader sees for it.
function fillBody(body, attempt, ranges, base, baseName) {
  const diff = base ? difference(base.text, attempt.text) : null;
  const marked = [...ranges, ...(diff ? diff.ranges : [])];
  if (attempt.answer) marked.push([...attempt.answer, "answer"]);
  if (diff && !diff.aligned) {
    body.append(el("p", { className: "muted" }, `Too different to align: marked are words that ${baseName} does not use.`));
  }
  for (const turn of turns(attempt)) body.append(...turnNodes(turn, attempt, marked));
  if (!attempt.text) body.append(el("p", { className: "muted" }, "(empty)"));
}

const ROLES = ["assistant", "tool", "user", "system"];

// Return [role, from, to, name of a tool] for each message of a completion. The role is null if the completion is one
// text.
function turns(attempt) {
  if (!attempt.roles.length) return [[null, 0, attempt.text.length]];
  let at = 0;
  return attempt.roles.map(([role, length, name]) => {
    const from = at;
    at += length + 1;
    return [role, from, from + length, name];
  });
}

// Return the nodes of one turn: a section with a label. A turn without a role has no section, only its text and
// pictures.
function turnNodes([role, from, to, name], attempt, ranges) {
  const nodes = [...stretchNodes(attempt, from, to, ranges, role === "tool"), ...thumbnails(attempt.text.slice(from, to), attempt.thumbnails)];
  if (!role) return nodes;
  const label = el("bdi", { className: "label" }, ...readable(name ? `${role} ${name}` : role));
  return [el("section", { className: `turn ${ROLES.includes(role) ? role : "other"}` }, label, ...nodes)];
}

function stretchNodes(attempt, from, to, ranges, verbatim) {
  const { text } = attempt;
  const nodes = [];
  let at = from;
  const plain = (end) => {
    if (end > at) nodes.push(textNode(text, at, end, ranges, verbatim));
  };
  for (const [start, end, closed, call] of foldsAndCalls(attempt, from, to)) {
    plain(start);
    // The fold takes the empty lines after it along.
    at = end + /^\s*/.exec(text.slice(end, to))[0].length;
    nodes.push(call ? callNode(call, text, at, ranges) : thinkingNode(text, start, at, closed, ranges));
  }
  plain(to);
  return nodes;
}

// Return [from, to, closed, call or undefined] of each stretch of thinking and each tool call, in order. A call within
// a stretch of thinking is left out: it is shown as text there.
function foldsAndCalls({ text, calls = [] }, from, to) {
  const found = thoughts(text, from, to);
  const inside = ([start]) => start >= from && start < to && !found.some(([a, b]) => start >= a && start < b);
  const own = calls.filter(inside).map((call) => [call[0], call[1], true, call]);
  return [...found, ...own].sort((a, b) => a[0] - b[0]);
}

// -- folds of thinking, and tool calls

const THINK_OPEN = "<think>";
const THINK_CLOSE = "</think>";

// Return [from, to, closed] of each stretch of thinking. Some chat templates open the first one in the prompt: then the
// text has its closing tag only.
function thoughts(text, from, to) {
  const found = [];
  let open = text.indexOf(THINK_OPEN, from);
  const close = text.indexOf(THINK_CLOSE, from);
  let at = from;
  if (close >= 0 && close < to && (open < 0 || close < open)) {
    at = close + THINK_CLOSE.length;
    found.push([from, at, true]);
  }
  while ((open = text.indexOf(THINK_OPEN, at)) >= 0 && open < to) {
    const end = text.indexOf(THINK_CLOSE, open);
    const closed = end >= 0 && end < to;
    at = closed ? end + THINK_CLOSE.length : to;
    found.push([open, at, closed]);
  }
  return found;
}

function textNode(text, from, to, ranges, verbatim = false) {
  if (state.rendered && !verbatim) return el("div", { className: "rendered" }, ...renderedNodes(text.slice(from, to)));
  const node = el("div", { className: "text" });
  paint(node, text, from, to, ranges);
  return node;
}

function thinkingNode(text, from, to, closed, ranges) {
  const length = text.slice(from, to).split(/\s+/).filter(Boolean).length;
  const about = [count(length, "word")];
  const differences = countWithin(ranges, from, to, "differs");
  if (!closed) about.push("never closed");
  if (countWithin(ranges, from, to, "answer")) about.push("holds the answer");
  if (differences) about.push(count(differences, "difference"));
  const summary = el("summary", {}, `Thinking, ${about.join(", ")}`);
  const open = state.unfold || !closed || countWithin(ranges, from, to, "hit") > 0;
  return el("details", { className: "think", open }, summary, textNode(text, from, to, ranges));
}

// Return a tool call, [from, to, name, arguments]: its name and arguments, and a fold with its text, open if something
// is marked there.
function callNode([from, , name, args], text, to, ranges) {
  const head = el("div", {}, el("span", { className: "muted" }, "calls "), el("b", {}, ...readable(name)));
  const pairs = args.flatMap(([key, value]) => [el("dt", {}, el("bdi", {}, ...readable(key))), el("dd", { className: "text" }, ...readable(value))]);
  const marked = countWithin(ranges, from, to, "hit") + countWithin(ranges, from, to, "differs");
  const written = el("div", { className: "text" });
  paint(written, text, from, to, ranges);
  const raw = el("details", { open: marked > 0 }, el("summary", {}, "as text"), written);
  return el("div", { className: "call" }, head, pairs.length ? el("dl", {}, ...pairs) : null, raw);
}

// -- the prompt, the reference, and pictures that a text names

// Return the prompt and the reference, which all attempts share. `marked` has the ranges of each of their texts.
function taskNode(group, marked = []) {
  const parts = group.prompt.flatMap(([role, text], i) => [labelledText(role || "prompt", text, marked[i]), ...thumbnails(text, group.thumbnails)]);
  const references = group.reference.map(([name, text], i) => labelledText(name, text, marked[group.prompt.length + i], true));
  const node = el("div", { id: "task" }, el("div", { className: "prompt", tabIndex: 0 }, ...parts));
  if (references.length) node.append(el("div", { className: "reference", tabIndex: 0 }, ...references));
  // Give the reference the height of its lines, of about 26 characters each, but of 4.4 lines at most: then it scrolls.
  const lines = group.reference.flatMap(([, text]) => text.split("\n")).map((line) => Math.ceil(line.length / 26) || 1);
  node.style.setProperty("--lines", Math.min(4.4, lines.reduce((a, b) => a + b, 0)));
  return node;
}

function labelledText(name, text, ranges = [], verbatim = false) {
  return el("div", { className: "part" }, el("bdi", { className: "label" }, ...readable(name)), textNode(text, 0, text.length, ranges, verbatim));
}

const PICTURE = /<image ([\w;]+ \d+x\d+ [0-9a-f]{16})>/g; // how a text names a picture

// Return images for those pictures in a text that the run kept as thumbnails: `pictures`, name -> address.
function thumbnails(text, pictures) {
  if (!pictures) return [];
  const names = [...text.matchAll(PICTURE)].map(([, name]) => name).filter((name) => name in pictures);
  return names.map((name) => el("img", { className: "thumbnail", src: pictures[name], alt: `image ${name}`, title: name }));
}

// -- marks in a text

// Fill `node` with text[from, to). `ranges`, [from, to, class], are marked. They may overlap. Two classes have a 4th item:
//   [from, to, "heat", f]       f(mark) colours the mark; these ranges do not overlap each other
//   [end, end, "step", node]    `node` is put into the text at `end`
function paint(node, text, from, to, ranges) {
  const events = [];
  for (const [start, end, kind, value] of ranges) {
    if (kind === "step" && from < end && end <= to) events.push([end, kind, 0, value]);
    const a = Math.max(characterEdge(text, start, -1), from);
    const b = Math.min(characterEdge(text, end, 1), to);
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
  if (!kinds.length) return node.append(...readable(run));
  const mark = el("mark", { className: kinds.join(" ") }, ...readable(run));
  if (heat) heat(mark);
  node.append(mark);
}

function countWithin(ranges, from, to, kind) {
  return ranges.filter(([start, end, other]) => other === kind && start < to && end > from).length;
}

// Return `at`, or at + by if `at` is between the two halves of a surrogate pair.
function characterEdge(text, at, by) {
  const code = text.charCodeAt(at);
  const before = text.charCodeAt(at - 1);
  return code >= 0xdc00 && code < 0xe000 && before >= 0xd800 && before < 0xdc00 ? at + by : at;
}

// -- invisible characters, and those that change the direction of text: they are shown, so that a reader sees what the
// reward function read

// Characters that join the parts of an emoji: they are not marked.
const JOINT = String.raw`(?<joint>(?<=\p{Extended_Pictographic})\uFE0F|(?<=[\p{Extended_Pictographic}\p{Emoji_Modifier}\uFE0F])\u200D(?=\p{Extended_Pictographic}))`;
const HIDDEN = String.raw`[\p{Default_Ignorable_Code_Point}\p{Cs}\p{Zl}\p{Zp}\u2800\uFFF9-\uFFFB]|(?![\t\n])\p{Cc}|(?! )\p{Zs}`;
const UNSEEN = new RegExp(`${JOINT}|(${HIDDEN})\\2*`, "gu");
const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

const CODE_NAMES = {
  0x7f: ["DEL", "delete"], 0xa0: ["␣", "no-break space"], 0xad: ["SHY", "soft hyphen"], 0x61c: ["ALM", "Arabic letter mark"],
  0x200b: ["ZWSP", "zero width space"], 0x200c: ["ZWNJ", "zero width non-joiner"], 0x200d: ["ZWJ", "zero width joiner"],
  0x200e: ["LRM", "left-to-right mark"], 0x200f: ["RLM", "right-to-left mark"], 0x2028: ["LS", "line separator"],
  0x2029: ["PS", "paragraph separator"], 0x202a: ["LRE", "left-to-right embedding"], 0x202b: ["RLE", "right-to-left embedding"],
  0x202c: ["PDF", "pop directional formatting"], 0x202d: ["LRO", "left-to-right override"], 0x202e: ["RLO", "right-to-left override"],
  0x202f: ["␣", "narrow no-break space"], 0x2060: ["WJ", "word joiner"], 0x2066: ["LRI", "left-to-right isolate"],
  0x2067: ["RLI", "right-to-left isolate"], 0x2068: ["FSI", "first strong isolate"], 0x2069: ["PDI", "pop directional isolate"],
  0xfeff: ["BOM", "zero width no-break space"],
};

// Return a text as a list of strings and of marks for its invisible characters. A mark also contains the characters,
// which the style sheet does not display: the textContent of the page is exactly the text of the run.
function readable(value) {
  const text = String(value);
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.groups.joint) continue;
    parts.push(text.slice(at, match.index), unseenNode(match[0]));
    at = match.index + match[0].length;
  }
  parts.push(at ? text.slice(at) : text);
  return parts.filter((part) => part !== "");
}

// Return one mark for a run of equal invisible characters.
function unseenNode(run) {
  const code = run.codePointAt(0);
  const times = run.length / String.fromCodePoint(code).length;
  const [short, long] = codeName(code);
  const title = `${codePoint(code)} ${long}${times > 1 ? `, ${times} times` : ""}`;
  const label = times === 1 ? short : short === "␣" && times < 20 ? short.repeat(times) : `${short} ×${times}`;
  return el("span", { className: "ghost", title, role: "img", "aria-label": title, "data-label": label }, el("span", {}, run));
}

const codePoint = (code) => `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;

// Return the [short, long] name of a code point.
function codeName(code) {
  if (CODE_NAMES[code]) return CODE_NAMES[code];
  if (code < 32) return [CONTROLS[code], "control character"];
  if (code >= 0xe0020 && code < 0xe007f) return [`tag ${String.fromCodePoint(code - 0xe0000)}`, "tag character"];
  if (code >= 0xd800 && code < 0xe000) return [codePoint(code), "lone surrogate"];
  if (/\p{Zs}/u.test(String.fromCodePoint(code))) return ["␣", "space"];
  return [codePoint(code), "is not seen"];
}

// Return a text for a `title` attribute, which cannot hold marks: invisible characters as [name].
const readableString = (text) => readable(text).map((part) => (typeof part === "string" ? part : `[${part.dataset.label}]`)).join("");

// Return the title of a prompt.
const titleNode = (title, properties = {}) => el("bdi", properties, ...readable(title || "(empty prompt)"));

// -- words that differ

const MOST_EDITS = 2000;

function tokens(text) {
  return [...text.matchAll(/[\p{L}\p{N}_]+|[^\s]/gu)].map((match) => [match[0], match.index]);
}

// Return {ranges, aligned}: the words of `text` that differ from `base`, as [from, to, "differs"]. `aligned` is false
// if the texts were too different to align: then the ranges are the words that `base` does not use.
function difference(base, text) {
  const theirs = tokens(base);
  const ours = tokens(text);
  const numbers = new Map();
  const coded = (list) => list.map(([word]) => numbers.get(word) ?? numbers.set(word, numbers.size).get(word));
  const a = coded(theirs);
  const b = coded(ours);
  const shared = sharedWords(a, b);
  const baseWords = shared ? null : new Set(a);
  const ranges = [];
  ours.forEach(([word, at], i) => {
    if (shared ? shared[i] : baseWords.has(b[i])) return;
    const last = ranges[ranges.length - 1];
    const adjacent = last && i > 0 && last[1] === ours[i - 1][1] + ours[i - 1][0].length;
    if (adjacent) last[1] = at + word.length;
    else ranges.push([at, at + word.length, "differs"]);
  });
  return { ranges, aligned: Boolean(shared) };
}

// Return a Uint8Array, 1 for each element of b that is in a longest common subsequence with a (Myers 1986); null if
// more than MOST_EDITS edits are needed.
function sharedWords(a, b) {
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

// Return trace[d][k + d]: the furthest x that d edits reach on diagonal k; null after MOST_EDITS edits.
function furthest(a, b) {
  const most = Math.min(a.length + b.length, MOST_EDITS);
  const trace = [];
  for (let d = 0; d <= most; d++) {
    const last = trace[d - 1];
    const now = new Int32Array(2 * d + 1);
    for (let k = -d; k <= d; k += 2) {
      let x = d === 0 ? 0 : editBefore(last, d, k)[1];
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      now[k + d] = x;
      if (k === a.length - b.length && x >= a.length) return [...trace, now];
    }
    trace.push(now);
  }
  return null;
}

// Return [diagonal, x]: the diagonal from which the d-th edit leads to diagonal k, and the x at which it enters k.
function editBefore(last, d, k) {
  const at = (diagonal) => (Math.abs(diagonal) < d ? last[diagonal + d - 1] : -1);
  const down = k === -d || (k !== d && at(k - 1) < at(k + 1));
  return down ? [k + 1, at(k + 1)] : [k - 1, at(k - 1) + 1];
}

function walkBack(trace, endX, endY, start, shared) {
  let x = endX;
  let k = endX - endY;
  for (let d = trace.length - 1; d >= 0; d--) {
    const [from, entered] = d === 0 ? [0, 0] : editBefore(trace[d - 1], d, k);
    for (; x > entered; x--) shared[start + x - 1 - k] = 1;
    if (d > 0) x = trace[d - 1][from + d - 1];
    k = from;
  }
  return shared;
}

// -- credit within an attempt: advantages of tokens as colours behind the text, rewards of steps where the steps end

// Return the largest |advantage| of any token of the attempts; 0 if their tokens have no advantages of their own.
function largestAdvantage(attempts) {
  return largest([0, ...attempts.flatMap((attempt) => (attempt.heat || []).map(([, , value]) => Math.abs(value)))]);
}

const stepNames = (attempts) => [...new Set(attempts.flatMap((attempt) => (attempt.steps || []).map(([, , name]) => name)))].sort();
const hasCredit = (attempts) => attempts.some((attempt) => attempt.heat || attempt.steps);

// Return the advantages of tokens and the rewards of steps as ranges of paint(). `most` comes from largestAdvantage(),
// `names` from stepNames().
function creditRanges(attempt, most, names) {
  const heat = (attempt.heat || []).map(([from, to, value]) => [from, to, "heat", (mark) => setHeat(mark, value, most)]);
  const steps = (attempt.steps || []).map(([end, reward, name]) => {
    const at = attempt.text.slice(0, end).trimEnd().length || end; // on the step's own line
    return [at, at, "step", stepNode(reward, name, names)];
  });
  return [...heat, ...steps];
}

function setHeat(mark, value, most) {
  mark.title = `advantage ${signed(value)}`;
  if (value) mark.style.setProperty("--heat", tint(value / most));
}

// Return the colour of an advantage; `share`, from -1 to 1, is its share of the largest. The colours are the two ends
// of the rewards' scale. They stay half transparent, so that text on them can be read on light and dark ground.
function tint(share) {
  const strength = Math.round((0.08 + 0.42 * Math.abs(share)) * 255);
  return (share < 0 ? SCALE[0] : SCALE[SCALE.length - 1]) + strength.toString(16).padStart(2, "0");
}

// Return the mark at the end of a step. The style sheet draws its label, so that the label is not part of the text that
// is searched, compared and copied.
function stepNode(reward, name, names) {
  const title = `${name}: step ends, reward ${signed(reward)}`;
  const label = names.length > 1 ? `${name} ${signed(reward)}` : signed(reward);
  return el("span", { className: `step ${reward > 0 ? "up" : reward < 0 ? "down" : ""}`, title, role: "img", "aria-label": title, "data-label": label });
}

function creditLegend(attempts) {
  const most = largestAdvantage(attempts);
  const names = stepNames(attempts);
  const node = el("span", { className: "muted", id: "credit-legend" });
  if (most) {
    const bar = el("span", { className: "heat-bar" });
    bar.style.background = `linear-gradient(to right, ${tint(-1)}, transparent, ${tint(1)})`;
    node.append("advantage by token ", signed(-most), " ", bar, " ", signed(most));
  } else if (attempts.some((attempt) => attempt.heat)) node.append("advantage by token 0");
  if (names.length) node.append(node.hasChildNodes() ? "; " : "", el("span", { className: "step", "data-label": "r" }), " a step of ", el("bdi", {}, names.join(" or ")), " ends; its reward");
  return node;
}
