// -- the state of the page, and what changes it

const state = {
  split: "train",
  step: 0,
  scope: "step",
  group: -1,
  last: -1, // in view before a filter left nothing
  rows: [],
  filters: { verdict: "", alarm: "", kept: "", low: null, high: null },
  source: "", // of the pattern searched for
  diff: false,
  pairDiff: true, // where two are pinned
  unfold: false,
  credit: true, // of tokens and steps is shown, where there is any
  past: false, // the history of its prompt is shown
  pins: [],
};

const diffOn = () => (state.pins.length === 2 ? state.pairDiff : state.diff);

// -- from filters to rows

function refresh() {
  stopSearch();
  readFilters();
  const found = matching();
  const query = $("query").value;
  state.source = "";
  $("query").removeAttribute("aria-invalid");
  if (!query) return setRows(found, "");
  try {
    state.source = pattern(query, $("regex").checked).source;
  } catch (error) {
    $("query").setAttribute("aria-invalid", "true");
    return setRows(found, `Not a regular expression: ${error.message.split(": ").pop()}.`);
  }
  find(found);
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
  state.rows = rows;
  const all = data.steps[state.split].length > 1 && state.scope === "all" ? "over all steps" : "here";
  $("status").textContent = `${count(rows.length, "group")} ${all}. ${told}`.trim();
  drawList();
  if (!final) return;
  $("cancel").hidden = true;
  const next = [state.group, state.last].find((g) => rows.includes(g)) ?? rows[0] ?? -1;
  if (next !== state.group) return select(next);
  showStep();
  drawGroup();
}

function readFilters() {
  const value = (id) => ($(id).value.trim() === "" ? null : Number($(id).value));
  const picked = { verdict: $("verdict").value, alarm: $("alarm").value, kept: $("kept").value };
  state.filters = { ...picked, low: value("reward-min"), high: value("reward-max") };
}

function emptyFilters() {
  for (const id of ["verdict", "alarm", "kept", "reward-min", "reward-max", "query"]) $(id).value = "";
}

function clearFilters() {
  emptyFilters();
  refresh();
}

// -- moving about

function select(g) {
  if (g !== state.group) state.pins = [];
  state.group = g;
  if (g >= 0) Object.assign(state, { last: g, step: data.step[g] });
  showStep();
  showRow();
  drawRows();
  drawGroup();
  remember();
}

function goToStep(step) {
  state.step = step;
  if (state.scope === "step") return refresh();
  const after = state.rows.find((g) => data.step[g] >= step);
  if (after !== undefined) select(after);
}

function moveStep(by) {
  const steps = state.scope === "step" ? data.steps[state.split] : state.rows.map((g) => data.step[g]);
  const next = by > 0 ? steps.find((step) => step > state.step) : steps.findLast((step) => step < state.step);
  if (next !== undefined) goToStep(next);
}

function moveGroup(by) {
  const at = state.rows.indexOf(state.group) + by;
  if (at >= 0 && at < state.rows.length) select(state.rows[at]);
}

function setSplit(split) {
  state.split = split;
  $("split").value = split;
  $("step").max = data.steps[split].length - 1;
  state.step = nearestStep(state.step);
  $("step-field").hidden = $("scope").hidden = data.steps[split].length < 2;
}

function setScope(scope) {
  state.scope = scope;
  document.querySelector(`input[name=scope][value=${scope}]`).checked = true;
}

function showStep() {
  const steps = data.steps[state.split];
  $("step").value = steps.indexOf(state.step);
  $("step").setAttribute("aria-valuetext", `step ${state.step}`);
  $("step-shown").textContent = `${state.step} (${steps[0]} – ${steps[steps.length - 1]})`;
  markStep();
}

function goTo(split, step, key) {
  setSplit(split);
  const g = findGroup(split, step, key);
  Object.assign(state, { step: nearestStep(step), group: -1, last: g });
  refresh();
  return g >= 0;
}

function goToAlarm({ step, message, groups }) {
  emptyFilters();
  setScope("step");
  const key = groups.map((group) => group.join(".")).find((place) => findGroup("train", step, place) >= 0);
  const found = goTo("train", step, key);
  const missing = found ? "" : groups.length ? " Its groups are not in this page." : " It names no group.";
  $("status").textContent = `Step ${step}: ${message}${missing}`;
}

// Filters that would hide it give way.
function visit(g) {
  if (state.rows.includes(g)) return select(g);
  emptyFilters();
  goTo(data.split[g], data.step[g], keyOf(g));
}

// -- the address: #split=train&step=3&group=0.0.1

function remember() {
  const place = new URLSearchParams({ split: state.split, step: state.step });
  if (state.group >= 0) place.set("group", keyOf(state.group));
  try {
    history.replaceState(null, "", `#${place}`);
  } catch {
    // A frame without an address of its own.
  }
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1));
  const split = data.splits.includes(place.get("split")) ? place.get("split") : data.splits[0];
  goTo(split, place.has("step") ? Number(place.get("step")) : data.steps[split][0], place.get("group"));
}

// -- the group in view

function toggleDiff() {
  if (state.pins.length === 2) state.pairDiff = !state.pairDiff;
  else state.diff = !state.diff;
  redraw();
}

function toggleFold() {
  state.unfold = !state.unfold;
  redraw();
}

function toggleCredit() {
  state.credit = !state.credit;
  redraw();
}

function togglePast() {
  state.past = !state.past;
  redraw();
}

function togglePin(attempt) {
  const has = state.pins.includes(attempt);
  state.pins = has ? state.pins.filter((pin) => pin !== attempt) : [...state.pins, attempt].slice(-2);
  redraw();
}

function unpin() {
  state.pins = [];
  redraw();
}

// Focus stays on the same button or text.
async function redraw() {
  const active = document.activeElement;
  const attempt = active.closest?.(".attempt")?.dataset.attempt;
  const id = active.id || (attempt && `pin-${attempt}`);
  await drawGroup();
  if (id && $(id)) $(id).focus({ preventScroll: true });
}

function pinNext() {
  const focused = document.activeElement.closest?.(".attempt");
  if (focused) return togglePin(Number(focused.dataset.attempt));
  const all = [...document.querySelectorAll("#columns .attempt")].map((node) => Number(node.dataset.attempt));
  const next = all.find((attempt) => !state.pins.includes(attempt));
  if (next !== undefined && state.pins.length < 2) togglePin(next);
}
