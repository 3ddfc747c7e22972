// -- the state of the page, and what changes it

const state = {
  split: "train",
  step: 0,
  scope: "step",
  scopeBefore: "", // of a search, which covers all steps
  searching: false,
  group: -1,
  last: -1, // in view before a filter left nothing
  rows: [],
  filters: { verdict: "", alarm: "", differs: "", kept: "", measure: "", low: null, high: null },
  sort: "", // a key of MEASURES
  down: false, // the largest first
  source: "", // of the pattern searched for
  diff: false,
  pairDiff: true, // where two are pinned
  unfold: false,
  credit: true, // of tokens and steps is shown, where there is any
  view: "", // "follow" or "prompts" in the place of the group
  rendered: false, // as Markdown and mathematics
  apart: false, // equal attempts
  moreTools: false, // the rare ones are unfolded
  pins: [],
  linked: null, // group and pins of an address that is being opened
};

const paired = () => state.pins.length === 2 || state.view === "follow";
const diffOn = () => (paired() ? state.pairDiff : state.diff);

// -- from filters to rows

function refresh() {
  stopSearch();
  scopeOfSearch();
  readFilters();
  const found = matching();
  const { source, problem } = searchedFor();
  state.source = source;
  if (!source) return setRows(found, problem);
  find(found);
}

// A search covers all steps until a scope is chosen for it. After it the scope is again what it was.
function scopeOfSearch() {
  const searching = Boolean($("query").value);
  if (searching === state.searching) return;
  const { scope, scopeBefore } = state;
  state.searching = searching;
  if (searching) setScope("all");
  else if (scopeBefore) setScope(scopeBefore);
  state.scopeBefore = searching ? scope : "";
}

function find(found) {
  setRows([], `Searching ${count(found.length, "group")}`, false);
  $("cancel").hidden = !found.length;
  if (!found.length) return setRows([], "");
  let drawn = 0;
  startSearch(found, state.source, (matches, seen, problem) => {
    const done = seen === found.length || problem;
    const now = performance.now();
    if (!done && now - drawn < 100) return;
    drawn = now;
    const told = problem ? `Search stopped: ${problem}.` : done ? "" : `Searched ${number(seen)} of ${count(found.length, "group")}`;
    setRows(matches.slice(), told, Boolean(done));
    if (done) $("cancel").hidden = true;
  });
}

function cancel() {
  if ($("cancel").hidden) return;
  stopSearch();
  $("cancel").hidden = true;
  setRows(state.rows, "Search cancelled.");
}

// Show these rows; the group in view stays until they are final, and then if it is one of them.
function setRows(rows, told, final = true) {
  state.rows = sorted(rows);
  const all = data.steps[state.split].length > 1 && state.scope === "all" ? "over all steps" : "here";
  $("status").textContent = `${count(rows.length, "group")} ${all}. ${told}`.trim();
  drawList();
  if (!final) return;
  $("cancel").hidden = true;
  const next = [state.group, state.last].find((g) => rows.includes(g)) ?? state.rows[0] ?? -1;
  if (next !== state.group) return select(next);
  showStep();
  drawGroup();
}

function readFilters() {
  const value = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));
  const picked = Object.fromEntries(["verdict", "alarm", "differs", "kept", "measure"].map((id) => [id, $(id).value]));
  state.filters = { ...picked, low: value("reward-min"), high: value("reward-max") };
  tellMoreFilters();
}

// How many of the folded filters are in use.
function tellMoreFilters() {
  const { alarm, kept, low, high } = state.filters;
  const used = [alarm, kept, low !== null || high !== null].filter(Boolean).length;
  $("more-filters").querySelector("summary").textContent = used ? `More filters (${used} in use)` : "More filters";
}

function emptyFilters() {
  for (const id of ["verdict", "alarm", "differs", "kept", "measure", "reward-min", "reward-max", "query"]) $(id).value = "";
}

function clearFilters() {
  emptyFilters();
  refresh();
}
