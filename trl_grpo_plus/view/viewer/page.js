// Starts the page of a run and holds its state. It moves to groups, steps and alarms on clicks, keys and addresses, and
// writes the address. It is loaded last, and needs all other files except compare_runs.js and compare.js.

// What is in view, and how it is shown.
const state = {
  split: "train",
  step: 0,
  scope: "step",
  scopeBefore: "", // the scope before a search, which covers all steps
  searching: false,
  group: -1,
  last: -1, // the group that was last in view, kept while no group matches the filters
  rows: [],
  filters: { verdict: "", alarm: "", differs: "", kept: "", measure: "", low: null, high: null },
  sort: "", // a key of MEASURES
  down: false, // whether the largest values come first
  source: "", // the source of the regular expression that is searched for
  diff: false,
  pairDiff: true, // like `diff`, while two attempts are pinned
  unfold: false,
  credit: true, // whether the credit of tokens and steps is shown
  view: "", // "follow" or "prompts" if that view is shown in the place of the group
  rendered: false, // whether texts are shown as Markdown and mathematics
  apart: false, // whether equal attempts have a column each
  moreTools: false, // whether the fold "More" is open
  pins: [],
  linked: null, // {g, pins} of the address that is being opened
};

// -- start

async function start() {
  const index = await unpackIndex();
  fillHead();
  if (data.head.live) goLive(index); // live.js is there only if the page is served
  if (!data.n && data.head.live) return;
  if (!data.n) throw new Error("There are no groups to show.");
  fillAlarms();
  fillControls();
  fillSort();
  drawLegend();
  if (data.head.panel) setScope("all");
  fillRescored();
  listen();
  fillAbout();
  fillGiven();
  drawCurves(data.head.curves);
  fillPicker();
  fillCalibration();
  recall();
}

function listen() {
  listenToList(refresh, drawRows);
  $("query").addEventListener("keydown", (event) => event.key === "Enter" && $("list").focus());
  $("query").addEventListener("input", () => (state.rendered = false)); // hits are marked only in the plain text
  for (const id of [...FILTERS, ...LIMITS, "regex"]) $(id).addEventListener("input", refresh);
  $("split").addEventListener("input", () => {
    setSplit($("split").value);
    refresh();
  });
  $("step").addEventListener("input", () => goToStep(data.steps[state.split][$("step").value]));
  $("step-back").addEventListener("click", () => moveStep(-1));
  $("step-on").addEventListener("click", () => moveStep(1));
  $("all-steps").addEventListener("input", () => {
    setScope($("all-steps").checked ? "all" : "step");
    refresh();
  });
  $("cancel").addEventListener("click", cancel);
  $("prompts").addEventListener("click", () => toggleView("prompts"));
  $("clear").addEventListener("click", clearFilters);
  $("keys").addEventListener("click", () => $("help").showModal());
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", recall);
}

// -- moving to groups, steps, splits and alarms, and to the worst group and attempt

function select(g) {
  if (g !== state.group) state.pins = g >= 0 && state.linked?.g === g ? state.linked.pins : [];
  if (g >= 0) state.linked = null;
  state.group = g;
  if (g >= 0) Object.assign(state, { last: g, step: data.step[g] });
  showStep();
  showRow();
  drawRows();
  drawGroup();
}

// Scroll to the group if it is below the list and out of sight, as on a phone.
function revealGroup() {
  const { top } = $("group").getBoundingClientRect();
  if (top > innerHeight / 2 && top >= $("list").getBoundingClientRect().bottom) $("group").scrollIntoView();
}

// Show group `g`; if the filters hide it, they are cleared.
function visit(g) {
  if (state.rows.includes(g)) return select(g);
  emptyFilters();
  goTo(data.split[g], data.step[g], keyOf(g));
}

function moveGroup(by) {
  leaveLists();
  const at = state.rows.indexOf(state.group) + by;
  if (at >= 0 && at < state.rows.length) select(state.rows[at]);
}

function goToStep(step) {
  leaveLists();
  state.step = step;
  if (state.scope === "step") return refresh();
  const next = least(state.rows.map((g) => data.step[g]).filter((other) => other >= step));
  if (next !== null) select(state.rows.find((g) => data.step[g] === next));
}

function moveStep(by) {
  const steps = state.scope === "step" ? data.steps[state.split] : ascending(state.rows.map((g) => data.step[g]));
  const next = by > 0 ? steps.find((step) => step > state.step) : steps.findLast((step) => step < state.step);
  if (next !== undefined) goToStep(next);
}

const nearestStep = (wanted) => nearest(data.steps[state.split], wanted);

function setSplit(split) {
  state.split = split;
  $("split").value = split;
  $("step").max = data.steps[split].length - 1;
  state.step = nearestStep(state.step);
  $("step-field").hidden = $("scope").hidden = data.steps[split].length < 2;
}

function setScope(scope) {
  Object.assign(state, { scope, scopeBefore: "" });
  $("all-steps").checked = scope === "all";
}

function showStep() {
  const steps = data.steps[state.split];
  $("step").value = steps.indexOf(state.step);
  const [now, first, last] = [state.step, steps[0], steps[steps.length - 1]];
  $("step").setAttribute("aria-valuetext", `step ${now}`);
  $("step-shown").textContent = `${now} (${first} – ${last})`;
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
  leaveLists();
  emptyFilters();
  setScope("step");
  const key = groups.map((group) => group.join(".")).find((place) => findGroup("train", step, place) >= 0);
  const found = goTo("train", step, key);
  const missing = found ? "" : groups.length ? " Its groups are not in this page." : " It names no group.";
  announce(`Step ${step}: ${alarmText(message)}${missing}`);
}

const isLive = (g) => (data.verdict[g] ? data.verdict[g] === "alive" : spread(scoredRewards(g)) > 0);

// Select the live group with the lowest mean reward in the list.
function goToWorst() {
  const alive = state.rows.filter((g) => isLive(g) && meanReward(g) !== null);
  if (!alive.length) return announce("No live group in the list.");
  leaveLists();
  select(alive.reduce((a, b) => (meanReward(b) < meanReward(a) ? b : a)));
}

// Scroll to the attempt with the lowest reward, and focus its text.
function goToWorstAttempt() {
  const columns = [...document.querySelectorAll("#columns .attempt[data-reward]")];
  const worst = columns.reduce((a, b) => (a && Number(a.dataset.reward) <= Number(b.dataset.reward) ? a : b), null);
  if (!worst) return announce("No attempt has a reward.");
  worst.scrollIntoView({ inline: "nearest", block: "nearest" });
  worst.querySelector(".body").focus({ preventScroll: true });
}

function announce(text) {
  $("status").textContent = text;
}

// -- keys

const KEYS = {
  j: () => moveGroup(1),
  ArrowDown: () => moveGroup(1),
  k: () => moveGroup(-1),
  ArrowUp: () => moveGroup(-1),
  l: () => moveStep(1),
  ArrowRight: () => moveStep(1),
  h: () => moveStep(-1),
  ArrowLeft: () => moveStep(-1),
  "/": () => $("query").focus(),
  d: toggleDiff,
  t: () => flip("unfold"),
  c: toggleCredit,
  p: pinNext,
  f: () => toggleView("follow"),
  o: () => toggleView("prompts"),
  m: toggleRendered,
  e: () => flip("apart"),
  w: goToWorst,
  W: goToWorstAttempt,
  "?": () => $("help").showModal(),
};

// Keys that do nothing in a view, because it does not show what they act on.
const IDLE_KEYS = { follow: [..."pceW"], prompts: [..."pceWdtm"] };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "Escape") return escape();
  const typing = event.target.matches("input:not([type=checkbox], [type=radio], [type=range]), select");
  // Arrow keys scroll a text that has the focus.
  const scrolling = event.key.startsWith("Arrow") && event.target.matches("input, .body, .prompt, .reference");
  if (typing || scrolling || !Object.hasOwn(KEYS, event.key) || IDLE_KEYS[state.view]?.includes(event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

function escape() {
  if (document.activeElement === $("query") && !$("query").value) return $("query").blur();
  if (!$("cancel").hidden) return cancel();
  if (state.view && document.activeElement !== $("query")) return setView("");
  if (state.pins.length && document.activeElement !== $("query")) return unpin();
  if ($("query").value) {
    $("query").value = "";
    refresh();
  }
  $("query").blur();
}

// -- the address: #split=train&step=3&group=0.0.1, and each part of the view that is not as the page opens

const bound = (id) => [() => $(id).value, (text) => (text === "" || Number.isFinite(Number(text))) && ($(id).value = text)];

// What an address does not name stays unchanged.
const VIEW = {
  scope: [() => (state.scope === usualScope() ? "" : state.scope), (text) => ["step", "all"].includes(text) && setScope(text)],
  verdict: option("verdict"),
  alarm: option("alarm"),
  differs: [() => ($("differs").value === usualDiffers() ? "" : $("differs").value || "any"), recallDiffers],
  kept: option("kept"),
  by: option("measure"),
  min: bound("reward-min"),
  max: bound("reward-max"),
  text: query,
  regex: box("regex", false),
  sort: [() => state.sort && `${state.sort}.${state.down ? "down" : "up"}`, recallSort],
  diff: flag("diff", false),
  pair: flag("pairDiff", true),
  rendered: flag("rendered", false),
  apart: flag("apart", false),
  thinking: flag("unfold", false),
  credit: flag("credit", true),
  view: [() => state.view, (text) => ["follow", "prompts"].includes(text) && (state.view = text)],
};

const usualScope = () => (data.head.panel || data.head.rescored || $("query").value ? "all" : "step");

function recallDiffers(text) {
  const [, set] = option("differs");
  set(text === "any" ? "" : text);
}

function recallSort(text) {
  const [name, way] = text.split(".");
  if (!Object.hasOwn(MEASURES, name) || !measured(name) || !["up", "down"].includes(way)) return;
  Object.assign(state, { sort: name, down: way === "down" });
  showSort();
}

// While the page follows the newest step, its address names no step, so that it opens at the newest step again. Only a
// served page has the box "follow-last" and live.js.
const remember = () => setAddress(placeOfView(!($("follow-last") && followsNewest())));

function placeOfView(withStep) {
  const place = new URLSearchParams({ split: state.split });
  if (withStep) place.set("step", state.step);
  if (withStep && state.group >= 0) place.set("group", keyOf(state.group));
  for (const [key, [value]] of Object.entries(VIEW)) if (value()) place.set(key, value());
  if (withStep && state.pins.length) place.set("pins", state.pins.join("."));
  for (const name of pickedMetrics.keys()) place.append("metric", name);
  return place;
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1) || data.head.opening || "");
  pickOnly(place.getAll("metric"));
  const split = data.splits.includes(place.get("split")) ? place.get("split") : data.splits[0];
  const step = place.has("step") ? Number(place.get("step")) : data.steps[split].at($("follow-last")?.checked ? -1 : 0);
  state.view = "";
  for (const [key, [, set]] of Object.entries(VIEW)) if (place.has(key)) set(place.get(key));
  recallScope(place);
  state.rendered &&= canRender();
  const pins = /^\d{1,6}(\.\d{1,6})?$/.test(place.get("pins") || "") ? place.get("pins").split(".").map(Number) : [];
  state.linked = { g: findGroup(split, step, place.get("group")), pins };
  goTo(split, step, place.get("group"));
}

// Widen the scope for an address with a search: such an address names a scope only if the search does not cover all
// steps.
function recallScope(place) {
  state.searching = Boolean($("query").value);
  if (!state.searching || place.has("scope")) return;
  const { scope } = state;
  setScope("all");
  state.scopeBefore = scope;
}

start().catch((error) => {
  $("note").hidden = false;
  $("note").textContent = error.message;
});
