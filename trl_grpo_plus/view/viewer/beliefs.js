// -- what was believed of prompts before they were sampled

const PLOT = 210; // px, as in style.css
const EDGE = 20;

function beliefNode(g) {
  const [mean, std, attempts, earned, of] = data.belief[g];
  const on = attempts === null ? "" : ` on ${count(Math.round(10 * attempts) / 10, "attempt")}`;
  const told = `believed ${number(mean, 3)} ± ${number(std, 3)}${on}; earned ${number(earned, 3)}`;
  return el("span", { className: "belief" }, of ? el("bdi", {}, of) : null, of ? ": " : null, told);
}

// -- calibration: by tenths of what was believed, what was earned

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
  const name = (steps, i) => `${i ? "last, " : "all, "}${steps.map((step) => number(loggedStep(step, "train"))).join(" – ")}`;
  const chosen = Math.max($("calibration-steps").selectedIndex, 0);
  $("calibration-steps").replaceChildren(...spans.map(({ steps }, i) => el("option", {}, name(steps, i))));
  $("calibration-steps").selectedIndex = Math.min(chosen, spans.length - 1);
  $("calibration-steps").oninput = draw;
  $("calibration").hidden = false;
  draw();
}

function calibrationPlot(tenths, [low, high]) {
  const at = (value) => EDGE + ((value - low) / (high - low)) * (PLOT - 2 * EDGE);
  const most = Math.max(...tenths.map(([n]) => n));
  const circles = tenths.map(([n, believed, earned]) => {
    const told = `believed ${number(believed, 3)}, earned ${number(earned, 3)}: ${count(n, "group")}`;
    const place = { cx: at(believed).toFixed(1), cy: (PLOT - at(earned)).toFixed(1), r: (2 + 9 * Math.sqrt(n / most)).toFixed(1) };
    return svg("circle", place, svg("title", {}, told));
  });
  const [from, to] = [at(low), at(high)];
  const label = (x, y, text, more) => svg("text", { x, y, ...more }, text);
  return svg(
    "svg",
    { role: "img", "aria-label": "What was earned against what was believed, by tenths", viewBox: `0 0 ${PLOT} ${PLOT}` },
    svg("line", { class: "diagonal", x1: from, y1: PLOT - from, x2: to, y2: PLOT - to }),
    label(PLOT / 2, PLOT - 5, "believed", { "text-anchor": "middle" }),
    label(4, EDGE - 6, "earned"),
    label(4, PLOT - 5, number(low, 3)),
    label(PLOT - 4, PLOT - 5, number(high, 3), { "text-anchor": "end" }),
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
