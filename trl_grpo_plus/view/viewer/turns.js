// -- a completion's turns: who wrote what, folds of thinking, calls of tools

const ROLES = ["assistant", "tool", "user", "system"];

// Nodes of one turn; of a completion in one piece those of its text.
function turnNodes([role, from, to, name], attempt, ranges) {
  const nodes = [...stretchNodes(attempt, from, to, ranges, role === "tool"), ...thumbnails(attempt.text.slice(from, to), attempt.thumbnails)];
  if (!role) return nodes;
  const label = el("bdi", { className: "label" }, ...seen(name ? `${role} ${name}` : role));
  return [el("section", { className: `turn ${ROLES.includes(role) ? role : "other"}` }, label, ...nodes)];
}

function stretchNodes(attempt, from, to, ranges, verbatim) {
  const { text } = attempt;
  const nodes = [];
  let at = from;
  const plain = (end) => {
    if (end > at) nodes.push(textNode(text, at, end, ranges, verbatim));
  };
  for (const [start, end, closed, call] of special(attempt, from, to)) {
    plain(start);
    // The empty lines after it go away with it.
    at = end + /^\s*/.exec(text.slice(end, to))[0].length;
    nodes.push(call ? callNode(call, text, at, ranges) : fold(text, start, at, closed, ranges));
  }
  plain(to);
  return nodes;
}

// Thoughts and calls in order; a call within a thought is part of it.
function special({ text, calls = [] }, from, to) {
  const found = thoughts(text, from, to);
  const inside = ([start]) => start >= from && start < to && !found.some(([a, b]) => start >= a && start < b);
  const own = calls.filter(inside).map((call) => [call[0], call[1], true, call]);
  return [...found, ...own].sort((a, b) => a[0] - b[0]);
}

function textNode(text, from, to, ranges, verbatim = false) {
  if (state.rendered && !verbatim) return el("div", { className: "rendered" }, ...rendered(text.slice(from, to)));
  const node = el("div", { className: "text" });
  paint(node, text, from, to, ranges);
  return node;
}

function fold(text, from, to, closed, ranges) {
  const length = text.slice(from, to).split(/\s+/).filter(Boolean).length;
  const about = [count(length, "word")];
  const differences = within(ranges, from, to, "differs");
  if (!closed) about.push("never closed");
  if (within(ranges, from, to, "answer")) about.push("holds the answer");
  if (differences) about.push(count(differences, "difference"));
  const summary = el("summary", {}, `Thinking, ${about.join(", ")}`);
  const open = state.unfold || !closed || within(ranges, from, to, "hit") > 0;
  return el("details", { className: "think", open }, summary, textNode(text, from, to, ranges));
}

// Its name and arguments; and folded, if nothing is marked there, the text that stands for it.
function callNode([from, , name, given], text, to, ranges) {
  const head = el("div", {}, el("span", { className: "muted" }, "calls "), el("b", {}, ...seen(name)));
  const pairs = given.flatMap(([key, value]) => [el("dt", {}, el("bdi", {}, ...seen(key))), el("dd", { className: "text" }, ...seen(value))]);
  const marked = within(ranges, from, to, "hit") + within(ranges, from, to, "differs");
  const written = el("div", { className: "text" });
  paint(written, text, from, to, ranges);
  const raw = el("details", { open: marked > 0 }, el("summary", {}, "as text"), written);
  return el("div", { className: "call" }, head, pairs.length ? el("dl", {}, ...pairs) : null, raw);
}

// The prompt and the reference, once for all attempts.
function task(group, marked) {
  const parts = group.prompt.flatMap(([role, text], i) => [labelled(role || "prompt", text, marked[i]), ...thumbnails(text, group.thumbnails)]);
  const known = group.reference.map(([name, text], i) => labelled(name, text, marked[group.prompt.length + i], true));
  const node = el("div", { id: "task" }, el("div", { className: "prompt", tabIndex: 0 }, ...parts));
  if (known.length) node.append(el("div", { className: "reference", tabIndex: 0 }, ...known));
  return node;
}

function labelled(name, text, ranges, verbatim = false) {
  return el("div", { className: "part" }, el("bdi", { className: "label" }, ...seen(name)), textNode(text, 0, text.length, ranges, verbatim));
}

// Of the pictures that a text names, those that the run kept small.
const PICTURE = /<image ([\w;]+ \d+x\d+ [0-9a-f]{16})>/g;

function thumbnails(text, known) {
  if (!known) return [];
  const named = [...text.matchAll(PICTURE)].filter(([, name]) => name in known);
  return named.map(([, name]) => el("img", { className: "thumbnail", src: known[name], alt: `image ${name}`, title: name }));
}
