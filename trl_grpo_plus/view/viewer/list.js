// -- the list of groups: of which only the rows in sight are in the page

const ROW = 68; // px, as in style.css
const DOTS = 36; // most of them in a row

function matching() {
  const { verdict, alarm, kept, low, high } = state.filters;
  const found = [];
  for (let g = 0; g < data.n; g++) {
    if (data.split[g] !== state.split || (state.scope === "step" && data.step[g] !== state.step)) continue;
    if (verdict && data.verdict[g] !== verdict) continue;
    if (alarm && !(alarm === "*" ? data.alarms[g].length : data.alarms[g].includes(alarm))) continue;
    if (kept && !(kept === "*" ? data.kept[g] === 1 : data.kept[g] === 0 && data.reason[g] === kept)) continue;
    if ((low !== null || high !== null) && !inRange(g, low, high)) continue;
    found.push(g);
  }
  return found;
}

function inRange(g, low, high) {
  return rewardsOf(g).some((r) => r !== null && (low === null || r >= low) && (high === null || r <= high));
}

function drawList() {
  $("rows").style.height = `${state.rows.length * ROW}px`;
  drawRows();
}

function drawRows() {
  const list = $("list");
  const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 3);
  const to = Math.min(state.rows.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 3);
  const rows = [];
  for (let i = from; i < to; i++) rows.push(drawRow(state.rows[i], i));
  $("rows").replaceChildren(...rows);
  const chosen = state.rows.indexOf(state.group);
  if (chosen >= from && chosen < to) list.setAttribute("aria-activedescendant", `row-${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

function drawRow(g, i) {
  const row = el("div", { id: `row-${i}`, className: "row", role: "option", title: data.title[g] });
  row.setAttribute("aria-selected", g === state.group);
  row.setAttribute("aria-posinset", i + 1);
  row.setAttribute("aria-setsize", state.rows.length);
  row.style.top = `${i * ROW}px`;
  row.append(rowTitle(g), rowScores(g), rowFacts(g));
  row.addEventListener("click", () => select(g));
  return row;
}

function rowTitle(g) {
  const step = state.scope === "all" && data.steps[state.split].length > 1 ? el("span", { className: "muted" }, `step ${data.step[g]} `) : null;
  return el("div", { className: "row-title" }, step, el("bdi", {}, data.title[g] || "(empty prompt)"));
}

function rowScores(g) {
  const rewards = rewardsOf(g);
  const known = rewards.filter((r) => r !== null);
  const size = rewards.length <= 12 ? "" : rewards.length <= 16 ? "small" : "bars";
  const dots = el("span", { className: `dots ${size}` }, ...rewards.slice(0, DOTS).map((r) => dot(r, data.range)));
  if (rewards.length > DOTS) dots.append(` +${rewards.length - DOTS}`);
  const best = known.length ? Math.max(...known) : null;
  return el("div", { className: "row-line" }, dots, el("span", { className: "end" }, `mean ${number(meanOf(known), 3)}  max ${number(best, 3)}`));
}

function rowFacts(g) {
  const line = el("div", { className: "row-line" }, badge(data.verdict[g]));
  if (data.round[g]) line.append(el("span", { className: "tag" }, `round ${data.round[g]}`));
  if (data.batch[g]) line.append(el("span", { className: "tag" }, `batch ${data.batch[g]}`));
  if (data.kept[g] !== null) line.append(el("span", { className: "muted" }, data.kept[g] ? "trained on" : words(data.reason[g] || "not trained on")));
  for (const name of data.alarms[g]) line.append(el("span", { className: "alarm-mark" }, words(name)));
  return line;
}

const treatment = (g) => (data.kept[g] ? "trained on" : `not trained on: ${words(data.reason[g] || "no reason given")}`);

function badge(verdict) {
  return verdict ? el("span", { className: `badge ${verdict}` }, words(verdict)) : null;
}

function showRow() {
  const at = state.rows.indexOf(state.group) * ROW;
  const list = $("list");
  if (at < 0) return;
  if (at < list.scrollTop) list.scrollTop = at;
  else if (at + ROW > list.scrollTop + list.clientHeight) list.scrollTop = at + ROW - list.clientHeight;
}

function drawLegend() {
  const [low, high] = data.range;
  const swatches = SCALE.map((fill) => {
    const node = el("span", { className: "swatch" });
    node.style.background = fill;
    return node;
  });
  const total = data.head.note ? "Sum" : "Reward";
  $("legend").append(`${total} ${number(low)} `, ...swatches, ` ${number(high)} `, dot(null), " unscored");
}
