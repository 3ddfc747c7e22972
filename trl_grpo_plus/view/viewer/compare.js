// Starts the page of several runs and holds its state. It lists the prompts that several runs sampled, and draws the
// attempts of each run at one of them. It is loaded last, and needs base.js, text.js, search.js, plot.js and
// compare_runs.js.

const state = { diff: true, unfold: false, credit: true, at: {} }; // at: run -> the index of its group that is shown
const prompts = { all: [], rows: [], chosen: null, source: "", drawing: 0 };

// -- start

async function start() {
  loadPrompts(await unpackIndex());
  fillHead();
  fillOutcomes();
  fillOptions();
  fillCurves();
  fillControls();
  listen();
  await show();
}

function show() {
  recall();
  refresh();
  return drawCurves();
}

function fillHead() {
  const { title, runs, settings, notes } = data.head;
  document.title = `${title}: runs side by side`;
  $("run").replaceChildren(el("bdi", {}, title));
  const settingsText = settings.length < runs.length ? ` of ${count(settings.length, "setting")}` : "";
  const prompts = data.head.shared ? `, ${count(data.head.shared, "prompt")} of two runs or more` : "";
  $("facts").textContent = `${count(runs.length, "run")}${settingsText}${prompts}`;
  $("note").hidden = !notes.length;
  $("note").open = notes.length < 4;
  $("note").querySelector("summary").textContent = count(notes.length, "note");
  $("notes").append(...notes.map((note) => el("li", {}, note)));
}

// Fill the controls of the prompts. If no two runs share a prompt, say why in their place.
function fillControls() {
  const { runs, shared } = data.head;
  const without = runs.filter((run) => !run.attempts).map((run) => run.name);
  const lacks = runs.length - without.length < 2;
  $("prompts-note").textContent = lacks ? `${without.join(", ")} kept no attempts, so there are none to compare.` : "No prompt was sampled by two of the runs.";
  $("prompts-note").hidden = shared;
  for (const id of ["controls", "status", "both"]) $(id).hidden = !shared;
  const splits = data.splits.map((split) => [split, words(split)]);
  $("split").append(...[["", "any"], ...splits].map(([value, name]) => el("option", { value }, name)));
  $("split-field").hidden = splits.length < 2;
  const orders = [["gap", "furthest apart at last"], ...runs.map(({ name }, r) => [r, `${name} ahead`])];
  $("order").append(...orders.map(([value, name]) => el("option", { value }, name)));
}

function listen() {
  listenToList(refresh, drawShared);
  for (const id of ["split", "order", "regex"]) $(id).addEventListener("input", refresh);
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", show);
}

// -- keys

const KEYS = {
  j: () => movePrompt(1),
  k: () => movePrompt(-1),
  "/": () => $("query").focus(),
  d: () => toggle("diff"),
  t: () => toggle("unfold"),
  c: () => toggle("credit"),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=checkbox], [type=range]), select")) return;
  const arrows = { ArrowDown: 1, ArrowUp: -1 };
  if (event.target === $("list") && Object.hasOwn(arrows, event.key)) movePrompt(arrows[event.key]);
  else if (Object.hasOwn(KEYS, event.key) && prompts.all.length) KEYS[event.key]();
  else return;
  event.preventDefault();
}

// -- prompts that two runs or more sampled

const ROW_HEIGHT = 52; // px of a row, as in compare.css

// Fill prompts.all: for each prompt {i, runs, last, gap, split, title, times}. `runs` is a Map: run -> its groups of
// the prompt in this page, by step. `last` is a Map: run -> the mean reward of its last group. `gap` is the difference
// between the highest and the lowest of these. `times` is how often each run sampled the prompt.
function loadPrompts({ prompts: sizes, times }) {
  let first = 0;
  prompts.all = sizes.map((size, i) => {
    const g = first;
    const runs = groupedBy(Array.from({ length: size }, (_, k) => g + k), (other) => data.run[other]);
    first += size;
    const last = new Map([...runs].map(([r, groups]) => [r, meanReward(groups.at(-1))]));
    const means = [...last.values()].filter((mean) => mean !== null);
    const gap = means.length > 1 ? spread(means) : null;
    return { i, runs, last, gap, split: data.split[g], title: data.title[g], times: times[i] };
  });
}

const groupsOf = (prompt) => [...prompt.runs.values()].flat();

function refresh() {
  stopSearch();
  const found = matchingPrompts();
  const { source, problem } = searchedFor();
  prompts.source = source;
  if (!source) return setPrompts(found, problem);
  const groups = ascending(found.flatMap(groupsOf));
  setPrompts([], "Searching.");
  if (groups.length) startSearch(groups, prompts.source, (matches, searched, problem) => {
    if (searched < groups.length && !problem) return;
    const hit = new Set(matches);
    setPrompts(found.filter((prompt) => groupsOf(prompt).some((g) => hit.has(g))), problem ? `Search stopped: ${problem}.` : "");
  });
  else setPrompts([], "");
}

function matchingPrompts() {
  const [split, order] = [$("split").value, $("order").value];
  const found = prompts.all.filter((prompt) => !split || prompt.split === split);
  if (order === "gap") return found; // the page's data is in this order
  const leads = new Map(found.map((prompt) => [prompt, lead(prompt, Number(order))]));
  return found.filter((prompt) => leads.get(prompt) > 0).sort((a, b) => leads.get(b) - leads.get(a));
}

// Return by how much the last mean reward of run `r` is above the mean of the other runs; -Infinity if there is none.
function lead(prompt, r) {
  const own = prompt.last.get(r);
  const others = [...prompt.last].filter(([other, mean]) => other !== r && mean !== null).map(([, mean]) => mean);
  return own === undefined || own === null || !others.length ? -Infinity : own - meanOf(others);
}

function setPrompts(rows, message) {
  prompts.rows = rows;
  const left = data.head.shared - prompts.all.length;
  const without = left ? ` Left out for size: ${count(left, "prompt")}, those that differ least.` : "";
  $("status").textContent = `${count(rows.length, "prompt")} of two runs or more.${without} ${message}`.trim();
  $("rows").style.height = `${rows.length * ROW_HEIGHT}px`;
  if (!rows.includes(prompts.chosen) && rows.length) return choosePrompt(rows[0]);
  showInList($("list"), rows.indexOf(prompts.chosen), ROW_HEIGHT);
  drawShared();
  drawAttempts();
}

function choosePrompt(prompt) {
  showLast(prompt);
  showInList($("list"), prompts.rows.indexOf(prompt), ROW_HEIGHT);
  drawShared();
  drawAttempts();
}

function showLast(prompt) {
  prompts.chosen = prompt;
  state.at = Object.fromEntries([...prompt.runs].map(([r, groups]) => [r, groups.length - 1]));
}

function movePrompt(by) {
  const next = prompts.rows[prompts.rows.indexOf(prompts.chosen) + by];
  if (next) choosePrompt(next);
}

function drawShared() {
  drawListbox($("list"), { name: "row", rows: prompts.rows, tall: ROW_HEIGHT, chosen: prompts.rows.indexOf(prompts.chosen), row: sharedRow });
}

function sharedRow(prompt) {
  const means = [...prompt.last].map(([r, mean]) => el("span", {}, runKey(r), el("span", { className: "unseen" }, `${runName(r)} `), number(mean, 3)));
  const split = data.splits.length > 1 ? el("span", { className: "tag" }, words(prompt.split)) : null;
  const gap = el("span", { className: "end muted" }, prompt.gap === null ? "" : `apart ${number(prompt.gap, 3)}`);
  const properties = { className: "row", title: readableString(prompt.title), onclick: () => choosePrompt(prompt) };
  return el("div", properties, el("div", { className: "row-title" }, titleNode(prompt.title)), el("div", { className: "row-line" }, ...means, split, gap));
}

// -- the attempts of each run at the prompt, side by side

async function drawAttempts() {
  const turn = ++prompts.drawing;
  remember();
  const prompt = prompts.chosen;
  if (!prompt || !prompts.rows.length) return $("group").replaceChildren(el("p", { className: "empty" }, prompts.all.length ? "No prompt matches." : "No prompt fits in the page."));
  const shown = [...prompt.runs].map(([r, groups]) => [r, groups[state.at[r]]]);
  const loaded = await Promise.all(shown.map(([, g]) => texts(g)));
  const marked = await Promise.all(loaded.map((group) => hits(prompts.source, textsOf(group))));
  if (turn !== prompts.drawing) return;
  const base = loaded[0].attempts[0];
  const every = loaded.flatMap((group) => group.attempts);
  const [most, names] = [largestAdvantage(every), stepNames(every)];
  const credit = (attempt) => (state.credit ? creditRanges(attempt, most, names) : []);
  const columns = shown.map(([r, g], i) => runColumn(prompt, r, g, loaded[i], marked[i], { base, credit }));
  const focused = document.activeElement.id;
  const node = el("div", { id: "columns", className: "runs" }, ...columns);
  $("group").replaceChildren(promptHead(prompt, every), taskNode(loaded[0], marked[0]), node);
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
  const name = el("h3", {}, runKey(r), el("bdi", {}, runName(r)));
  const dots = el("span", { className: "dots" }, ...rewardsOf(g).map((reward) => dot(reward)));
  const mean = el("span", { className: "end" }, `mean ${number(meanReward(g), 3)}`);
  const head = el("div", { className: "run-head" }, name, el("div", { className: "row-line" }, dots, mean), whenNode(prompt, r, g));
  const before = group.prompt.length + group.reference.length;
  const attempts = group.attempts.map((attempt, i) => attemptNode(attempt, marked[before + i], marks));
  return el("article", { className: "of-run", "aria-label": runName(r) }, head, ...attempts);
}

// Return the step that a run's column shows, and the controls that lead to its other steps.
function whenNode(prompt, r, g) {
  const groups = prompt.runs.get(r);
  const times = prompt.times[r];
  const step = data.step[g];
  const left = times - groups.length;
  const sampled = `${count(times, "time")} sampled${left ? `, ${number(groups.length)} of them here` : ""}`;
  const line = el("div", { className: "when" }, el("span", {}, `step ${number(step)}`), el("span", { className: "muted" }, sampled));
  if (groups.length < 2) return line;
  const go = (i) => [(state.at[r] = i), drawAttempts()];
  const button = (id, name, i) => {
    return el("button", { type: "button", className: "choice", id: `${id}-${r}`, "aria-pressed": state.at[r] === i, onclick: () => go(i) }, name);
  };
  const range = { type: "range", id: `when-${r}`, min: 0, max: groups.length - 1, step: 1, value: state.at[r] };
  const labels = { "aria-label": `Step of ${runName(r)}`, "aria-valuetext": `step ${step}` };
  const slider = groups.length > 2 ? el("input", { ...range, ...labels, oninput: ({ target }) => go(Number(target.value)) }) : "";
  line.append(button("first", "First", 0), slider, button("last", "Last", groups.length - 1));
  return line;
}

// Return the node of an attempt. Differences are marked against the attempt `base`. credit(attempt) returns ranges for
// paint().
function attemptNode(attempt, found, { base, credit }) {
  const head = el("div", { className: "total" }, dot(attempt.reward), el("b", {}, number(attempt.reward)), el("span", { className: "muted" }, `#${attempt.attempt}`));
  if (attempt === base) head.append(el("span", { className: "tag" }, "the others' differences are from this"));
  if (attempt.truncated) head.append(el("span", { className: "outcome" }, "truncated"));
  for (const [name, score, outcome] of attempt.parts) {
    if (outcome && outcome !== "ok") head.append(el("span", { className: `outcome ${outcome}`, title: name }, outcome));
    else if (attempt.parts.length > 1) head.append(el("span", { className: "muted" }, el("bdi", {}, name), ` ${number(score)}`));
  }
  const body = el("div", { className: "body" });
  const compared = state.diff && base.text !== attempt.text;
  fillBody(body, attempt, [...credit(attempt), ...found], compared ? base : null, "the first");
  return el("div", { className: "one" }, head, body);
}

// -- the address: #axis=tokens&metric=kl&prompt=3, with each part of the view that is not as the page opens

// What an address does not name is as the page opens.
const VIEW = {
  axis: option("axis"),
  mean: box("mean", true),
  without: [() => [...curves.hidden].sort().join("."), hideRuns],
  split: option("split"),
  order: option("order"),
  text: query,
  regex: box("regex", false),
  diff: flag("diff", true),
  thinking: flag("unfold", false),
  credit: flag("credit", true),
};

function hideRuns(text) {
  const hidden = text.split(".").filter(Boolean).map(Number);
  curves.hidden = new Set(hidden.filter((r) => r in data.head.runs));
  document.querySelectorAll("#outcomes input").forEach((box, r) => { box.checked = !curves.hidden.has(r); });
}

// Write the address. `prompt` is the number of the prompt in this page. `at` has, for each run, the index of the group
// that is shown; it is left out if all show their last one.
function remember() {
  const place = new URLSearchParams();
  for (const [key, [value]] of Object.entries(VIEW)) if (value()) place.set(key, value());
  const { first } = data.head;
  if (curves.names.join() !== first.join()) for (const name of curves.names.length ? curves.names : [""]) place.append("metric", name);
  const { chosen, rows } = prompts;
  const moved = chosen && [...chosen.runs].some(([r, groups]) => state.at[r] !== groups.length - 1);
  if (moved || (chosen && chosen !== rows[0])) place.set("prompt", chosen.i);
  if (moved) place.set("at", [...chosen.runs.keys()].map((r) => state.at[r]).join("."));
  setAddress(place);
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1));
  for (const [key, [, set]] of Object.entries(VIEW)) {
    set("");
    set(place.get(key) || "");
  }
  curves.names = place.has("metric") ? [...new Set(place.getAll("metric"))].filter((name) => data.head.metrics.includes(name)) : data.head.first.slice();
  prompts.chosen = null;
  const prompt = prompts.all[Number(place.get("prompt") || -1)];
  if (prompt) showLast(prompt);
  const at = (place.get("at") || "").split(".").map(Number);
  [...(prompt?.runs ?? [])].forEach(([r, groups], i) => { if (at[i] in groups) state.at[r] = at[i]; });
}

start().catch((error) => {
  $("note").hidden = false;
  $("note").open = true;
  $("notes").append(el("li", {}, error.message));
});
