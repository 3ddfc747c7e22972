// -- curves over the steps

const plots = []; // of picked metrics, too
const standing = new Map(); // title -> its plot

// Of plots that are there already only what has changed is drawn.
function drawCurves(curves) {
  const xs = curvesSpan();
  for (const title of standing.keys()) if (!curves.some((curve) => curve.title === title)) dropPlot(standing, title);
  curves.forEach((curve, i) => {
    const spec = curveSpec(curve, i < MARKED);
    if (standing.has(curve.title)) return standing.get(curve.title).fill(spec, xs);
    const plot = addPlot(standing, curve.title, spec, xs);
    $("curves").insertBefore(plot.node, $("curves").children[i] ?? null);
  });
  $("curves").hidden = !curves.length;
}

function addPlot(among, name, spec, xs) {
  const pick = (x) => goToStep(nearestStep(x - loggedStep(0, state.split)));
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

// All share their time axis.
function curvesSpan() {
  const everything = data.head.curves.flatMap((curve) => curve.series.flatMap((series) => series.points.map(([x]) => x)));
  return extremes([...everything, ...data.splits.flatMap((split) => data.steps[split].map((step) => loggedStep(step, split)))]);
}

const MARKED = 2; // so many of the first plots bear marks of alarms

function curveSpec(curve, marked = false) {
  const { title, stacked } = curve;
  // Evaluations are few and far between: their points are drawn. A verdict that never was is not named.
  const series = curve.series.map((one) => ({ ...one, marked: one.evaluation ?? one.name.startsWith("eval"), style: stacked ? one.name : undefined }));
  const spec = { title, stacked, series: stacked ? series.filter(({ points }) => points.some(([, y]) => y)) : series };
  if (marked) spec.marks = alarmMarks();
  return spec;
}

// One a step; the first of those that came on then is where it leads.
function alarmMarks() {
  const marks = new Map();
  for (const { name, times } of data.head.alarms) {
    for (const alarm of times) {
      const x = loggedStep(alarm.step, "train");
      const title = `${words(name)} at step ${x}: ${alarmTold(alarm.message)}`;
      if (marks.has(x)) marks.get(x).title += `\n${title}`;
      else marks.set(x, { x, title, alarm });
    }
  }
  return [...marks.values()];
}

function nearest(list, wanted) {
  return list.reduce((best, item) => (Math.abs(item - wanted) < Math.abs(best - wanted) ? item : best), list[0]);
}

const nearestStep = (wanted) => nearest(data.steps[state.split], wanted);

const markStep = () => plots.forEach((plot) => plot.rest(loggedStep(state.step, state.split)));
