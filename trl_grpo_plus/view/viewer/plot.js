// Draws a plot: series over x, from plain data. Both pages use it. It needs base.js, and uses no `state` of a page.
//
// newPlot(spec, {xs, pick, go}) -> {node, rest(x), fill(spec, xs)}. The plot redraws itself when its width changes.
//   spec.title    text above the plot
//   spec.xName    name of the x axis, "step" by default
//   spec.series   [{name, points, style, marked, band, label}]
//                 points: [[x, y], ...] sorted by x
//                 style:  the CSS class with its colour; by default s0 to s7 in turn
//                 marked: whether its points are drawn, not only the line between them
//                 band:   [[x, low, high], ...], drawn around the line
//                 label:  the name that is shown; by default `name` with spaces for underscores
//   spec.stacked  whether the series are drawn as areas upon each other: shares that add up to 1
//   spec.range    [low, high] of y; by default the range of the data
//   spec.marks    [{x, title}], drawn at the upper edge
//   spec.dots     [{x, y, style, title}], drawn over the lines
//   xs            [first, last] of the x axis; by default those of the data
//   pick(x)       is called on a click in the plot and on Enter
//   go(mark), go(dot)  is called on a click on a mark or a dot
//   fill(spec, xs) draws other data into the same node; it does nothing if the data is the same. The cursor stays.
//   rest(x)       sets where the cursor stands while nobody points at the plot. With null there is no cursor, and the
//                 last value of each series is shown.

const SVG = "http://www.w3.org/2000/svg";
const PLOT_HEIGHT = 96; // px, as in style.css
const KEY_ROWS = 7; // names of series that have room beside a plot; with more of them the list scrolls
const SHAPES = ["M-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0", "M-2.4-2.4h4.8v4.8h-4.8z", "M0-3.3L3.3 0L0 3.3L-3.3 0z", "M0-3L3 2.4H-3z"];

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function newPlot(spec, { xs, pick, go } = {}) {
  const plot = { at: null, resting: null, go, pick };
  plot.where = svg("g", { class: "where" }, svg("rect", { height: 14, y: PLOT_HEIGHT - 14 }), svg("text", { y: PLOT_HEIGHT - 3 }));
  plot.picture = svg("svg", { role: "slider", tabindex: 0 });
  plot.caption = el("figcaption", {});
  plot.key = el("div", { className: "value" });
  plot.node = el("figure", {}, plot.caption, plot.key, plot.picture);
  plot.rest = (x) => restAt(plot, x);
  plot.fill = (spec, xs) => fillPlot(plot, spec, xs);
  plot.fill(spec, xs);
  listenTo(plot);
  new ResizeObserver(() => drawPlot(plot)).observe(plot.picture);
  return plot;
}

function fillPlot(plot, spec, xs) {
  const filled = JSON.stringify([spec, xs]);
  if (plot.filled === filled) return;
  const series = spec.series.filter(({ points }) => points.length);
  const all = ascending(new Set(series.flatMap(({ points }) => points.map(([x]) => x))));
  const range = spec.range || (spec.stacked ? [0, 1] : extremes(series.flatMap(plotHeights)));
  const ends = xs || extremes(all);
  Object.assign(plot, { filled, spec, series, all, range, xs: ends, values: series.map(() => el("span", {})) });
  const attributes = { "aria-label": plotLabel(plot), "aria-valuemin": ends[0], "aria-valuemax": ends[1] };
  for (const [name, value] of Object.entries(attributes)) plot.picture.setAttribute(name, value);
  plot.node.className = ["curve", spec.stacked && "stacked", series.length > 1 && "many", series.length > KEY_ROWS && "crowded"].filter(Boolean).join(" ");
  plot.caption.replaceChildren(el("b", { className: "title", title: spec.title }, el("bdi", {}, spec.title)));
  plot.key.replaceChildren(...plotKey(plot));
  plot.node.style.setProperty("--key", keyWidth(plot));
  if (series.length > KEY_ROWS) plot.key.tabIndex = 0; // it scrolls
  else plot.key.removeAttribute("tabindex");
  showAt(plot, plot.at);
  drawPlot(plot);
}

// Move the resting place of the cursor. The cursor itself stays where a reader points, unless the resting place
// changes.
function restAt(plot, x) {
  const undisturbed = plot.at !== plot.resting && x === plot.resting;
  plot.resting = x;
  if (!undisturbed) showAt(plot, x);
}

const plotHeights = ({ points, band }) => [...points, ...(band || [])].flatMap(([, ...ys]) => ys);
const styleOf = ({ style }, i) => style || `s${i % 8}`;
const nameOf = ({ label, name }) => label || words(name);

function plotLabel({ spec, series }) {
  return [spec.title, ...series.map((one) => `${nameOf(one)}: ${courseText(one.points)}`)].join("; ");
}

function courseText(points) {
  const ends = endTexts(extremes(points.map(([, y]) => y)), 4);
  return ends.length > 1 ? `${ends.join(" to ")}, at last ${number(points.at(-1)[1])}` : `${ends[0]} throughout`;
}

const MOST_DIGITS = 7; // two values that agree in 7 digits are shown as one

// Return both ends of a range as texts, with as many digits as are needed to tell them apart; one text if they are
// equal.
function endTexts([low, high], digits = 3) {
  for (let n = digits; n <= MOST_DIGITS; n++) {
    const texts = [low, high].map((end) => number(end, n));
    if (texts[0] !== texts[1]) return texts;
  }
  return [number(low, digits)];
}

// Return a node for each series: its line or colour, its name, and its value at the cursor. A single series has no name
// there if its name is the title or "train".
function plotKey({ spec, series, values }) {
  return series.map((one, i) => {
    const named = series.length > 1 || (nameOf(one) !== words(spec.title) && one.name !== "train");
    const swatch = spec.stacked ? el("span", { className: `key ${styleOf(one, i)}` }) : lineKey(one, i);
    const name = named ? [swatch, el("bdi", { title: nameOf(one) }, `${nameOf(one)} `)] : [];
    return el("div", { className: "series" }, ...name, values[i]);
  });
}

// Return the CSS width that the longest name and values need. It does not depend on the values at the cursor: otherwise
// the plot would change its width as the cursor moves.
function keyWidth({ spec, series }) {
  const letters = series.map((one) => nameOf(one).length + (spec.stacked ? 11 : 4 + 9 * Math.min(one.points.length, one.marked ? 3 : 1)));
  return `calc(${Math.ceil(0.82 * largest(letters))}ch + ${spec.stacked ? 14 : 28}px)`;
}

function lineKey(one, i) {
  const shape = svg("g", { class: `line ${styleOf(one, i)}` }, svg("path", { d: "M0 5H20", class: "stroke" }));
  if (one.marked) shape.append(svg("path", { d: SHAPES[i % SHAPES.length], transform: "translate(10 5)", class: "point" }));
  return svg("svg", { class: "line-key", viewBox: "0 0 20 10", "aria-hidden": "true" }, shape);
}

function listenTo(plot) {
  const { picture } = plot;
  const pointed = (event) => Math.round(plot.scale.back(event.clientX - picture.getBoundingClientRect().left));
  picture.addEventListener("pointermove", (event) => plot.scale && showAt(plot, pointed(event)));
  for (const name of ["pointerleave", "blur"]) picture.addEventListener(name, () => showAt(plot, plot.resting));
  picture.addEventListener("click", (event) => plot.pick && plot.scale && plot.pick(pointed(event)));
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: nextX(plot, 1), ArrowLeft: nextX(plot, -1), Home: plot.all[0], End: plot.all.at(-1) };
    if (Object.hasOwn(moves, event.key)) showAt(plot, moves[event.key] ?? plot.at);
    else if (event.key === "Enter" && plot.pick && plot.at !== null) plot.pick(plot.at);
    else return;
    event.preventDefault();
    event.stopPropagation(); // elsewhere on a page these keys move about
  });
}

const nextX = ({ all, at }, by) => (by > 0 ? all.find((x) => at === null || x > at) : all.findLast((x) => at === null || x < at));

// -- drawing

function plotScale({ picture, xs: [first, last], range, spec }) {
  const width = Math.max(picture.clientWidth, 60);
  const texts = spec.stacked ? ["0 %", "100 %"] : endTexts(range);
  const [low, high] = texts.length > 1 ? range : [range[0] - 0.5, range[0] + 0.5];
  const ends = texts.map((text, i) => [range[i], text]);
  const left = 10 + 6 * Math.max(...texts.map((text) => text.length));
  const [right, foot, top] = [6, PLOT_HEIGHT - 15, 7];
  const step = (width - left - right) / Math.max(last - first, 1);
  return {
    ...{ width, left, right: width - right, foot, top, ends },
    x: (x) => left + (x - first) * step,
    y: (y) => foot - ((y - low) / (high - low)) * (foot - top),
    back: (x) => Math.min(last, Math.max(first, first + (x - left) / step)),
  };
}

function drawPlot(plot) {
  if (!plot.picture.clientWidth) return;
  const scale = plotScale(plot);
  plot.scale = scale;
  plot.picture.setAttribute("viewBox", `0 0 ${scale.width} ${PLOT_HEIGHT}`);
  plot.cursor = svg("line", { class: "cursor", y1: 0, y2: PLOT_HEIGHT - 14 });
  const shapes = plot.spec.stacked ? plotAreas(plot.series, scale) : plot.series.map((one, i) => plotLine(one, i, scale));
  const { marks = [], dots = [] } = plot.spec;
  const spots = [...marks.map((mark) => [mark, markNode(scale, mark)]), ...dots.map((dot) => [dot, plotDot(scale, dot)])];
  if (plot.go) for (const [spot, node] of spots) node.addEventListener("click", (event) => [event.stopPropagation(), plot.go(spot)]);
  plot.picture.replaceChildren(...plotAxes(plot), ...shapes, plot.cursor, plot.where, ...spots.map(([, node]) => node));
  showAt(plot, plot.at);
}

function plotAxes(plot) {
  const { scale, xs: [first, last], spec } = plot;
  const label = (x, y, anchor, text) => svg("text", { x, y, "text-anchor": anchor }, text);
  const nodes = scale.ends.flatMap(([end, text]) => [
    svg("line", { class: "grid", x1: scale.left, x2: scale.right, y1: scale.y(end), y2: scale.y(end) }),
    label(scale.left - 4, scale.y(end) + 3.5, "end", text),
  ]);
  const name = `${spec.xName || "step"} ${number(first)}`;
  const start = label(scale.left, PLOT_HEIGHT - 3, "start", name);
  nodes.push(start);
  const from = scale.left + 6 * name.length + 12;
  plot.ticks = [[start, scale.left, from - 12]]; // [label, left, right]
  for (const x of plotTicks(first, last, (scale.right - scale.left) / 70)) {
    const wide = 3.2 * number(x).length;
    if (scale.x(x) - wide < from) continue;
    const over = Math.max(0, scale.x(x) + wide - scale.width);
    const text = label(scale.x(x) - over, PLOT_HEIGHT - 3, "middle", number(x));
    nodes.push(svg("line", { class: "grid", x1: scale.x(x), x2: scale.x(x), y1: scale.foot, y2: scale.foot + 3 }), text);
    plot.ticks.push([text, scale.x(x) - over - wide, scale.x(x) - over + wide]);
  }
  return nodes;
}

// Return round numbers between `first` and `last`, about `most` of them, for the labels of the x axis.
function plotTicks(first, last, most) {
  const rough = Math.max((last - first) / Math.max(most, 1), 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const from = Math.floor(first / step) + 1;
  return Array.from({ length: Math.max(0, Math.floor(last / step) - from + 1) }, (_, i) => (from + i) * step);
}

const plotPath = (points, { x, y }) => points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ");

function plotLine(one, i, scale) {
  const { points, band, marked } = one;
  const shape = svg("g", { class: `line ${styleOf(one, i)}` }, svg("title", {}, nameOf(one)));
  const upper = (band || []).map(([x, , high]) => [x, high]).reverse();
  if (band) shape.append(svg("polygon", { class: "band", points: plotPath([...band, ...upper], scale) }));
  shape.append(svg("polyline", { class: "stroke", points: plotPath(points, scale) }));
  const spot = (point) => svg("path", { class: "point", d: SHAPES[i % SHAPES.length], transform: `translate(${plotPath([point], scale)})` });
  if (points.length < 2 || (marked && points.length < 100)) shape.append(...points.map(spot));
  return shape;
}

function plotAreas(series, scale) {
  const below = new Map();
  return series.map((one, i) => {
    // One point is drawn as a bar.
    const wide = one.points.length > 1 ? one.points : one.points.flatMap(([a, b]) => [[a - 0.5, b], [a + 0.5, b]]);
    const bottom = wide.map(([a]) => [a, below.get(a) || 0]);
    wide.forEach(([a, b]) => below.set(a, (below.get(a) || 0) + b));
    const edge = [...wide.map(([a]) => [a, below.get(a)]), ...bottom.reverse()];
    return svg("polygon", { class: `area ${styleOf(one, i)}`, points: plotPath(edge, scale) }, svg("title", {}, nameOf(one)));
  });
}

function markNode(scale, mark) {
  const x = scale.x(mark.x);
  const line = svg("line", { x1: x, x2: x, y1: 0, y2: scale.foot });
  return svg("g", { class: "mark" }, svg("title", {}, mark.title), line, svg("path", { d: `M${x - 5} 0h10l-5 8z` }));
}

function plotDot({ x, y }, dot) {
  return svg("circle", { class: `spot ${dot.style}`, cx: x(dot.x).toFixed(1), cy: y(dot.y).toFixed(1), r: 4 }, svg("title", {}, dot.title));
}

// -- the values at x: for each series the value of its last point at or before x

// Return the index of the last point at or before x; -1 if there is none.
function indexAtOrBefore(points, x) {
  let [low, high] = [0, points.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function showAt(plot, x) {
  plot.at = x;
  const { spec, series, values, picture, cursor, where, scale } = plot;
  where.lastChild.textContent = x === null ? "" : `${spec.xName || "step"} ${number(x)}`;
  const shown = series.map(({ points, marked }, i) => {
    const found = x === null ? points.at(-1) : points[indexAtOrBefore(points, x)];
    const value = found ? (spec.stacked ? `${Math.round(100 * found[1])} %` : number(found[1])) : "–";
    const from = found && found[0] !== x ? ` at ${number(found[0])}` : "";
    // Evaluations are few: show their first and their last value beside the one at the cursor.
    const [first, last] = marked && points.length > 1 ? [points[0], points.at(-1)] : [];
    values[i].replaceChildren(
      first && first !== found ? `${number(first[1], 3)} → ` : "",
      found || !first ? el("b", {}, first ? number(found[1], 3) : value) : "",
      from,
      last && last !== found ? `${found ? " → " : ""}${number(last[1], 3)}` : "",
    );
    return `${nameOf(series[i])} ${value}${from}`;
  });
  picture.setAttribute("aria-valuenow", x ?? plot.xs[1]);
  picture.setAttribute("aria-valuetext", [where.textContent, ...shown].filter(Boolean).join(", "));
  if (!cursor) return;
  for (const node of [cursor, where]) node.setAttribute("visibility", x === null ? "hidden" : "visible");
  for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale.x(x ?? 0));
  const wide = 6 * where.textContent.length + 6;
  const begin = Math.max(scale.left - 3, Math.min(scale.width - wide, scale.x(x ?? 0) - wide / 2));
  where.setAttribute("transform", `translate(${begin.toFixed(1)})`);
  where.firstChild.setAttribute("width", wide);
  // Hide labels of the axis that the cursor's own label would cover in part.
  for (const [text, left, right] of plot.ticks) {
    text.setAttribute("visibility", x !== null && left < begin + wide && right > begin ? "hidden" : "visible");
  }
}
