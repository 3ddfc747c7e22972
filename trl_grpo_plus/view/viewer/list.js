// -- the list of groups

const ROW = 68; // px, as in style.css
const DOTS = 36; // most of them in a row

function matching() {
  const { verdict, alarm, differs, kept, low, high } = state.filters;
  const found = [];
  for (let g = 0; g < data.n; g++) {
    if (data.split[g] !== state.split || (state.scope === "step" && data.step[g] !== state.step)) continue;
    if (verdict && data.verdict[g] !== verdict) continue;
    if (alarm && !(alarm === "*" ? data.alarms[g].length : data.alarms[g].includes(alarm))) continue;
    if (!disagrees(g, differs)) continue;
    if (kept && !(kept === "*" ? data.kept[g] === 1 : data.kept[g] === 0 && data.reason[g] === kept)) continue;
    if ((low !== null || high !== null) && !inRange(g, state.filters)) continue;
    found.push(g);
  }
  return found;
}

function drawList() {
  $("rows").style.height = `${state.rows.length * ROW}px`;
  drawRows();
}

function drawRows() {
  drawListbox($("list"), { name: "row", rows: state.rows, tall: ROW, chosen: state.rows.indexOf(state.group), row: drawRow });
}

function drawRow(g) {
  const row = el("div", { className: "row", title: plainly(data.title[g]) }, rowTitle(g), rowScores(g), rowFacts(g));
  row.addEventListener("click", () => [leaveLists(), select(g)]);
  return row;
}

function rowTitle(g) {
  const step = state.scope === "all" && data.steps[state.split].length > 1 ? el("span", { className: "muted" }, `step ${loggedStepOf(g)} `) : null;
  return el("div", { className: "row-title" }, step, titleNode(data.title[g]));
}

function rowScores(g) {
  const rewards = rewardsOf(g);
  const known = rewards.filter((r) => r !== null);
  const size = rewards.length <= 12 ? "" : rewards.length <= 16 ? "small" : "bars";
  const dots = el("span", { className: `dots ${size}` }, ...rewards.slice(0, DOTS).map((r) => dot(r)));
  if (rewards.length > DOTS) dots.append(` +${rewards.length - DOTS}`);
  return el("div", { className: "row-line" }, dots, el("span", { className: "end" }, `mean ${number(meanOf(known), 3)}  ${second(g, known)}`));
}

// What the list is sorted by, else the best.
function second(g, known) {
  const names = { spread: "spread", worst: "min", tokens: "tokens", entropy: "entropy", first: "first" };
  return names[state.sort] ? `${names[state.sort]} ${number(MEASURES[state.sort][1](g), 3)}` : `max ${number(largest(known), 3)}`;
}

function rowFacts(g) {
  const line = el("div", { className: "row-line" }, badge(data.verdict[g]));
  if (data.round[g]) line.append(el("span", { className: "tag" }, `round ${data.round[g]}`));
  if (data.batch[g]) line.append(el("span", { className: "tag" }, `batch ${data.batch[g]}`));
  if (data.kept[g] !== null) line.append(el("span", { className: "muted" }, data.kept[g] ? "trained on" : words(data.reason[g] || "not trained on")));
  for (const name of data.alarms[g]) line.append(el("span", { className: "alarm-mark" }, words(name)));
  line.append(...rescoredMarks(g));
  return line;
}

const treatment = (g) => (data.kept[g] ? "trained on" : `not trained on: ${words(data.reason[g] || "no reason given")}`);

function badge(verdict) {
  return verdict ? el("span", { className: `badge ${verdict}` }, words(verdict)) : null;
}

function showRow() {
  const at = state.rows.indexOf(state.group);
  if (at >= 0) showInList($("list"), at, ROW);
}

// Which rewards a colour stands for: one each where they are few, else those from its number to the next.
function drawLegend() {
  const many = data.range[1] > data.scale[data.scale.length - 1];
  const stops = data.scale.map((low, i) => {
    const swatch = el("span", { className: "swatch" });
    swatch.style.background = colour(low, data.scale);
    const upTo = data.scale[i + 1] ?? data.range[1];
    const title = many ? `from ${number(low)} ${i + 1 < data.scale.length ? "to below" : "to"} ${number(upTo)}` : "";
    return el("span", { className: "stop", title }, swatch, many && !i ? `${number(low, 3)} …` : many ? `≥ ${number(low, 3)}` : number(low, 3));
  });
  const total = data.head.note ? "Sum" : "Reward";
  const rule = many ? ` (to ${number(data.range[1], 3)}; each colour about as many distinct values) ` : " ";
  $("legend").replaceChildren(`${total} `, ...stops.flatMap((stop) => [stop, " "]), rule, el("span", { className: "stop" }, dot(null), "unscored"));
}
