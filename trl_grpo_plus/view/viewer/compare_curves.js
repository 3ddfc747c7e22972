// -- curves of several runs over each other: over steps, rollouts, tokens or seconds

const AXES = ["steps", "rollouts", "tokens", "seconds"];
const LACKS = { rollouts: "rollouts", tokens: "num_tokens", seconds: "step_time" }; // what would have to be logged
const GRID = 200; // points of a mean where runs were logged at different places

const curves = { names: [], hidden: new Set(), drawing: 0 };

const runName = (r) => data.head.runs[r].name;
// Eight colours and four kinds of dashes: 32 looks, of which the first eight differ in colour.
const styleOfRun = (r) => (r < 8 ? `s${r}` : `s${r % 8} d${(r + Math.floor(r / 8)) % 4}`);
const runKey = (r) => lineKey({ style: styleOfRun(r) }, r);
const settingName = (runs) => `mean of ${runs.map(runName).join(", ")}`;
const seeded = () => data.head.settings.filter((runs) => runs.length > 1);
const averaged = () => $("mean").checked && seeded().length > 0;

async function metricOf(name) {
  const { data: packed } = block(`metric-${data.head.metrics.indexOf(name)}`);
  return unpack(packed, true);
}

// A run's [x, y] over the axis, from its [step, y]; none where it lacks the axis.
function onAxis(points, r, axis) {
  if (axis === "steps") return points;
  const spent = data.head.axes[axis][r];
  return spent ? points.map(([step, y]) => [valueAt(spent, step), y]) : [];
}

// Between two points in proportion; beyond the ends as at the end.
function valueAt(points, x) {
  let [low, high] = [0, points.length - 1];
  if (x <= points[low][0]) return points[low][1];
  if (x >= points[high][0]) return points[high][1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle;
    else high = middle;
  }
  const share = (x - points[low][0]) / (points[high][0] - points[low][0]);
  return points[low][1] + share * (points[high][1] - points[low][1]);
}

// Mean, lowest and highest of some runs' [step, y] over the axis; null where the runs have no place in common.
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

// Between evaluations, which are far apart, nothing is made up; and one that is shared is no curve.
function atSharedSteps(values, runs, axis) {
  const [first, ...others] = runs.map((r) => new Map(values[r]));
  const steps = [...first.keys()].filter((step) => others.every((other) => other.has(step)));
  const x = (step) => (axis === "steps" ? step : meanOf(runs.map((r) => valueAt(data.head.axes[axis][r], step))));
  return steps.length > 1 ? meanAndRange(steps.map((step) => [x(step), [first, ...others].map((of) => of.get(step))])) : null;
}

function meanAndRange(places) {
  return {
    points: places.map(([x, ys]) => [x, meanOf(ys)]),
    band: places.map(([x, ys]) => [x, Math.min(...ys), Math.max(...ys)]),
  };
}

// What a plot of these values of each run shows.
function seriesOf(values, axis, few) {
  const of = (r) => (values[r] && !curves.hidden.has(r) ? onAxis(values[r], r, axis) : []);
  const one = (r) => ({ name: runName(r), label: runName(r), style: styleOfRun(r), marked: few, points: of(r) });
  return data.head.settings.flatMap((runs) => {
    const some = runs.filter((r) => of(r).length);
    const joint = averaged() && some.length > 1 ? meanOfRuns(values, some, axis, few) : null;
    if (!joint) return some.map(one);
    return [{ name: settingName(some), label: settingName(some), style: styleOfRun(runs[0]), marked: few, ...joint }];
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

function curveNode(name, series, values, xs, axis) {
  const { node } = newPlot({ title: metricName(name), xName: axis === "steps" ? "step" : axis, series }, { xs });
  const remove = el("button", { type: "button", className: "remove", title: `Remove ${name}`, "aria-label": `Remove ${name}` }, "×");
  remove.addEventListener("click", () => [curves.names.splice(curves.names.indexOf(name), 1), drawCurves()]);
  node.querySelector(".title").after(remove);
  const without = values.flatMap((points, r) => (points ? [] : [runName(r)]));
  if (without.length) node.append(el("p", { className: "muted" }, "Not logged: ", el("bdi", {}, without.join(", "))));
  return node;
}

const TITLES = { "completions/mean_length": "tokens a completion", "groups/alive": "alive groups", kl: "KL" };
const metricName = (name) => (Object.hasOwn(TITLES, name) ? TITLES[name] : words(name.replace(/^(eval[^/]*)\//, "$1 ")));

function axisNote(axis) {
  const told = axis === "seconds" ? ["Seconds are each run's step_time, summed: sampling, scoring and training, without evaluations, checkpoints and the start."] : [];
  if (averaged()) told.push("Means end where the first of their runs ends.");
  if (axis === "tokens") told.push("Tokens are TRL's num_tokens: prompts and completions of what was trained on.");
  const without = axis === "steps" ? [] : data.head.runs.flatMap((run, r) => (data.head.axes[axis][r] ? [] : [run.name]));
  if (without.length) told.push(`Not drawn, since ${LACKS[axis]} were not logged there: ${without.join(", ")}.`.replace("step_time were", "step_time was"));
  return told.join(" ");
}

function fillCurves() {
  const { metrics, first } = data.head;
  $("axis").append(...AXES.map((name) => el("option", { value: name }, name)));
  $("metrics").append(...metrics.map((value) => el("option", { value })));
  curves.names = first.slice();
  $("mean-field").hidden = !seeded().length;
  for (const id of ["axis", "mean"]) $(id).addEventListener("input", drawCurves);
  $("metric").addEventListener("change", () => {
    const name = $("metric").value.trim();
    const known = metrics.includes(name);
    $("metric").toggleAttribute("aria-invalid", Boolean(name) && !known);
    if (!known) return;
    $("metric").value = "";
    curves.names = [name, ...curves.names.filter((other) => other !== name)];
    drawCurves();
  });
}
