// -- moving about: to groups, steps, splits and alarms

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

function goToStep(step) {
  leaveLists();
  state.step = step;
  if (state.scope === "step") return refresh();
  const next = least(state.rows.map((g) => data.step[g]).filter((other) => other >= step));
  if (next !== null) select(state.rows.find((g) => data.step[g] === next));
}

function moveStep(by) {
  const steps = state.scope === "step" ? data.steps[state.split] : state.rows.map((g) => data.step[g]).sort((a, b) => a - b);
  const next = by > 0 ? steps.find((step) => step > state.step) : steps.findLast((step) => step < state.step);
  if (next !== undefined) goToStep(next);
}

function moveGroup(by) {
  leaveLists();
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
  Object.assign(state, { scope, scopeBefore: "" });
  document.querySelector(`input[name=scope][value=${scope}]`).checked = true;
}

function showStep() {
  const steps = data.steps[state.split];
  $("step").value = steps.indexOf(state.step);
  const [now, first, last] = [state.step, steps[0], steps[steps.length - 1]].map((step) => loggedStep(step, state.split));
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

// An alarm's message begins with its name and step, which are shown beside it.
const alarmTold = (message) => message.replace(/^\w+ at step \d+: /, "");

function goToAlarm({ step, message, groups }) {
  leaveLists();
  emptyFilters();
  setScope("step");
  const key = groups.map((group) => group.join(".")).find((place) => findGroup("train", step, place) >= 0);
  const found = goTo("train", step, key);
  const missing = found ? "" : groups.length ? " Its groups are not in this page." : " It names no group.";
  $("status").textContent = `Step ${loggedStep(step, "train")}: ${alarmTold(message)}${missing}`;
}

// Filters that would hide it give way.
function visit(g) {
  if (state.rows.includes(g)) return select(g);
  emptyFilters();
  goTo(data.split[g], data.step[g], keyOf(g));
}
