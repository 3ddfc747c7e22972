// -- a reward that was tried on what a run sampled: where it disagrees with what was recorded

function fillRescored() {
  const { rescored } = data.head;
  if (!rescored) return;
  const groups = rescored.words.map((_, kind) => data.differs.filter((kinds) => kinds.includes(kind)).length);
  const choices = rescored.words.map((name, kind) => [String(kind), `${name} (${count(groups[kind], "group")})`]);
  options("differs", [["", "–"], ...choices.filter((_, kind) => groups[kind])]);
  $("note").after(el("p", { id: "rescored" }, rescored.told));
  setScope("all");
  $("differs").value = usualDiffers();
}

// The page opens on all groups that disagree, if there are any.
const usualDiffers = () => (data.differs?.some((kinds) => kinds.length) ? "0" : "");
const disagrees = (g, kind) => !kind || data.differs[g].includes(Number(kind));

// Of a group: how attempts disagree, and what its verdict would be.
function rescoredMarks(g) {
  const { rescored } = data.head;
  if (!rescored) return [];
  const kinds = data.differs[g].filter((kind) => kind && kind < rescored.words.length - 1);
  const marks = kinds.map((kind) => el("span", { className: "outcome" }, el("bdi", {}, rescored.words[kind])));
  return [...marks, ...data.turned[g].map(([label, verdict]) => turnedNode(label, verdict, data.turned[g].length > 1))];
}

function turnedNode(label, verdict, named) {
  const node = el("span", { className: `badge ${verdict}`, title: `Its verdict with ${label}` }, "→ ");
  node.append(named ? el("bdi", {}, `${label}: `) : "", words(verdict));
  return node;
}

// Of an attempt: of each reward what was recorded, and what it scores now.
function rescoredTable({ rescored }) {
  if (!rescored) return null;
  const rows = rescored.map(([label, against, old, now, kind, message]) => {
    const name = el("th", { scope: "row" }, el("bdi", {}, label));
    const mark = kind ? el("span", { className: "outcome", title: plainly(message) }, el("bdi", {}, kind)) : null;
    const scores = el("td", {}, mark, mark ? " " : null, number(old), " → ", el("b", {}, number(now)));
    const recorded = against === null ? "What it is compared with was not recorded" : `${against} was recorded as ${number(old)}`;
    scores.title = `${recorded}; ${label} scores ${number(now)}`;
    return el("tr", { className: kind ? "disagrees" : "" }, name, scores);
  });
  return el("table", { className: "rescored" }, el("caption", { className: "muted" }, "recorded → now"), el("tbody", {}, ...rows));
}
