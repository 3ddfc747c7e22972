// -- the header: what the run is, and what it reached

const FEW = 6; // so many options stand in sight, more are folded

function fillAbout() {
  const { about } = data.head;
  const options = Object.entries(about.options || {});
  const facts = [about.model, datasetTold(about.dataset), rewardsTold(data.head.weights), attemptsTold(about)].filter(Boolean);
  const versions = Object.entries(about.versions || {}).map(([name, version]) => `${name} ${version}`);
  if (!about.model && !options.length) return fillPlain(facts);
  const evaluations = Object.entries(about.evaluations || {}).filter(([, rows]) => rows !== null);
  const folded = [
    ["changed options", options.length > FEW ? optionNodes(options) : []],
    ["evaluated on", evaluations.map(([split, rows]) => el("bdi", {}, `${split} (${count(rows, "row")})`))],
    ["versions", versions.map((version) => el("bdi", {}, version))],
  ].filter(([, nodes]) => nodes.length);
  const summary = el("summary", {}, ...dotted(facts.map((fact) => el("bdi", {}, fact))));
  if (options.length > FEW) summary.append(el("span", { className: "muted" }, ` · ${count(options.length, "changed option")}`));
  else if (options.length) summary.append(" · ", ...optionNodes(options));
  const list = el("dl", {}, ...folded.flatMap(([name, nodes]) => [el("dt", {}, name), el("dd", {}, ...nodes)]));
  $("about").append(el("details", {}, summary, list));
  $("about").hidden = false;
}

// A run that was written before it said more.
function fillPlain(facts) {
  $("about").append(...dotted(facts.map((fact) => el("bdi", {}, fact))));
  $("about").hidden = !facts.length;
}

const dotted = (nodes) => nodes.flatMap((node, i) => (i ? [" · ", node] : [node]));

function optionNodes(options) {
  return options.map(([name, value]) => el("code", {}, `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`));
}

function datasetTold(dataset) {
  if (!dataset) return "";
  const rows = dataset.rows === null ? "" : count(dataset.rows, "row");
  return [dataset.name, rows].filter(Boolean).join(", ");
}

function rewardsTold(weights) {
  const told = Object.entries(weights).map(([name, weight]) => {
    return weight === 0 ? `${name} (monitor)` : weight === 1 ? name : `${name} × ${number(weight)}`;
  });
  return told.length ? `${told.length === 1 ? "reward" : "rewards"} ${told.join(" + ")}` : "";
}

const attemptsTold = (about) => (about.num_generations ? `${about.num_generations} attempts a prompt` : "");

// Of each evaluation: the reward at first and at last, and each reward's where there are several.
function fillResults() {
  const { results } = data.head;
  $("results").hidden = !results.length;
  $("results").replaceChildren();
  for (const { split, steps, rewards } of results) {
    const [total, ...each] = rewards;
    const shown = each.length > 1 ? each : [];
    const where = steps.length > 1 ? `steps ${steps.map((step) => number(step)).join(" and ")}` : `step ${number(steps[0])}`;
    const node = el("span", { className: "result", title: `${split}, ${where}` }, el("bdi", {}, words(split)), " reward ", ...endsOf(total));
    for (const one of shown) node.append(el("span", { className: "muted" }, "; ", el("bdi", {}, one[0]), " "), ...endsOf(one, "span"));
    $("results").append(node);
  }
}

function endsOf([, first, last], name = "b") {
  if (last === undefined) return [el(name, {}, number(first, 3))];
  return [number(first, 3), " → ", el(name, {}, number(last, 3))];
}
