// -- prompts that two runs or more sampled: a list, and the attempts of each run beside each other

const HIGH = 52; // px of a row, as in compare.css

const prompts = { all: [], rows: [], chosen: null, source: "", timer: 0, drawing: 0 };
const state = { diff: true, unfold: false, credit: true, at: {} }; // at: of each run, which of its groups is shown

// Of each prompt: of each run that sampled it, its groups in this page by step.
function loadPrompts({ prompts: sizes, times }) {
  let first = 0;
  prompts.all = sizes.map((size, i) => {
    const runs = new Map();
    for (let g = first; g < first + size; g++) {
      if (!runs.has(data.run[g])) runs.set(data.run[g], []);
      runs.get(data.run[g]).push(g);
    }
    first += size;
    const g = first - size;
    const last = new Map([...runs].map(([r, groups]) => [r, meanReward(groups.at(-1))]));
    const known = [...last.values()].filter((mean) => mean !== null);
    const gap = known.length > 1 ? Math.max(...known) - Math.min(...known) : null;
    return { i, runs, last, gap, split: data.split[g], title: data.title[g], times: times[i] };
  });
}

// How far a run is ahead of the mean of the others.
function lead(prompt, r) {
  const own = prompt.last.get(r);
  const others = [...prompt.last].filter(([other, mean]) => other !== r && mean !== null).map(([, mean]) => mean);
  return own === undefined || own === null || !others.length ? -Infinity : own - meanOf(others);
}

function matchingPrompts() {
  const [split, order] = [$("split").value, $("order").value];
  const found = prompts.all.filter((prompt) => !split || prompt.split === split);
  if (order === "gap") return found; // as they came
  const leads = new Map(found.map((prompt) => [prompt, lead(prompt, Number(order))]));
  return found.filter((prompt) => leads.get(prompt) > 0).sort((a, b) => leads.get(b) - leads.get(a));
}

function refresh() {
  stopSearch();
  const found = matchingPrompts();
  const { source, problem } = searchedFor();
  prompts.source = source;
  if (!source) return setPrompts(found, problem);
  const groups = found.flatMap((prompt) => [...prompt.runs.values()].flat()).sort((a, b) => a - b);
  setPrompts([], "Searching.");
  if (groups.length) startSearch(groups, prompts.source, (matches, seen, problem) => {
    if (seen < groups.length && !problem) return;
    const hit = new Set(matches);
    setPrompts(found.filter((prompt) => [...prompt.runs.values()].flat().some((g) => hit.has(g))), problem ? `Search stopped: ${problem}.` : "");
  });
  else setPrompts([], "");
}

function setPrompts(rows, told) {
  prompts.rows = rows;
  const left = data.head.shared - prompts.all.length;
  const without = left ? ` Left out for size: ${count(left, "prompt")}, those that differ least.` : "";
  $("status").textContent = `${count(rows.length, "prompt")} of two runs or more.${without} ${told}`.trim();
  $("rows").style.height = `${rows.length * HIGH}px`;
  if (!rows.includes(prompts.chosen) && rows.length) return choosePrompt(rows[0]);
  showInList($("list"), rows.indexOf(prompts.chosen), HIGH);
  drawShared();
  drawAttempts();
}

function showLast(prompt) {
  prompts.chosen = prompt;
  state.at = Object.fromEntries([...prompt.runs].map(([r, groups]) => [r, groups.length - 1]));
}

function choosePrompt(prompt) {
  showLast(prompt);
  showInList($("list"), prompts.rows.indexOf(prompt), HIGH);
  drawShared();
  drawAttempts();
}

function drawShared() {
  drawListbox($("list"), { name: "row", rows: prompts.rows, tall: HIGH, chosen: prompts.rows.indexOf(prompts.chosen), row: sharedRow });
}

function sharedRow(prompt) {
  const means = [...prompt.last].map(([r, mean]) => el("span", {}, runKey(r), el("span", { className: "unseen" }, `${runName(r)} `), number(mean, 3)));
  const split = data.splits.length > 1 ? el("span", { className: "tag" }, words(prompt.split)) : null;
  const gap = el("span", { className: "end muted" }, prompt.gap === null ? "" : `apart ${number(prompt.gap, 3)}`);
  const row = el("div", { className: "row", title: plainly(prompt.title) }, el("div", { className: "row-title" }, titleNode(prompt.title)));
  row.append(el("div", { className: "row-line" }, ...means, split ?? "", gap));
  row.addEventListener("click", () => choosePrompt(prompt));
  return row;
}

function movePrompt(by) {
  const next = prompts.rows[prompts.rows.indexOf(prompts.chosen) + by];
  if (next) choosePrompt(next);
}

// -- the attempts

async function drawAttempts() {
  const turn = ++prompts.drawing;
  remember();
  const prompt = prompts.chosen;
  if (!prompt || !prompts.rows.length) return $("group").replaceChildren(el("p", { className: "empty" }, prompts.all.length ? "No prompt matches." : "No prompt was sampled by two of the runs."));
  const shown = [...prompt.runs].map(([r, groups]) => [r, groups[state.at[r]]]);
  const loaded = await Promise.all(shown.map(([, g]) => texts(g)));
  const spans = await Promise.all(loaded.map((group) => hits(prompts.source, textsOf(group))));
  if (turn !== prompts.drawing) return;
  const marked = spans.map((lists) => lists.map((list) => list.map(([from, to]) => [from, to, "hit"])));
  const base = loaded[0].attempts[0];
  const every = loaded.flatMap((group) => group.attempts);
  const [most, names] = [hottest(every), stepNames(every)];
  const credit = (attempt) => (state.credit ? creditRanges(attempt, most, names) : []);
  const columns = shown.map(([r, g], i) => runColumn(prompt, r, g, loaded[i], marked[i], { base, credit }));
  const focused = document.activeElement.id;
  const node = el("div", { id: "columns", className: "runs" }, ...columns);
  $("group").replaceChildren(promptHead(prompt, every), task(loaded[0], marked[0]), node);
  if (focused && $(focused) !== document.activeElement) $(focused)?.focus({ preventScroll: true });
}

function promptHead(prompt, attempts) {
  const head = el("div", { id: "group-head" }, el("h3", {}, words(prompt.split)));
  const absent = data.head.runs.flatMap((run, r) => (prompt.runs.has(r) ? [] : [run.name]));
  if (absent.length) head.append(el("span", { className: "muted" }, "Never sampled in ", el("bdi", {}, absent.join(", "))));
  const credited = hasCredit(attempts);
  if (credited && state.credit) head.append(creditLegend(attempts));
  head.append(el("span", { className: "grow" }));
  head.append(tool("diff", "Differences", "d", state.diff, () => toggle("diff")));
  head.append(tool("unfold", "Thinking", "t", state.unfold, () => toggle("unfold")));
  if (credited) head.append(tool("credit", "Credit", "c", state.credit, () => toggle("credit")));
  return head;
}

function toggle(id) {
  state[id] = !state[id];
  drawAttempts();
}

function runColumn(prompt, r, g, group, marked, marks) {
  const rewards = rewardsOf(g);
  const mean = meanReward(g);
  const head = el("div", { className: "run-head" }, el("h3", {}, runKey(r), el("bdi", {}, runName(r))), el("div", { className: "row-line" }, el("span", { className: "dots" }, ...rewards.map((reward) => dot(reward))), el("span", { className: "end" }, `mean ${number(mean, 3)}`)), whenNode(prompt, r, g));
  const before = group.prompt.length + group.reference.length;
  const attempts = group.attempts.map((attempt, i) => attemptNode(attempt, marked[before + i], marks));
  return el("article", { className: "of-run", "aria-label": runName(r) }, head, ...attempts);
}

const stepOfRun = (r, g) => data.step[g] + (data.split[g] === "train" ? data.head.runs[r].step_shift : 0);

// Which step is shown, and the others.
function whenNode(prompt, r, g) {
  const groups = prompt.runs.get(r);
  const times = prompt.times[r];
  const left = times - groups.length;
  const told = `${count(times, "time")} sampled${left ? `, ${number(groups.length)} of them here` : ""}`;
  const line = el("div", { className: "when" }, el("span", {}, `step ${number(stepOfRun(r, g))}`), el("span", { className: "muted" }, told));
  if (groups.length < 2) return line;
  const go = (i) => [(state.at[r] = i), drawAttempts()];
  const button = (id, name, i) => {
    const node = el("button", { type: "button", className: "choice", id: `${id}-${r}`, "aria-pressed": state.at[r] === i }, name);
    node.addEventListener("click", () => go(i));
    return node;
  };
  const range = { type: "range", id: `when-${r}`, min: 0, max: groups.length - 1, step: 1, "aria-label": `Step of ${runName(r)}`, "aria-valuetext": `step ${stepOfRun(r, g)}` };
  const slider = groups.length > 2 ? el("input", range) : null;
  if (slider) {
    slider.value = state.at[r];
    slider.addEventListener("input", () => go(Number(slider.value)));
  }
  line.append(button("first", "First", 0), slider || "", button("last", "Last", groups.length - 1));
  return line;
}

// `base` is the attempt whose words the others' are compared with; credit(attempt) are ranges, as of paint().
function attemptNode(attempt, found, { base, credit }) {
  const diff = state.diff && base.text !== attempt.text ? difference(base.text, attempt.text) : null;
  const ranges = [...credit(attempt), ...found, ...(diff ? diff.ranges : [])];
  if (attempt.answer) ranges.push([...attempt.answer, "answer"]);
  const head = el("div", { className: "total" }, dot(attempt.reward), el("b", {}, number(attempt.reward)), el("span", { className: "muted" }, `#${attempt.attempt}`));
  if (attempt === base) head.append(el("span", { className: "tag" }, "the others' differences are from this"));
  if (attempt.truncated) head.append(el("span", { className: "outcome" }, "truncated"));
  for (const [name, score, outcome] of attempt.parts) {
    if (outcome && outcome !== "ok") head.append(el("span", { className: `outcome ${outcome}`, title: name }, outcome));
    else if (attempt.parts.length > 1) head.append(el("span", { className: "muted" }, el("bdi", {}, name), ` ${number(score)}`));
  }
  const body = el("div", { className: "body" });
  if (diff && !diff.aligned) body.append(el("p", { className: "muted" }, "Too different to align: marked are words that the first does not use."));
  for (const turn of turns(attempt)) body.append(...turnNodes(turn, attempt, ranges));
  if (!attempt.text) body.append(el("p", { className: "muted" }, "(empty)"));
  return el("div", { className: "one" }, head, body);
}
