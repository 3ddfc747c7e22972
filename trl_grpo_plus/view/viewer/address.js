// -- the address: #split=train&step=3&group=0.0.1, and what of the view is not as it opens

const option = (id) => [() => $(id).value, (text) => [...$(id).options].some(({ value }) => value === text) && ($(id).value = text)];
const bound = (id) => [() => $(id).value, (text) => (text === "" || Number.isFinite(Number(text))) && ($(id).value = text)];
const flag = (name, usual) => [
  () => (state[name] === usual ? "" : String(Number(state[name]))),
  (text) => ["0", "1"].includes(text) && (state[name] = text === "1"),
];

// key -> its value ("" where it is as it opens), and what sets it from a text if that is one of its values. What an
// address does not name stays.
const VIEW = {
  scope: [() => (state.scope === usualScope() ? "" : state.scope), (text) => ["step", "all"].includes(text) && setScope(text)],
  verdict: option("verdict"),
  alarm: option("alarm"),
  differs: [() => ($("differs").value === usualDiffers() ? "" : $("differs").value || "any"), recallDiffers],
  kept: option("kept"),
  by: option("measure"),
  min: bound("reward-min"),
  max: bound("reward-max"),
  text: [() => $("query").value.slice(0, MOST_QUERY), (text) => ($("query").value = text.slice(0, MOST_QUERY))],
  regex: [() => ($("regex").checked ? "1" : ""), (text) => ($("regex").checked = text === "1")],
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

let followsNewest = () => false; // live.js puts another in its place

// While the newest step is followed the address names no step: opened again, it is again the newest.
const remember = () => setAddress(placeOfView(!followsNewest()));

function placeOfView(withStep) {
  const place = new URLSearchParams({ split: state.split });
  if (withStep) place.set("step", state.step);
  if (withStep && state.group >= 0) place.set("group", keyOf(state.group));
  for (const [key, [value]] of Object.entries(VIEW)) if (value()) place.set(key, value());
  if (withStep && state.pins.length) place.set("pins", state.pins.join("."));
  for (const name of picked.keys()) place.append("metric", name);
  return place;
}

// A link to a search names its scope only if it does not cover all steps.
function recallScope(place) {
  state.searching = Boolean($("query").value);
  if (!state.searching || place.has("scope")) return;
  const { scope } = state;
  setScope("all");
  state.scopeBefore = scope;
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
