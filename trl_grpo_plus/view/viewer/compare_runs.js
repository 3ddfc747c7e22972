// Draws the upper part of the page of several runs: a table of the runs, a table of the options in which they differ,
// and plots with a curve for each run. It needs base.js and plot.js, and compare.js, which writes the address.

const AXES = ["steps", "rollouts", "tokens", "seconds"]; // what a run spends

// -- tables: the results of each run, and the options in which the runs differ

const cell = (...children) => el("td", {}, ...children);
const heading = (text, scope) => el("th", { scope }, el("bdi", {}, text));

function fillOutcomes() {
  const { runs } = data.head;
  const splits = [...new Set(runs.flatMap((run) => Object.keys(run.splits)))].sort();
  const names = ["run", ...splits.map((split) => `${words(split)}: first → last`), ...AXES, "alarms"];
  const rows = runs.map((run, r) => el("tr", {}, runCell(run, r), ...splits.map((split) => splitCell(run.splits[split])), ...spentCells(run), alarmCell(run.alarms)));
  $("outcomes").append(el("thead", {}, el("tr", {}, ...names.map((name) => heading(name, "col")))), el("tbody", {}, ...rows));
}

function runCell(run, r) {
  const oninput = ({ target }) => {
    if (target.checked) curves.hidden.delete(r);
    else curves.hidden.add(r);
    drawCurves();
  };
  const box = el("input", { type: "checkbox", checked: true, "aria-label": `Draw ${run.name}`, oninput });
  const siblings = data.head.settings.find((runs) => runs.includes(r)).filter((other) => other !== r);
  const sameSetting = siblings.length ? el("span", { className: "muted" }, ` same setting as ${siblings.map(runName).join(", ")}`) : null;
  return el("th", { scope: "row" }, el("label", {}, box, " ", runKey(r), el("bdi", {}, run.name)), sameSetting);
}

function splitCell(ends) {
  if (!ends) return cell(el("span", { className: "muted" }, "not evaluated"));
  const [[from, before], [to, after]] = ends;
  if (from === to) return cell(el("b", {}, number(after, 3)), el("span", { className: "muted" }, ` at ${number(to)} only`));
  const change = `${after > before ? "+" : ""}${number(Number((after - before).toPrecision(3)), 3)}`;
  return cell(`${number(before, 3)} → `, el("b", {}, number(after, 3)), el("span", { className: "muted" }, ` ${change} from ${number(from)} to ${number(to)}`));
}

function spentCells(run) {
  return AXES.map((name) => {
    const spent = run[name] ?? null;
    if (spent === null) return cell(el("span", { className: "muted" }, "not logged"));
    return cell(number(name === "seconds" ? Number(spent.toPrecision(3)) : spent));
  });
}

function alarmCell(alarms) {
  if (!alarms) return cell(el("span", { className: "muted" }, "not watched"));
  const names = Object.entries(alarms).sort(([, a], [, b]) => b - a);
  if (!names.length) return cell("none");
  return cell(...names.flatMap(([name, n]) => [el("span", { className: "alarm-mark" }, n > 1 ? `${words(name)} × ${n}` : words(name)), " "]));
}

function fillOptions() {
  const { settings, options, runs } = data.head;
  if (settings.length < 2 || !options.length) {
    const why = settings.length < 2 ? "The runs differ only in the seed." : "All known options are equal.";
    $("options").closest(".wide").hidden = true;
    $("options-note").textContent = why;
    return;
  }
  const columns = settings.map((members) => el("th", { scope: "col" }, ...members.flatMap((r) => [runKey(r), el("bdi", {}, `${runs[r].name} `)])));
  const rows = options.map(([name, ...values]) => {
    const cells = values.map((value) => (value === null ? cell(el("span", { className: "muted" }, "not known")) : cell(el("bdi", {}, value))));
    return el("tr", {}, heading(name, "row"), ...cells);
  });
  $("options").append(el("thead", {}, el("tr", {}, heading("option", "col"), ...columns)), el("tbody", {}, ...rows));
}

// -- curves of the runs, over steps, rollouts, tokens or seconds

const AXIS_METRICS = { rollouts: "rollouts", tokens: "num_tokens", seconds: "step_time" }; // the metric of an axis
const GRID = 200; // points of a mean over runs that were logged at different x

const curves = { names: [], hidden: new Set(), drawing: 0 };
const runName = (r) => data.head.runs[r].name;

// Return the classes with the look of a run: eight colours and four kinds of dashes make 32 looks. The first eight runs
// differ in colour.
const styleOfRun = (r) => (r < 8 ? `s${r}` : `s${r % 8} d${(r + Math.floor(r / 8)) % 4}`);
const runKey = (r) => lineKey({ style: styleOfRun(r) }, r);
const settingName = (runs) => `mean of ${runs.map(runName).join(", ")}`;
const seedGroups = () => data.head.settings.filter((runs) => runs.length > 1);
const drawsMeans = () => $("mean").checked && seedGroups().length > 0;

function fillCurves() {
  const { metrics, first } = data.head;
  $("axis").append(...AXES.map((name) => el("option", { value: name }, name)));
  $("metrics").append(...metrics.map((value) => el("option", { value })));
  curves.names = first.slice();
  $("mean-field").hidden = !seedGroups().length;
  for (const id of ["axis", "mean"]) $(id).addEventListener("input", drawCurves);
  $("metric").addEventListener("change", () => {
    const name = $("metric").value.trim();
    const logged = metrics.includes(name);
    $("metric").toggleAttribute("aria-invalid", Boolean(name) && !logged);
    if (!logged) return;
    $("metric").value = "";
    curves.names = [name, ...curves.names.filter((other) => other !== name)];
    drawCurves();
  });
}

async function drawCurves() {
  const turn = ++curves.drawing;
  remember();
  const all = await Promise.all(curves.names.map(metricOf));
  if (turn !== curves.drawing) return;
  const axis = $("axis").value;
  const shown = all.map((values, i) => seriesOf(values, axis, curves.names[i].startsWith("eval")));
  const xs = extremes([0, ...shown.flat().flatMap(({ points }) => points.map(([x]) => x))]);
  $("curves").replaceChildren(...shown.map((series, i) => curveNode(curves.names[i], series, all[i], xs, axis)));
  $("axis-note").textContent = axisNote(axis);
}

const metricOf = (name) => unpackBlock(`metric-${data.head.metrics.indexOf(name)}`);

// Return the series of a plot: a curve for each run, or the mean of the runs that differ in the seed only. `values`
// has, for each run, [[step, y], ...]. `few` says that the metric is logged at evaluations only: its points are drawn.
function seriesOf(values, axis, few) {
  const pointsOf = (r) => (values[r] && !curves.hidden.has(r) ? onAxis(values[r], r, axis) : []);
  const one = (r) => ({ name: runName(r), label: runName(r), style: styleOfRun(r), marked: few, points: pointsOf(r) });
  return data.head.settings.flatMap((runs) => {
    const some = runs.filter((r) => pointsOf(r).length);
    const joint = drawsMeans() && some.length > 1 ? meanOfRuns(values, some, axis, few) : null;
    if (!joint) return some.map(one);
    return [{ name: settingName(some), label: settingName(some), style: styleOfRun(runs[0]), marked: few, ...joint }];
  });
}

// Return a run's [[x, y], ...] over the axis, from its [[step, y], ...]; an empty list if the run did not log the axis.
function onAxis(points, r, axis) {
  if (axis === "steps") return points;
  const spent = data.head.axes[axis][r];
  return spent ? points.map(([step, y]) => [valueAt(spent, step), y]) : [];
}

// Return y at x, interpolated between two points; before the first and after the last point their y.
function valueAt(points, x) {
  if (x <= points[0][0]) return points[0][1];
  if (x >= points.at(-1)[0]) return points.at(-1)[1];
  const i = indexAtOrBefore(points, x);
  const [[before, low], [after, high]] = [points[i], points[i + 1]];
  return low + ((x - before) / (after - before)) * (high - low);
}

// Return {points, band}: the mean of the runs over the axis, and their lowest and highest value; null if their ranges
// of x do not overlap.
function meanOfRuns(values, runs, axis, few) {
  if (axis === "steps" || few) return atSharedSteps(values, runs, axis);
  const all = runs.map((r) => onAxis(values[r], r, axis));
  const from = Math.max(...all.map((points) => points[0][0]));
  const to = Math.min(...all.map((points) => points.at(-1)[0]));
  if (from > to) return null;
  const n = Math.min(GRID, Math.max(...all.map((points) => points.length)));
  const grid = Array.from({ length: n }, (_, i) => from + (i * (to - from)) / Math.max(n - 1, 1));
  return meanAndRange([...new Set(grid)].map((x) => [x, all.map((points) => valueAt(points, x))]));
}

// Return {points, band} at the steps that all the runs logged. Values are not interpolated, because evaluations are far
// apart. Return null if the runs share only one step: one point is no curve.
function atSharedSteps(values, runs, axis) {
  const [first, ...others] = runs.map((r) => new Map(values[r]));
  const steps = [...first.keys()].filter((step) => others.every((other) => other.has(step)));
  const x = (step) => (axis === "steps" ? step : meanOf(runs.map((r) => valueAt(data.head.axes[axis][r], step))));
  return steps.length > 1 ? meanAndRange(steps.map((step) => [x(step), [first, ...others].map((values) => values.get(step))])) : null;
}

function meanAndRange(places) {
  return {
    points: places.map(([x, ys]) => [x, meanOf(ys)]),
    band: places.map(([x, ys]) => [x, Math.min(...ys), Math.max(...ys)]),
  };
}

function curveNode(name, series, values, xs, axis) {
  const { node } = newPlot({ title: metricName(name), xName: axis === "steps" ? "step" : axis, series }, { xs });
  const onclick = () => [curves.names.splice(curves.names.indexOf(name), 1), drawCurves()];
  node.querySelector(".title").after(el("button", { type: "button", className: "remove", title: `Remove ${name}`, "aria-label": `Remove ${name}`, onclick }, "×"));
  const without = values.flatMap((points, r) => (points ? [] : [runName(r)]));
  if (without.length) node.querySelector(".value").after(el("p", { className: "muted" }, "Not logged: ", el("bdi", {}, without.join(", "))));
  return node;
}

const TITLES = { "completions/mean_length": "tokens a completion", "groups/alive": "alive groups", kl: "KL" };
const metricName = (name) => (Object.hasOwn(TITLES, name) ? TITLES[name] : words(name.replace(/^(eval[^/]*)\//, "$1 ")));

function axisNote(axis) {
  const sentences = axis === "seconds" ? ["Seconds are each run's step_time, summed: sampling, scoring and training, without evaluations, checkpoints and the start."] : [];
  if (drawsMeans()) sentences.push("A mean ends where the first of its runs ends.");
  if (axis === "tokens") sentences.push("Tokens are TRL's num_tokens: the prompts and completions that were trained on.");
  const without = axis === "steps" ? [] : data.head.runs.flatMap((run, r) => (data.head.axes[axis][r] ? [] : [run.name]));
  if (without.length) sentences.push(`Not drawn, since ${AXIS_METRICS[axis]} were not logged there: ${without.join(", ")}.`.replace("step_time were", "step_time was"));
  return sentences.join(" ");
}
