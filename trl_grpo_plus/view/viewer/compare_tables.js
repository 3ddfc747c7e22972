// -- tables of several runs: what came of each, and the options in which they differ

const cell = (...children) => el("td", {}, ...children);
const heading = (text, scope) => el("th", { scope }, el("bdi", {}, text));

function fillOutcomes() {
  const { runs } = data.head;
  const splits = [...new Set(runs.flatMap((run) => Object.keys(run.splits)))].sort();
  const names = ["run", ...splits.map((split) => `${words(split)}: first → last`), "steps", "rollouts", "tokens", "seconds", "alarms"];
  const rows = runs.map((run, r) => el("tr", {}, runCell(run, r), ...splits.map((split) => splitCell(run.splits[split])), ...spentCells(run), alarmCell(run.alarms)));
  $("outcomes").append(el("thead", {}, el("tr", {}, ...names.map((name) => heading(name, "col")))), el("tbody", {}, ...rows));
}

function runCell(run, r) {
  const box = el("input", { type: "checkbox", checked: true, "aria-label": `Draw ${run.name}` });
  box.addEventListener("input", () => {
    if (box.checked) curves.hidden.delete(r);
    else curves.hidden.add(r);
    drawCurves();
  });
  const siblings = data.head.settings.find((runs) => runs.includes(r)).filter((other) => other !== r);
  const told = siblings.length ? el("span", { className: "muted" }, ` same setting as ${siblings.map(runName).join(", ")}`) : null;
  return el("th", { scope: "row" }, el("label", {}, box, " ", runKey(r), el("bdi", {}, run.name)), told);
}

function splitCell(ends) {
  if (!ends) return cell(el("span", { className: "muted" }, "not evaluated"));
  const [[from, before], [to, after]] = ends;
  if (from === to) return cell(el("b", {}, number(after, 3)), el("span", { className: "muted" }, ` at ${number(to)} only`));
  const change = number(Number((after - before).toPrecision(3)), 3);
  const told = `${after > before ? "+" : ""}${change}`;
  return cell(`${number(before, 3)} → `, el("b", {}, number(after, 3)), el("span", { className: "muted" }, ` ${told} from ${number(from)} to ${number(to)}`));
}

const spentCells = (run) => ["steps", "rollouts", "tokens", "seconds"].map((name) => cell(run[name] === undefined || run[name] === null ? el("span", { className: "muted" }, "not logged") : number(name === "seconds" ? Number(run[name].toPrecision(3)) : run[name])));

function alarmCell(alarms) {
  if (!alarms) return cell(el("span", { className: "muted" }, "not watched"));
  const names = Object.entries(alarms).sort(([, a], [, b]) => b - a);
  if (!names.length) return cell("none");
  return cell(...names.flatMap(([name, n]) => [el("span", { className: "alarm-mark" }, n > 1 ? `${words(name)} × ${n}` : words(name)), " "]));
}

function fillOptions() {
  const { settings, options, runs } = data.head;
  if (settings.length < 2 || !options.length) {
    const why = settings.length < 2 ? "The runs differ in the seed alone." : "No option that is known differs.";
    $("options").closest(".wide").hidden = true;
    $("options-note").textContent = why;
    return;
  }
  const columns = settings.map((of) => el("th", { scope: "col" }, ...of.flatMap((r) => [runKey(r), el("bdi", {}, `${runs[r].name} `)])));
  const rows = options.map(([name, ...values]) => {
    const cells = values.map((value) => (value === null ? cell(el("span", { className: "muted" }, "not known")) : cell(el("bdi", {}, value))));
    return el("tr", {}, heading(name, "row"), ...cells);
  });
  $("options").append(el("thead", {}, el("tr", {}, heading("option", "col"), ...columns)), el("tbody", {}, ...rows));
}
