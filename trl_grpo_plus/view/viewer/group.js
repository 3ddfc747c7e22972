// -- a group: its prompt, and its attempts as columns

let shown = 0;

async function drawGroup() {
  const g = state.group;
  const turn = ++shown;
  remember();
  document.body.classList.toggle("viewing", Boolean(state.view));
  $("prompts").setAttribute("aria-pressed", state.view === "prompts");
  if (state.view === "prompts") return drawPrompts(turn);
  if (g < 0) return $("group").replaceChildren(el("p", { className: "empty" }, "No group matches."));
  if (state.view === "follow") return drawFollow(g, turn);
  const group = await texts(g).catch((error) => lost(error, turn));
  if (!group) return;
  const spans = await hits(state.source, textsOf(group));
  if (state.rendered) await loadLibraries();
  if (turn !== shown) return;
  const every = group.attempts.map((attempt, i) => ({ ...attempt, i, best: i === 0 && stands(group.attempts) }));
  const attempts = together(every, state.apart);
  movePins(attempts);
  const marked = spans.map((list) => list.map(([from, to]) => [from, to, "hit"]));
  const before = group.prompt.length + group.reference.length;
  attempts.forEach((attempt) => (attempt.hits = marked[before + attempt.i]));
  const pinned = attempts.filter((attempt) => state.pins.includes(attempt.attempt));
  const cols = columns(pinned.length === 2 ? pinned : attempts, pinned, attempts);
  $("group").replaceChildren(groupHead(g, group, attempts, pinned), task(group, marked), cols);
  tellMore(cols);
  for (const body of cols.querySelectorAll(".body")) showHit(body);
}

// A server that is gone gives out no more texts; what is here may stay.
function lost(error, turn) {
  if (!error.told) throw error;
  if (turn === shown) $("group").replaceChildren(el("p", { className: "empty" }, `The attempts of this group are not here: ${error.told}.`));
}

// Whether the first attempt did better than the last.
function stands(attempts) {
  const [first, last] = [attempts[0], attempts[attempts.length - 1]];
  return first.advantage !== last.advantage || first.reward !== last.reward;
}

function groupHead(g, group, attempts, pinned) {
  const where = `${data.split[g]}, step ${loggedStepOf(g)}, batch ${data.batch[g]}, round ${data.round[g]}, group ${data.group[g]}`;
  const head = el("div", { id: "group-head" }, el("h2", {}, where), badge(data.verdict[g]));
  if (data.kept[g] !== null) head.append(el("span", { className: "muted" }, treatment(g)));
  for (const name of data.alarms[g]) head.append(el("span", { className: "alarm-mark" }, words(name)));
  head.append(...rescoredMarks(g));
  if (data.belief[g]) head.append(beliefNode(g));
  const credited = hasCredit(attempts);
  if (state.rendered) head.append(el("span", { className: "muted" }, "rendered: marks are in the text"));
  else if (credited && state.credit) head.append(creditLegend(attempts));
  head.append(el("span", { className: "grow" }), moreToTheRight(), tool("follow-on", "Follow", "f", false, toggleFollow));
  if (pinned.length) head.append(tool("unpin", pinned.length === 2 ? `Show all ${group.attempts.length}` : "Unpin", "Esc", null, unpin));
  head.append(tool("diff", "Differences", "d", diffOn(), toggleDiff), tool("unfold", "Thinking", "t", state.unfold, toggleFold));
  if (credited) head.append(tool("credit", "Credit", "c", state.credit, toggleCredit));
  head.append(moreTools(g, group));
  return head;
}

// Those that are seldom needed.
function moreTools(g, group) {
  const tools = [];
  const equal = new Set(group.attempts.map(equalKey)).size < group.attempts.length;
  if (equal) tools.push(tool("apart", "Equal apart", "e", state.apart, toggleApart));
  if (canRender()) tools.push(tool("rendered", "Rendered", "m", state.rendered, toggleRendered));
  tools.push(tool("worst-attempt", "Worst attempt", "W", null, goToWorstAttempt), ...copyTools(g, group));
  const summary = el("summary", { id: "more-tools-summary" }, "More");
  const node = el("details", { id: "more-tools", open: state.moreTools }, summary, el("div", { className: "bar" }, ...tools));
  node.addEventListener("toggle", () => (state.moreTools = node.open));
  return node;
}

// -- attempts that are out of sight

function moreToTheRight() {
  const button = el("button", { type: "button", id: "more-right", hidden: true });
  button.addEventListener("click", () => ($("columns").scrollLeft += Math.max(260, $("columns").clientWidth - 60)));
  return button;
}

// Those of which less than half is in sight.
function tellMore(cols) {
  const tell = () => {
    const end = cols.getBoundingClientRect().right;
    const hidden = [...cols.children].filter((node) => {
      const { left, right } = node.getBoundingClientRect();
      return (left + right) / 2 > end;
    });
    if (!$("more-right")) return;
    $("more-right").hidden = !hidden.length;
    $("more-right").textContent = `${number(hidden.length)} more to the right`;
  };
  cols.addEventListener("scroll", tell);
  new ResizeObserver(tell).observe(cols);
}

function columns(attempts, pinned, group) {
  const node = el("div", { id: "columns", className: pinned.length === 2 ? "pair" : "" });
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
  if (attempt.reward !== null) node.dataset.reward = attempt.reward;
  if (pinned) node.classList.add("pinned");
  if (attempt.rescored?.some(([, , , , kind]) => kind)) node.classList.add("disagrees");
  const [base, name] = attempts.length === 2 && pinned ? [attempts[attempt === attempts[0] ? 1 : 0], "the other"] : [attempts[0], "the best"];
  const diff = diffOn() && !state.rendered && base !== attempt ? difference(base.text, attempt.text) : null;
  const ranges = [...credit, ...attempt.hits, ...(diff ? diff.ranges : [])];
  if (attempt.answer) ranges.push([...attempt.answer, "answer"]);
  const body = el("div", { className: "body", tabIndex: 0, role: "region", "aria-label": `Text of attempt ${attempt.attempt}` });
  if (diff && !diff.aligned) {
    body.append(el("p", { className: "muted" }, `Too different to align: marked are words that ${name} does not use.`));
  }
  for (const turn of turns(attempt)) body.append(...turnNodes(turn, attempt, ranges));
  if (!attempt.text) body.append(el("p", { className: "muted" }, "(empty)"));
  node.append(scores(attempt, pinned), body);
  return node;
}

function showHit(body) {
  const hit = body.querySelector("mark.hit");
  if (hit) body.scrollTop = hit.getBoundingClientRect().top - body.getBoundingClientRect().top - 40;
}

// -- what is known of an attempt

function scores(attempt, pinned) {
  const pin = tool(`pin-${attempt.attempt}`, "Pin", "p", pinned, () => togglePin(attempt.attempt));
  const copy = copyButton(`copy-${attempt.attempt}`, "Copy", `Copy the text of attempt ${attempt.attempt}`, () => attempt.text);
  const title = el("h3", {}, ...equalsTitle(attempt), attempt.best ? el("span", { className: "tag" }, "best") : null);
  const top = el("div", { className: "row-line" }, title, el("span", { className: "grow" }), copy, pin);
  const total = el("div", { className: "total" }, dot(attempt.reward), el("b", {}, number(attempt.reward)));
  total.append(el("span", { className: "muted" }, data.head.note ? "sum" : "reward"));
  total.append(el("span", { className: "end" }, el("span", { className: "muted" }, "advantage "), signed(attempt.advantage)));
  return el("div", { className: "scores" }, top, total, parts(attempt), rescoredTable(attempt), facts(attempt), extra(attempt));
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
  const pairs = attempt.extra.flatMap(([key, value]) => [el("dt", {}, el("bdi", {}, ...seen(key))), el("dd", {}, el("bdi", {}, ...seen(value)))]);
  return el("dl", { className: "extra" }, ...pairs);
}
