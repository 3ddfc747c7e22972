// -- curves over the steps

const plots = []; // with the offset of each

function drawCurves(curves) {
  const xs = curvesSpan();
  curves.forEach((curve, i) => plots.push(newCurve(curve, xs, i < MARKED)));
  $("curves").append(...plots.map(({ plot }) => plot.node));
  $("curves").hidden = !plots.length;
}

// All share their time axis.
function curvesSpan() {
  const everything = data.head.curves.flatMap((curve) => curve.series.flatMap((series) => series.points.map(([x]) => x)));
  return extremes([...everything, ...Object.values(data.steps).flat()]);
}

const MARKED = 2; // so many of the first plots bear marks of alarms

function newCurve(curve, xs, marked = false) {
  const { title, stacked, offset } = curve;
  // Evaluations are few and far between: their points are drawn. A verdict that never was is not named.
  const series = curve.series.map((one) => ({ ...one, marked: one.evaluation ?? one.name.startsWith("eval"), style: stacked ? one.name : undefined }));
  const spec = { title, stacked, series: stacked ? series.filter(({ points }) => points.some(([, y]) => y)) : series };
  if (marked) spec.marks = alarmMarks(offset);
  const pick = (x) => goToStep(nearestStep(x - offsetOf(offset)));
  return { offset, plot: newPlot(spec, { xs, pick, go: (mark) => goToAlarm(mark.alarm) }) };
}

// One a step; the first of those that came on then is where it leads.
function alarmMarks(offset) {
  const marks = new Map();
  for (const { name, times } of data.head.alarms) {
    for (const alarm of times) {
      const x = alarm.step + offset;
      const title = `${words(name)} at step ${alarm.step}: ${alarm.message}`;
      if (marks.has(x)) marks.get(x).title += `\n${title}`;
      else marks.set(x, { x, title, alarm });
    }
  }
  return [...marks.values()];
}

// A point of the training is logged after its step.
const offsetOf = (offset) => (state.split === "train" ? offset : 0);

function nearest(list, wanted) {
  return list.reduce((best, item) => (Math.abs(item - wanted) < Math.abs(best - wanted) ? item : best), list[0]);
}

const nearestStep = (wanted) => nearest(data.steps[state.split], wanted);

const markStep = () => plots.forEach(({ plot, offset }) => plot.rest(state.step + offsetOf(offset)));
