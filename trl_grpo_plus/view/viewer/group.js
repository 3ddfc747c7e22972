// -- a group: its prompt, and its attempts as columns

let shown = 0;

async function drawGroup() {
  const g = state.group;
  const turn = ++shown;
  if (g < 0) return $("group").replaceChildren(el("p", { className: "empty" }, "No group matches."));
  const group = await texts(g);
  const spans = await hits(state.source, textsOf(group));
  if (turn !== shown) return;
  const attempts = group.attempts.map((attempt, i) => ({ ...attempt, i, best: i === 0 && stands(group.attempts) }));
  const marked = spans.map((list) => list.map(([from, to]) => [from, to, "hit"]));
  const before = group.prompt.length + group.reference.length;
  attempts.forEach((attempt) => (attempt.hits = marked[before + attempt.i]));
  const pinned = attempts.filter((attempt) => state.pins.includes(attempt.attempt));
  const cols = columns(pinned.length === 2 ? pinned : attempts, pinned, attempts);
  const focused = document.activeElement.closest?.("#history button")?.id;
  const past = state.past ? [pastNode(g)] : [];
  $("group").replaceChildren(groupHead(g, attempts, pinned), ...past, task(group, marked), cols);
  if (past.length) showCurrent(past[0]);
  if (focused) $(focused)?.focus({ preventScroll: true });
  for (const body of cols.querySelectorAll(".body")) showHit(body);
}

// Whether the first attempt did better than the last.
function stands(attempts) {
  const [first, last] = [attempts[0], attempts[attempts.length - 1]];
  return first.advantage !== last.advantage || first.reward !== last.reward;
}

function groupHead(g, attempts, pinned) {
  const where = `${data.split[g]}, step ${data.step[g]}, batch ${data.batch[g]}, round ${data.round[g]}, group ${data.group[g]}`;
  const head = el("div", { id: "group-head" }, el("h2", {}, where), badge(data.verdict[g]));
  if (data.kept[g] !== null) head.append(el("span", { className: "muted" }, treatment(g)));
  for (const name of data.alarms[g]) head.append(el("span", { className: "alarm-mark" }, words(name)));
  if (data.belief[g]) head.append(beliefNode(g));
  const credited = hasCredit(attempts);
  if (credited && state.credit) head.append(creditLegend(attempts));
  head.append(el("span", { className: "grow" }), tool("past", "History", "s", state.past, togglePast));
  if (pinned.length) head.append(tool("unpin", pinned.length === 2 ? `Show all ${attempts.length}` : "Unpin", "Esc", null, unpin));
  head.append(tool("diff", "Differences", "d", diffOn(), toggleDiff), tool("unfold", "Thinking", "t", state.unfold, toggleFold));
  if (credited) head.append(tool("credit", "Credit", "c", state.credit, toggleCredit));
  return head;
}

function tool(id, name, key, pressed, act) {
  const button = el("button", { type: "button", id, title: `${name} (${key})` }, name);
  if (pressed !== null) button.setAttribute("aria-pressed", pressed);
  button.addEventListener("click", act);
  return button;
}

// The prompt and the reference, once for all attempts.
function task(group, marked) {
  const parts = group.prompt.map(([role, text], i) => labelled(role || "prompt", text, marked[i]));
  const known = group.reference.map(([name, text], i) => labelled(name, text, marked[group.prompt.length + i]));
  const node = el("div", { id: "task" }, el("div", { className: "prompt", tabIndex: 0 }, ...parts));
  if (known.length) node.append(el("div", { className: "reference", tabIndex: 0 }, ...known));
  return node;
}

function labelled(name, text, ranges) {
  const body = el("div", { className: "text" });
  paint(body, text, 0, text.length, ranges);
  return el("div", { className: "part" }, el("bdi", { className: "label" }, name), body);
}

function columns(attempts, pinned, group) {
  const node = el("div", { id: "columns", className: pinned.length === 2 ? "pair" : "" });
  node.style.setProperty("--n", attempts.length);
  const [most, names] = [hottest(group), stepNames(group)];
  for (const attempt of attempts) {
    const credit = state.credit ? creditRanges(attempt, most, names) : [];
    node.append(column(attempt, attempts, pinned.includes(attempt), credit));
  }
  return node;
}

function column(attempt, attempts, pinned, credit) {
  const node = el("article", { className: "attempt", "aria-label": `Attempt ${attempt.attempt}` });
  node.dataset.attempt = attempt.attempt;
  if (pinned) node.classList.add("pinned");
  const [base, name] = attempts.length === 2 && pinned ? [attempts[attempt === attempts[0] ? 1 : 0], "the other"] : [attempts[0], "the best"];
  const diff = diffOn() && base !== attempt ? difference(base.text, attempt.text) : null;
  const ranges = [...credit, ...attempt.hits, ...(diff ? diff.ranges : [])];
  if (attempt.answer) ranges.push([...attempt.answer, "answer"]);
  const body = el("div", { className: "body", tabIndex: 0, role: "region", "aria-label": `Text of attempt ${attempt.attempt}` });
  if (diff && !diff.aligned) {
    body.append(el("p", { className: "muted" }, `Too different to align: marked are words that ${name} does not use.`));
  }
  for (const [role, from, to] of turns(attempt)) body.append(...turnNodes(role, attempt.text, from, to, ranges));
  if (!attempt.text) body.append(el("p", { className: "muted" }, "(empty)"));
  node.append(scores(attempt, pinned), body);
  return node;
}

function showHit(body) {
  const hit = body.querySelector("mark.hit");
  if (hit) body.scrollTop = hit.getBoundingClientRect().top - body.getBoundingClientRect().top - 40;
}

function turnNodes(role, text, from, to, ranges) {
  const nodes = role ? [el("bdi", { className: "label" }, role)] : [];
  let at = from;
  const plain = (end) => {
    if (end <= at) return;
    const node = el("div", { className: "text" });
    paint(node, text, at, end, ranges);
    nodes.push(node);
  };
  for (const [start, end, closed] of thoughts(text, from, to)) {
    plain(start);
    // The empty lines after it fold away with it.
    at = end + /^\s*/.exec(text.slice(end, to))[0].length;
    nodes.push(fold(text, start, at, closed, ranges));
  }
  plain(to);
  return nodes;
}

function fold(text, from, to, closed, ranges) {
  const length = text.slice(from, to).split(/\s+/).filter(Boolean).length;
  const about = [count(length, "word")];
  const differences = within(ranges, from, to, "differs");
  if (!closed) about.push("never closed");
  if (within(ranges, from, to, "answer")) about.push("holds the answer");
  if (differences) about.push(count(differences, "difference"));
  const summary = el("summary", {}, `Thinking, ${about.join(", ")}`);
  const body = el("div", { className: "text" });
  paint(body, text, from, to, ranges);
  const open = state.unfold || !closed || within(ranges, from, to, "hit") > 0;
  return el("details", { className: "think", open }, summary, body);
}

// -- what is known of an attempt

function scores(attempt, pinned) {
  const pin = tool(`pin-${attempt.attempt}`, pinned ? "Unpin" : "Pin", "p", pinned, () => togglePin(attempt.attempt));
  const title = el("h3", {}, `#${attempt.attempt}`, attempt.best ? el("span", { className: "tag" }, "best") : null);
  const top = el("div", { className: "row-line" }, title, el("span", { className: "grow" }), pin);
  const total = el("div", { className: "total" }, dot(attempt.reward, data.range), el("b", {}, number(attempt.reward)));
  total.append(el("span", { className: "muted" }, data.head.note ? "sum" : "reward"));
  total.append(el("span", { className: "end" }, el("span", { className: "muted" }, "advantage "), signed(attempt.advantage)));
  return el("div", { className: "scores" }, top, total, parts(attempt), facts(attempt), extra(attempt));
}

function parts(attempt) {
  const rows = attempt.parts.map(([name, score, outcome]) => {
    const weight = data.head.weights[name];
    const note = weight === 0 ? "monitor" : weight === undefined || weight === 1 ? "" : `× ${number(weight)}`;
    const failed = outcome && outcome !== "ok" ? el("span", { className: `outcome ${outcome}` }, outcome) : null;
    const label = el("th", { scope: "row" }, el("bdi", {}, name), note ? el("span", { className: "muted" }, ` ${note}`) : null);
    return el("tr", {}, label, el("td", {}, failed, failed ? " " : null, number(score)));
  });
  return el("table", {}, el("tbody", {}, ...rows));
}

function facts(attempt) {
  const known = [];
  if (attempt.tokens !== null) known.push(count(attempt.tokens, "token"));
  if (attempt.kl !== null) known.push(`KL ${number(attempt.kl)}`);
  const line = el("div", { className: "muted facts" }, known.join(", "));
  if (attempt.truncated) line.append(" ", el("span", { className: "outcome" }, "truncated"));
  return line;
}

function extra(attempt) {
  if (!attempt.extra.length) return null;
  const pairs = attempt.extra.flatMap(([key, value]) => [el("dt", {}, el("bdi", {}, key)), el("dd", {}, el("bdi", {}, value))]);
  return el("dl", { className: "extra" }, ...pairs);
}
