// -- what groups are sorted and filtered by

// Where its prompt's groups begin in this page.
const firstSeen = (g) => loggedStepOf(promptGroups().get(keyOfPrompt(g))[0]);
const known = (g) => rewardsOf(g).filter((reward) => reward !== null);
const largest = (values) => (values.length ? values.reduce((a, b) => Math.max(a, b)) : null);
const least = (values) => (values.length ? values.reduce((a, b) => Math.min(a, b)) : null);
const spread = (values) => (values.length ? largest(values) - least(values) : null);

// name -> what it is called, its value of a group (null where there is none), and whether the largest come first
const MEASURES = {
  mean: ["mean reward", meanReward, false],
  spread: ["spread of rewards", (g) => spread(known(g)), true],
  best: ["best reward", (g) => largest(known(g)), false],
  worst: ["worst reward", (g) => least(known(g)), false],
  tokens: ["mean length", (g) => data.tokens?.[g] ?? null, true],
  entropy: ["entropy of answers", (g) => data.entropy?.[g] ?? null, true],
  first: ["step first seen", firstSeen, false],
};

const measured = (name) => !["tokens", "entropy"].includes(name) || (data[name] || []).some((value) => value !== null);

// `rows` by state.sort; those without a value last, equal ones as they were sampled.
function sorted(rows) {
  if (!state.sort) return rows;
  const value = MEASURES[state.sort][1];
  const values = new Map(rows.map((g) => [g, value(g)]));
  const sign = state.down ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const [x, y] = [values.get(a), values.get(b)];
    if (x === null || y === null) return (x === null) - (y === null) || a - b;
    return sign * (x - y) || a - b;
  });
}

// Whether a group's measure, or where none is named any attempt's reward, is within the bounds.
function inRange(g, { measure, low, high }) {
  const values = measure ? [MEASURES[measure][1](g)] : rewardsOf(g);
  return values.some((value) => value !== null && (low === null || value >= low) && (high === null || value <= high));
}

function fillSort() {
  const choices = Object.entries(MEASURES).filter(([name]) => measured(name)).map(([name, [label]]) => [name, label]);
  options("sort", [["", "as sampled"], ...choices]);
  options("measure", [["", "any reward"], ...choices]);
  $("sort").addEventListener("input", () => setSort($("sort").value));
  $("sort-way").addEventListener("click", () => setSort(state.sort, !state.down));
  $("worst").addEventListener("click", goToWorst);
  showSort();
}

function setSort(name, down = name ? MEASURES[name][2] : false) {
  Object.assign(state, { sort: name, down });
  showSort();
  if ($("cancel").hidden) setRows(state.rows.slice().sort((a, b) => a - b), ""); // a search sorts what it finds
  $("list").scrollTop = 0;
}

function showSort() {
  $("sort").value = state.sort;
  $("sort-way").hidden = !state.sort;
  $("sort-way").textContent = state.down ? "↓" : "↑";
  $("sort-way").setAttribute("aria-label", state.down ? "Largest first" : "Smallest first");
  $("sort-way").title = state.down ? "Largest first; turn round" : "Smallest first; turn round";
}

// -- the worst

const isLive = (g) => (data.verdict[g] ? data.verdict[g] === "alive" : spread(known(g)) > 0);

// The live group of the lowest mean reward in the list.
function goToWorst() {
  let found = -1;
  let lowest = Infinity;
  for (const g of state.rows) {
    const mean = isLive(g) ? meanReward(g) : null;
    if (mean !== null && mean < lowest) [found, lowest] = [g, mean];
  }
  if (found < 0) return announce("No live group in the list.");
  leaveLists();
  select(found);
}

// The attempt of the lowest reward, with the focus on its text.
function goToWorstAttempt() {
  const columns = [...document.querySelectorAll("#columns .attempt[data-reward]")];
  const worst = columns.reduce((a, b) => (a && Number(a.dataset.reward) <= Number(b.dataset.reward) ? a : b), null);
  if (!worst) return announce("No attempt has a reward.");
  worst.scrollIntoView({ inline: "nearest", block: "nearest" });
  worst.querySelector(".body").focus({ preventScroll: true });
}

function announce(text) {
  $("status").textContent = text;
}
