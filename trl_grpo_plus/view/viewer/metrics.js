// -- every logged metric: a list of names to pick from, and a small plot of each that is picked

const picked = new Map(); // name -> its plot
const metrics = {}; // the table, once it is unpacked: {steps, metrics}

// live.js puts another in its place.
let readMetrics = $("metrics") && (() => unpack(block("metrics").data, block("metrics").packed));

async function loadMetrics() {
  if (!readMetrics) return false;
  metrics.table ??= readMetrics().then((table) => {
    Object.assign(metrics, table);
    const names = Object.keys(table.metrics);
    if (names.join("\n") !== metrics.named) fillNames(names);
    metrics.named = names.join("\n");
  });
  await metrics.table;
  return true;
}

function fillPicker() {
  if (!readMetrics) return;
  $("picker").hidden = false;
  $("picker").addEventListener("toggle", loadMetrics);
  $("metric-query").addEventListener("input", findNames);
  $("metric-none").addEventListener("click", () => pickOnly([]));
}

// By what stands before the first "/", and of an evaluation before the second; those without one come first.
function metricGroups(names) {
  const groups = new Map([["", []]]);
  for (const name of names) {
    const [group] = /^(eval[^/]*\/([^/]*\/)?|[^/]*\/)?/.exec(name);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(name);
  }
  return [...groups].filter(([, those]) => those.length).sort(([a], [b]) => (a < b ? -1 : 1));
}

function fillNames(names) {
  $("metric-names").replaceChildren(el("div", {}, ...metricGroups(names).map(([group, those]) => {
    const boxes = those.map((name) => {
      const box = el("input", { type: "checkbox", checked: picked.has(name) });
      box.dataset.metric = name;
      box.addEventListener("change", () => pick(name, box.checked));
      return el("label", {}, box, " ", el("bdi", {}, name.slice(group.length)));
    });
    return el("fieldset", {}, el("legend", {}, el("h2", {}, el("bdi", {}, group || "general"))), ...boxes);
  })));
  findNames();
}

const boxes = () => [...document.querySelectorAll("#metric-names input")];

// Each word must be in a name; a group without any is hidden.
function findNames() {
  const wanted = $("metric-query").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const box of boxes()) {
    const shown = wanted.every((word) => box.dataset.metric.toLowerCase().includes(word));
    box.parentNode.hidden = !shown;
    found += shown;
  }
  for (const group of $("metric-names").firstChild.children) group.hidden = !group.querySelector("label:not([hidden])");
  $("metric-found").textContent = wanted.length ? `${number(found)} of ${count(boxes().length, "metric")}` : count(boxes().length, "metric");
}

// Show these and no others, in this order; names that there are not are passed over.
async function pickOnly(names) {
  if (!names.length && !picked.size) return;
  if (!(await loadMetrics())) return;
  const known = new Set(names.filter((name) => Object.hasOwn(metrics.metrics, name)));
  for (const name of [...picked.keys()]) if (!known.has(name)) pick(name, false);
  for (const name of known) pick(name, true);
}

function pick(name, on) {
  if (on === picked.has(name)) return;
  if (on) $("picked").append(addPlot(picked, name, metricSpec(name), curvesSpan()).node);
  else dropPlot(picked, name);
  if (on) markStep();
  boxes().find((box) => box.dataset.metric === name).checked = on;
  $("metric-none").hidden = $("picked").hidden = !picked.size;
  remember();
}

function metricSpec(name) {
  const [which, values] = metrics.metrics[name];
  const points = metrics.steps[which].map((step, i) => [step, values[i]]);
  return curveSpec({ title: name, series: [{ name, points, evaluation: name.startsWith("eval") }] });
}
