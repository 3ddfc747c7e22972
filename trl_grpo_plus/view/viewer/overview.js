// Draws what is above the list: facts and results of the run, its first prompt, its alarms, its curves, the metrics
// that a reader picks, and the calibration of beliefs. It needs base.js, text.js and plot.js, and page.js, which moves
// to the steps and groups that are clicked.

// -- what the run is

// Fill the title, the line of facts and the note. The facts give the steps of one split besides the training split; of
// more splits they give the number, and fillAbout() lists them.
function fillHead() {
  const { title, groups, groups_total: total, attempts, attempts_total: all, note, panel } = data.head;
  document.title = `${title}: attempts side by side`;
  if ($("run").textContent !== title) $("run").replaceChildren(el("bdi", {}, title));
  const [steps, ...others] = stepTexts();
  const shown = [steps, ...(others.length > 1 ? [count(others.length, "other split")] : others)].join(", ");
  const left = total - groups;
  $("facts").textContent = data.n ? `${shown}; ${count(groups, "group")}, ${count(attempts, "attempt")}` : "";
  const sentences = [];
  if (left) sentences.push(`Left out for size: ${number(left)} of ${number(total)} groups (${number(all - attempts)} of ${number(all)} attempts), evenly over the steps. Groups that an alarm names and live groups are left out last.`);
  if (note) sentences.push(note);
  $("note").textContent = sentences.join(" ");
  $("note").hidden = !sentences.length;
  document.body.classList.toggle("panel", panel);
}

const stepTexts = () => data.splits.map((split) => `${count(data.steps[split].length, "step")} of ${split}`);

function fillAbout() {
  const { about, results, weights } = data.head;
  const facts = [about.model, datasetText(about.dataset), rewardsText(weights), attemptsText(about)].filter(Boolean);
  const options = Object.entries(about.options || {});
  const evaluations = Object.entries(about.evaluations || {}).filter(([, rows]) => rows !== null);
  const texts = (list) => list.map((text) => el("bdi", {}, text));
  const rows = [
    ["sampled at", texts(stepTexts())],
    ["evaluated on", texts(evaluations.map(([split, rows]) => `${split} (${count(rows, "row")})`))],
    ["first → last evaluation", results.map(resultNode)],
    ["changed options", options.map(([name, value]) => el("code", {}, `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`))],
    ["versions", texts(Object.entries(about.versions || {}).map(([name, version]) => `${name} ${version}`))],
  ].filter(([, nodes]) => nodes.length);
  const changed = options.length ? [el("span", { className: "muted" }, count(options.length, "changed option"))] : [];
  const [summary, list] = $("about").children;
  const told = facts.length ? [...texts(facts), ...changed] : ["What the run is"];
  refill(summary, dotted(told));
  refill(list, rows.flatMap(([name, nodes]) => [el("dt", {}, name), el("dd", {}, ...nodes)]));
  $("about").hidden = !facts.length && rows.length < 2;
}

// Replace the children of `node` that changed, and leave the others alone: a live page calls this every few seconds,
// while somebody may be reading or selecting text there.
function refill(node, children) {
  const filled = [...el(node.localName, {}, ...children).childNodes];
  for (const [i, child] of filled.entries()) {
    const old = node.childNodes[i];
    if (!old) node.append(child);
    else if (!old.isEqualNode(child)) old.replaceWith(child);
  }
  while (node.childNodes.length > filled.length) node.lastChild.remove();
}

const dotted = (nodes) => nodes.flatMap((node, i) => (i ? [" · ", node] : [node]));

function datasetText(dataset) {
  if (!dataset) return "";
  const rows = dataset.rows === null ? "" : count(dataset.rows, "row");
  return [dataset.name, rows].filter(Boolean).join(", ");
}

function rewardsText(weights) {
  const rewards = Object.entries(weights).map(([name, weight]) => {
    return weight === 0 ? `${name} (monitor)` : weight === 1 ? name : `${name} × ${number(weight)}`;
  });
  return rewards.length ? `${rewards.length === 1 ? "reward" : "rewards"} ${rewards.join(" + ")}` : "";
}

const attemptsText = (about) => (about.num_generations ? `${about.num_generations} attempts a prompt` : "");

// Return the results of one evaluation split: the total at its first and last evaluation, and each reward if there are
// several.
function resultNode({ split, steps, rewards }) {
  const [total, ...each] = rewards;
  const where = steps.length > 1 ? `steps ${steps.map((step) => number(step)).join(" and ")}` : `step ${number(steps[0])}`;
  const node = el("span", { className: "result", title: `${split}, ${where}` }, el("bdi", {}, words(split)), " reward ", ...endsOf(total));
  for (const one of each.length > 1 ? each : []) node.append(el("span", { className: "muted" }, "; ", el("bdi", {}, one[0]), " "), ...endsOf(one, "span"));
  return node;
}

function endsOf([, first, last], name = "b") {
  if (last === undefined) return [el(name, {}, number(first, 3))];
  return [number(first, 3), " → ", el(name, {}, number(last, 3))];
}

// -- the first prompt as the model saw it; the fold's summary shows what is odd about it

function fillGiven() {
  const { first_prompt: prompt } = data.head;
  $("given").hidden = !prompt;
  if (!prompt || $("given-text").textContent === prompt.text) return;
  // A run that began with trace_every=0 and was resumed with traces has the first prompt after it was resumed.
  const which = prompt.step > 1 ? `a prompt of step ${number(prompt.step)}, the first that was kept` : "the first prompt of the run";
  const flags = (list) => list.map((flag) => el("bdi", {}, ...readable(flag)));
  const short = prompt.flags.map((flag) => flag.split(": ")[0]);
  $("given").querySelector("summary").replaceChildren(...dotted(["As the model saw it", ...flags(short)]));
  $("given-facts").replaceChildren(...dotted([`${which}, ${count(prompt.tokens, "token")}`, ...flags(prompt.flags)]));
  $("given-text").replaceChildren(...readable(prompt.text));
}

// -- alarms

function fillAlarms() {
  const { alarms } = data.head;
  $("alarms").hidden = !alarms.length;
  $("alarms").querySelector("summary").textContent = `${count(alarms.length, "alarm")}: ${alarms.map(({ name }) => words(name)).join(", ")}`;
  $("alarm-list").replaceChildren();
  for (const { name, count: n, times } of alarms) {
    const buttons = times.map((time) => {
      return el("button", { type: "button", title: alarmText(time.message), onclick: () => goToAlarm(time) }, `step ${time.step}`);
    });
    const more = n > times.length ? ` ${times.length} of ${n} shown` : "";
    const message = el("bdi", { className: "muted" }, alarmText(times[0].message));
    $("alarm-list").append(el("div", { className: "alarm" }, el("b", {}, words(name)), el("span", { className: "times" }, ...buttons, more), message));
  }
}

// An alarm's message begins with its name and step, which are shown beside it.
const alarmText = (message) => message.replace(/^\w+ at step \d+: /, "");

// -- curves over the steps

const plots = []; // all plots: curves and picked metrics
const plotsByTitle = new Map(); // the plots of curves
const PLOTS_WITH_ALARMS = 2; // the first two plots show marks of alarms

// Draw the curves. A plot that is there already stays, and draws only other data.
function drawCurves(curves) {
  const xs = curvesSpan();
  for (const title of plotsByTitle.keys()) if (!curves.some((curve) => curve.title === title)) dropPlot(plotsByTitle, title);
  curves.forEach((curve, i) => {
    const spec = curveSpec(curve, i < PLOTS_WITH_ALARMS);
    if (plotsByTitle.has(curve.title)) return plotsByTitle.get(curve.title).fill(spec, xs);
    const plot = addPlot(plotsByTitle, curve.title, spec, xs);
    $("curves").insertBefore(plot.node, $("curves").children[i] ?? null);
  });
  $("curves").hidden = !curves.length;
}

function curveSpec(curve, marked = false) {
  const { title, stacked } = curve;
  // Evaluations are few and far apart: draw their points. Leave out verdicts that no group had.
  const series = curve.series.map((one) => ({ ...one, marked: one.evaluation ?? one.name.startsWith("eval"), style: stacked ? one.name : undefined }));
  const spec = { title, stacked, series: stacked ? series.filter(({ points }) => points.some(([, y]) => y)) : series };
  if (marked) spec.marks = alarmMarks();
  return spec;
}

// Return a mark for each step with alarms. Its title names all of them; a click goes to the first.
function alarmMarks() {
  const all = data.head.alarms.flatMap(({ name, times }) => times.map((alarm) => {
    return { x: alarm.step, alarm, title: `${words(name)} at step ${alarm.step}: ${alarmText(alarm.message)}` };
  }));
  return [...groupedBy(all, ({ x }) => x).values()].map((those) => ({ ...those[0], title: those.map(({ title }) => title).join("\n") }));
}

// Return the [first, last] logged step of all curves and groups: all plots have the same x axis.
function curvesSpan() {
  const everything = data.head.curves.flatMap((curve) => curve.series.flatMap((series) => series.points.map(([x]) => x)));
  return extremes([...everything, ...data.splits.flatMap((split) => data.steps[split])]);
}

function addPlot(among, name, spec, xs) {
  const pick = (x) => goToStep(nearestStep(x));
  const plot = newPlot(spec, { xs, pick, go: (mark) => goToAlarm(mark.alarm) });
  among.set(name, plot);
  plots.push(plot);
  return plot;
}

function dropPlot(among, name) {
  const plot = among.get(name);
  among.delete(name);
  plots.splice(plots.indexOf(plot), 1);
  plot.node.remove();
}

const markStep = () => plots.forEach((plot) => plot.rest(state.step));

// -- all logged metrics: a list of names to pick from, and a small plot of each picked one

const pickedMetrics = new Map(); // name -> its plot
const metrics = {}; // {table, steps, metrics, named}: table is the promise that fills steps and metrics

// live.js replaces this function: a served page asks the server for the metrics.
let readMetrics = $("metrics") && (() => unpackBlock("metrics"));

function fillPicker() {
  if (!readMetrics) return;
  $("picker").hidden = false;
  $("picker").addEventListener("toggle", loadMetrics);
  $("metric-query").addEventListener("input", findNames);
  $("metric-none").addEventListener("click", () => pickOnly([]));
}

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

function fillNames(names) {
  $("metric-names").replaceChildren(el("div", {}, ...metricGroups(names).map(([group, members]) => {
    const boxes = members.map((name) => {
      const onchange = ({ target }) => pick(name, target.checked);
      const box = el("input", { type: "checkbox", checked: pickedMetrics.has(name), "data-metric": name, onchange });
      return el("label", {}, box, " ", el("bdi", {}, name.slice(group.length)));
    });
    return el("fieldset", {}, el("legend", {}, el("h2", {}, el("bdi", {}, group || "general"))), ...boxes);
  })));
  findNames();
}

// Return [[prefix, names], ...]: names are grouped by what is before the first "/", names of evaluations by what is
// before the second. Names without a "/" come first.
function metricGroups(names) {
  const groups = groupedBy(names, (name) => /^(eval[^/]*\/([^/]*\/)?|[^/]*\/)?/.exec(name)[0]);
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

const boxes = () => [...document.querySelectorAll("#metric-names input")];

// Show the names that contain every word of the field, and hide groups without such a name.
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

// Show plots of these metrics and no others; unknown names are ignored.
async function pickOnly(names) {
  if (!names.length && !pickedMetrics.size) return;
  if (!(await loadMetrics())) return;
  const wanted = new Set(names.filter((name) => Object.hasOwn(metrics.metrics, name)));
  for (const name of [...pickedMetrics.keys()]) if (!wanted.has(name)) pick(name, false);
  for (const name of wanted) pick(name, true);
}

function pick(name, on) {
  if (on === pickedMetrics.has(name)) return;
  if (on) $("picked").append(addPlot(pickedMetrics, name, metricSpec(name), curvesSpan()).node);
  else dropPlot(pickedMetrics, name);
  if (on) markStep();
  boxes().find((box) => box.dataset.metric === name).checked = on;
  $("metric-none").hidden = $("picked").hidden = !pickedMetrics.size;
  remember();
}

function metricSpec(name) {
  const [which, values] = metrics.metrics[name];
  const points = metrics.steps[which].map((step, i) => [step, values[i]]);
  return curveSpec({ title: name, series: [{ name, points, evaluation: name.startsWith("eval") }] });
}

// -- calibration: groups in ten bins by the believed mean. tenths: [[groups, mean believed, mean earned], ...], per bin

const CALIBRATION_SIZE = 210; // px, as in style.css
const CALIBRATION_EDGE = 20;

function fillCalibration() {
  const { calibration } = data.head;
  if (!calibration) return;
  const { spans, range } = calibration;
  const draw = () => {
    const { tenths } = spans[$("calibration-steps").selectedIndex];
    const groups = tenths.reduce((sum, [n]) => sum + n, 0);
    const off = tenths.reduce((sum, [n, believed, earned]) => sum + n * Math.abs(believed - earned), 0) / groups;
    $("calibration").querySelector("summary").textContent = `Calibration: off by ${number(off, 2)} over ${count(groups, "group")}`;
    $("calibration-plot").replaceChildren(calibrationPlot(tenths, range));
    $("calibration-table").replaceChildren(...calibrationTable(tenths));
  };
  const name = (steps, i) => `${i ? "last, " : "all, "}${steps.map((step) => number(step)).join(" – ")}`;
  const chosen = Math.max($("calibration-steps").selectedIndex, 0);
  $("calibration-steps").replaceChildren(...spans.map(({ steps }, i) => el("option", {}, name(steps, i))));
  $("calibration-steps").selectedIndex = Math.min(chosen, spans.length - 1);
  $("calibration-steps").oninput = draw;
  $("calibration").hidden = false;
  draw();
}

function calibrationPlot(tenths, [low, high]) {
  const at = (value) => CALIBRATION_EDGE + ((value - low) / (high - low)) * (CALIBRATION_SIZE - 2 * CALIBRATION_EDGE);
  const most = Math.max(...tenths.map(([n]) => n));
  const circles = tenths.map(([n, believed, earned]) => {
    const title = `believed ${number(believed, 3)}, earned ${number(earned, 3)}: ${count(n, "group")}`;
    const place = { cx: at(believed).toFixed(1), cy: (CALIBRATION_SIZE - at(earned)).toFixed(1), r: (2 + 9 * Math.sqrt(n / most)).toFixed(1) };
    return svg("circle", place, svg("title", {}, title));
  });
  const [from, to] = [at(low), at(high)];
  const label = (x, y, text, more) => svg("text", { x, y, ...more }, text);
  return svg(
    "svg",
    { role: "img", "aria-label": "Earned reward against believed reward, for each tenth of the range of beliefs", viewBox: `0 0 ${CALIBRATION_SIZE} ${CALIBRATION_SIZE}` },
    svg("line", { class: "diagonal", x1: from, y1: CALIBRATION_SIZE - from, x2: to, y2: CALIBRATION_SIZE - to }),
    label(CALIBRATION_SIZE / 2, CALIBRATION_SIZE - 5, "believed", { "text-anchor": "middle" }),
    label(4, CALIBRATION_EDGE - 6, "earned"),
    label(4, CALIBRATION_SIZE - 5, number(low, 3)),
    label(CALIBRATION_SIZE - 4, CALIBRATION_SIZE - 5, number(high, 3), { "text-anchor": "end" }),
    ...circles,
  );
}

function calibrationTable(tenths) {
  const head = ["believed", "earned", "groups"].map((name) => el("th", { scope: "col" }, name));
  const rows = tenths.map(([n, believed, earned]) => {
    return el("tr", {}, ...[number(believed, 3), number(earned, 3), number(n)].map((text) => el("td", {}, text)));
  });
  return [el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows)];
}
