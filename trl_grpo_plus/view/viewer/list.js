// Draws the list of groups: filters, searches and sorts the groups, draws their rows, and fills the controls. It needs
// base.js, text.js and search.js. It reads and writes the `state` of page.js.

// -- from the controls to rows

const FILTERS = ["verdict", "alarm", "differs", "kept", "measure"]; // ids of <select>
const LIMITS = ["reward-min", "reward-max"]; // ids of number fields

function refresh() {
  stopSearch();
  scopeOfSearch();
  readFilters();
  const found = matching();
  const { source, problem } = searchedFor();
  state.source = source;
  if (!source) return setRows(found, problem);
  searchRows(found);
}

// Widen the scope to all steps when a search begins, and restore the earlier scope when it ends. setScope() clears
// `scopeBefore`: after the reader chose a scope during a search, nothing is restored.
function scopeOfSearch() {
  const searching = Boolean($("query").value);
  if (searching === state.searching) return;
  const { scope, scopeBefore } = state;
  state.searching = searching;
  if (searching) setScope("all");
  else if (scopeBefore) setScope(scopeBefore);
  state.scopeBefore = searching ? scope : "";
}

function readFilters() {
  const value = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));
  const choices = Object.fromEntries(FILTERS.map((id) => [id, $(id).value]));
  state.filters = { ...choices, low: value("reward-min"), high: value("reward-max") };
  showFiltersInUse();
}

// Show how many of the folded filters are in use, and the clear button if there is anything to clear.
function showFiltersInUse() {
  const { alarm, kept, low, high } = state.filters;
  $("clear").hidden = ![...FILTERS, ...LIMITS, "query"].some((id) => $(id).value);
  const used = [alarm, kept, low !== null || high !== null].filter(Boolean).length;
  $("more-filters").querySelector("summary").textContent = used ? `More filters (${used} in use)` : "More filters";
}

function emptyFilters() {
  for (const id of [...FILTERS, ...LIMITS, "query"]) $(id).value = "";
}

function clearFilters() {
  emptyFilters();
  $("list").focus({ preventScroll: true }); // refresh() hides the clear button, which has the focus
  refresh();
}

function searchRows(found) {
  setRows([], `Searching ${count(found.length, "group")}`, false);
  $("cancel").hidden = !found.length;
  if (!found.length) return setRows([], "");
  let drawn = 0;
  startSearch(found, state.source, (matches, searched, problem) => {
    const done = searched === found.length || problem;
    const now = performance.now();
    if (!done && now - drawn < 100) return;
    drawn = now;
    const message = problem ? `Search stopped: ${problem}.` : done ? leftOut() : `Searched ${number(searched)} of ${count(found.length, "group")}`;
    setRows(matches.slice(), message, Boolean(done));
    if (done) $("cancel").hidden = true;
  });
}

// Of a long run a page has some groups only.
function leftOut() {
  const left = data.head.groups_total - data.n;
  return left > 0 ? `Not searched: ${count(left, "group")} that did not fit in the page.` : "";
}

function cancel() {
  if ($("cancel").hidden) return;
  stopSearch();
  $("cancel").hidden = true;
  setRows(state.rows, "Search cancelled.");
}

// Show these rows. The group in view does not change before the rows are final. Then it stays if it is one of them; if
// not, the group that was last in view, or the first row, is selected.
function setRows(rows, message, final = true) {
  state.rows = sorted(rows);
  const all = data.steps[state.split].length > 1 && state.scope === "all" ? "over all steps" : "here";
  $("status").textContent = `${count(rows.length, "group")} ${all}. ${message}`.trim();
  $("rows").style.height = `${state.rows.length * ROW_HEIGHT}px`;
  drawRows();
  if (!final) return;
  $("cancel").hidden = true;
  const next = [state.group, state.last].find((g) => rows.includes(g)) ?? state.rows[0] ?? -1;
  if (next !== state.group) return select(next);
  showStep();
  drawGroup();
}

function matching() {
  const { verdict, alarm, differs, kept, low, high } = state.filters;
  const found = [];
  for (let g = 0; g < data.n; g++) {
    if (data.split[g] !== state.split || (state.scope === "step" && data.step[g] !== state.step)) continue;
    if (verdict && data.verdict[g] !== verdict) continue;
    if (alarm && !(alarm === "*" ? data.alarms[g].length : data.alarms[g].includes(alarm))) continue;
    if (!disagrees(g, differs)) continue;
    if (kept && !(kept === "*" ? data.kept[g] === 1 : data.kept[g] === 0 && data.reason[g] === kept)) continue;
    if ((low !== null || high !== null) && !inRange(g, state.filters)) continue;
    found.push(g);
  }
  return found;
}

const disagrees = (g, kind) => !kind || data.differs[g].includes(Number(kind));

// Return whether the group's value of `measure` is between `low` and `high`. Without a measure: whether any attempt's
// reward is.
function inRange(g, { measure, low, high }) {
  const values = measure ? [MEASURES[measure][1](g)] : rewardsOf(g);
  return values.some((value) => value !== null && (low === null || value >= low) && (high === null || value <= high));
}

// -- what groups are sorted and filtered by

// Return the logged step of the first group in this page with the same prompt.
const firstSeen = (g) => data.step[promptGroups().get(keyOfPrompt(g))[0]];

// name -> [label, g -> the group's value or null, whether the largest values come first]
const MEASURES = {
  mean: ["mean reward", meanReward, false],
  spread: ["spread of rewards", (g) => spread(scoredRewards(g)), true],
  best: ["best reward", (g) => largest(scoredRewards(g)), false],
  worst: ["worst reward", (g) => least(scoredRewards(g)), false],
  tokens: ["mean length", (g) => data.tokens?.[g] ?? null, true],
  entropy: ["entropy of answers", (g) => data.entropy?.[g] ?? null, true],
  first: ["step first seen", firstSeen, false],
};

const measured = (name) => !["tokens", "entropy"].includes(name) || (data[name] || []).some((value) => value !== null);

// Return `rows` sorted by state.sort. Groups without a value come last. Groups with equal values keep the order in
// which they were sampled.
function sorted(rows) {
  if (!state.sort) return rows;
  const value = MEASURES[state.sort][1];
  const values = new Map(rows.map((g) => [g, value(g)]));
  const sign = state.down ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return sign * (x - y) || a - b;
  });
}

function setSort(name, down = name ? MEASURES[name][2] : false) {
  Object.assign(state, { sort: name, down });
  showSort();
  if ($("cancel").hidden) setRows(ascending(state.rows), ""); // a search in progress sorts its results itself
  $("list").scrollTop = 0;
}

function showSort() {
  $("sort").value = state.sort;
  $("sort-way").hidden = !state.sort;
  $("sort-way").textContent = state.down ? "↓" : "↑";
  $("sort-way").setAttribute("aria-label", state.down ? "Largest first" : "Smallest first");
  $("sort-way").title = state.down ? "Largest first; turn round" : "Smallest first; turn round";
}

// -- rows

const ROW_HEIGHT = 68; // px, as in style.css
const MOST_DOTS = 36; // dots in a row

function drawRows() {
  drawListbox($("list"), { name: "row", rows: state.rows, tall: ROW_HEIGHT, chosen: state.rows.indexOf(state.group), row: drawRow });
}

function showRow() {
  const at = state.rows.indexOf(state.group);
  if (at >= 0) showInList($("list"), at, ROW_HEIGHT);
}

function drawRow(g) {
  const onclick = () => [leaveLists(), select(g), revealGroup()];
  return el("div", { className: "row", title: readableString(data.title[g]), onclick }, rowTitle(g), rowScores(g), rowFacts(g));
}

function rowTitle(g) {
  const step = state.scope === "all" && data.steps[state.split].length > 1 ? el("span", { className: "muted" }, `step ${data.step[g]} `) : null;
  return el("div", { className: "row-title" }, step, titleNode(data.title[g]));
}

function rowScores(g) {
  const rewards = rewardsOf(g);
  const size = rewards.length <= 12 ? "" : rewards.length <= 16 ? "small" : "bars";
  const dots = el("span", { className: `dots ${size}` }, ...rewards.slice(0, MOST_DOTS).map((r) => dot(r)));
  if (rewards.length > MOST_DOTS) dots.append(` +${rewards.length - MOST_DOTS}`);
  return el("div", { className: "row-line" }, dots, el("span", { className: "end" }, `mean ${number(meanReward(g), 3)}  ${sortedValue(g)}`));
}

// Return the name and value of what the list is sorted by; for sort orders without a short name here, the best reward.
function sortedValue(g) {
  const names = { spread: "spread", worst: "min", tokens: "tokens", entropy: "entropy", first: "first" };
  return names[state.sort] ? `${names[state.sort]} ${number(MEASURES[state.sort][1](g), 3)}` : `max ${number(largest(scoredRewards(g)), 3)}`;
}

function rowFacts(g) {
  const line = el("div", { className: "row-line" }, badge(data.verdict[g]));
  if (data.round[g]) line.append(el("span", { className: "tag" }, `round ${data.round[g]}`));
  if (data.batch[g]) line.append(el("span", { className: "tag" }, `batch ${data.batch[g]}`));
  if (data.kept[g] !== null) line.append(el("span", { className: "muted" }, data.kept[g] ? "trained on" : words(data.reason[g] || "not trained on")));
  for (const name of data.alarms[g]) line.append(el("span", { className: "alarm-mark" }, words(name)));
  line.append(...rescoredMarks(g));
  return line;
}

const treatment = (g) => (data.kept[g] ? "trained on" : `not trained on: ${words(data.reason[g] || "no reason given")}`);

function badge(verdict) {
  return verdict ? el("span", { className: `badge ${verdict}` }, words(verdict)) : null;
}

// -- the controls' choices, and the legend of colours

// Fill a <select> with `choices`, [[value, name], ...]; its label is hidden if there is nothing to choose. A live page
// calls this again when groups arrive: the chosen option stays chosen.
function options(id, choices) {
  const { value } = $(id);
  $(id).closest("label").hidden = choices.length < 2;
  if (JSON.stringify(choices) === JSON.stringify([...$(id).options].map((option) => [option.value, option.text]))) return;
  $(id).replaceChildren(...choices.map(([value, name]) => el("option", { value }, name)));
  if (choices.some(([choice]) => choice === value)) $(id).value = value;
}

function fillControls() {
  const used = (list) => [...new Set(list)].filter(Boolean).sort();
  const named = (list) => list.map((value) => [value, words(value)]);
  options("split", data.splits.map((split) => [split, split]));
  const verdicts = used(data.verdict);
  options("verdict", verdicts.length ? [["", "any"], ...named(verdicts)] : []);
  const alarms = used(data.alarms.flat());
  options("alarm", alarms.length ? [["", "–"], ["*", "any alarm"], ...named(alarms)] : []);
  const reasons = used(data.reason);
  options("kept", data.kept.some((kept) => kept !== null) ? [["", "–"], ["*", "yes"], ...reasons.map((r) => [r, `no: ${words(r)}`])] : []);
}

function fillSort() {
  const choices = Object.entries(MEASURES).filter(([name]) => measured(name)).map(([name, [label]]) => [name, label]);
  options("sort", [["", "as sampled"], ...choices]);
  options("measure", [["", "any reward"], ...choices]);
  $("sort").addEventListener("input", () => setSort($("sort").value));
  $("sort-way").addEventListener("click", () => setSort(state.sort, !state.down));
  $("worst").addEventListener("click", goToWorst);
  showSort();
}

function fillRescored() {
  const { rescored } = data.head;
  if (!rescored) return;
  const groups = rescored.words.map((_, kind) => data.differs.filter((kinds) => kinds.includes(kind)).length);
  const choices = rescored.words.map((name, kind) => [String(kind), `${name} (${count(groups[kind], "group")})`]);
  options("differs", [["", "–"], ...choices.filter((_, kind) => groups[kind])]);
  $("note").after(el("p", { id: "rescored" }, rescored.told));
  setScope("all");
  $("differs").value = usualDiffers();
}

// Return the value of the filter "differs" when the page opens: "0" shows all groups that disagree, if there are any.
const usualDiffers = () => (data.differs?.some((kinds) => kinds.length) ? "0" : "");

// Show which reward each colour stands for; with many distinct rewards, from which reward on each colour begins.
function drawLegend() {
  const many = data.range[1] > data.scale[data.scale.length - 1];
  const stops = data.scale.map((low, i) => {
    const swatch = el("span", { className: "swatch" });
    swatch.style.background = colour(low, data.scale);
    const upTo = data.scale[i + 1] ?? data.range[1];
    const title = many ? `from ${number(low)} ${i + 1 < data.scale.length ? "to below" : "to"} ${number(upTo)}` : "";
    return el("span", { className: "stop", title }, swatch, many && !i ? `${number(low, 3)} …` : many ? `≥ ${number(low, 3)}` : number(low, 3));
  });
  const total = data.head.note ? "Sum" : "Reward";
  const rule = many ? ` (to ${number(data.range[1], 3)}; each colour about as many distinct values) ` : " ";
  $("legend").replaceChildren(`${total} `, ...stops.flatMap((stop) => [stop, " "]), rule, el("span", { className: "stop" }, dot(null), "unscored"));
}
