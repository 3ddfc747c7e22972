// -- curves over the steps

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 56;
const plots = [];

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function drawCurves(curves) {
  const everything = curves.flatMap((curve) => curve.series.flatMap((series) => series.points.map(([x]) => x)));
  const steps = extremes([...everything, ...Object.values(data.steps).flat()]);
  for (const curve of curves) plots.push(newPlot(curve, steps));
  $("curves").append(...plots.map((plot) => plot.node));
  $("curves").hidden = !plots.length;
  new ResizeObserver(() => plots.forEach(drawPlot)).observe($("curves"));
}

function newPlot(curve, steps) {
  const value = el("span", { className: "value" });
  const picture = svg("svg", { role: "img", "aria-label": described(curve) });
  const [low, high] = curve.stacked ? [0, 1] : extremes(curve.series.flatMap((s) => s.points.map(([, y]) => y)));
  const ends = el("span", { className: "end", title: "lowest to highest" }, `${number(low, 3)} – ${number(high, 3)}`);
  const caption = el("figcaption", {}, el("b", {}, curve.title), value, curve.stacked ? null : ends);
  const node = el("figure", { className: "curve" }, caption);
  node.append(picture);
  const plot = { curve, steps, node, picture, value };
  const at = (event) => pointed(plot, event.clientX - picture.getBoundingClientRect().left);
  picture.addEventListener("mousemove", (event) => showValue(plot, at(event)));
  picture.addEventListener("mouseleave", () => showValue(plot, currentX(plot)));
  picture.addEventListener("click", (event) => goToStep(nearestStep(at(event) - offsetOf(plot))));
  return plot;
}

function described(curve) {
  return curve.series.map(({ name, points }) => {
    const [low, high] = extremes(points.map(([, y]) => y));
    return `${name}: ${number(low)} to ${number(high)}, at last ${number(points[points.length - 1][1])}`;
  }).join("; ");
}

const offsetOf = (plot) => (state.split === "train" ? plot.curve.offset : 0);
const currentX = (plot) => state.step + offsetOf(plot);

function scales(plot) {
  const width = Math.max(plot.picture.clientWidth, 60);
  const [first, last] = plot.steps;
  const ys = plot.curve.stacked ? [0, 1] : extremes(plot.curve.series.flatMap((s) => s.points.map(([, y]) => y)));
  const [low, high] = ys[0] < ys[1] ? ys : [ys[0] - 0.5, ys[1] + 0.5];
  return {
    width,
    x: (step) => 3 + ((step - first) / Math.max(last - first, 1)) * (width - 6),
    y: (value) => HEIGHT - 3 - ((value - low) / (high - low)) * (HEIGHT - 6),
    step: (x) => first + ((x - 3) / (width - 6)) * (last - first),
  };
}

function drawPlot(plot) {
  const scale = scales(plot);
  plot.picture.setAttribute("viewBox", `0 0 ${scale.width} ${HEIGHT}`);
  const shapes = plot.curve.stacked ? areas(plot.curve, scale) : plot.curve.series.map((s, i) => line(s, i, scale));
  plot.cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT });
  plot.picture.replaceChildren(...shapes, plot.cursor);
  showValue(plot, currentX(plot));
}

function line({ points, name }, i, { x, y }) {
  const shape = svg("g", { class: i ? "line eval" : "line" }, svg("title", {}, name));
  shape.append(svg("polyline", { points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }));
  if (points.length < 30) shape.append(...points.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: 1.8 })));
  return shape;
}

function areas({ series }, { x, y }) {
  const below = new Map();
  return series.map(({ name, points }) => {
    // One point is drawn as a bar.
    const wide = points.length > 1 ? points : points.flatMap(([a, b]) => [[a - 0.5, b], [a + 0.5, b]]);
    const bottom = wide.map(([a]) => [a, below.get(a) || 0]);
    wide.forEach(([a, b]) => below.set(a, (below.get(a) || 0) + b));
    const edge = [...wide.map(([a]) => [a, below.get(a)]), ...bottom.reverse()];
    const outline = edge.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");
    return svg("polygon", { class: `area ${name}`, points: outline }, svg("title", {}, words(name)));
  });
}

// The step of the point that is nearest to the pointer.
function pointed(plot, x) {
  const wanted = scales(plot).step(x);
  return nearest([...new Set(plot.curve.series.flatMap((s) => s.points.map(([step]) => step)))], wanted);
}

function nearest(list, wanted) {
  return list.reduce((best, item) => (Math.abs(item - wanted) < Math.abs(best - wanted) ? item : best), list[0]);
}

const nearestStep = (wanted) => nearest(data.steps[state.split], wanted);

function showValue(plot, step) {
  if (!plot.cursor) return;
  const x = scales(plot).x(step);
  plot.cursor.setAttribute("x1", x);
  plot.cursor.setAttribute("x2", x);
  const parts = plot.curve.series.flatMap(({ name, points }) => {
    const found = points.find(([at]) => at === step);
    if (!found || (plot.curve.stacked && !found[1])) return [];
    if (plot.curve.stacked) return [el("span", { className: `key ${name}` }), `${words(name)} ${Math.round(100 * found[1])}% `];
    return [`${plot.curve.series.length > 1 ? `${words(name)} ` : ""}${number(found[1])} `];
  });
  plot.value.replaceChildren(...parts, parts.length ? `at ${step}` : "");
}

const markStep = () => plots.forEach((plot) => showValue(plot, currentX(plot)));
