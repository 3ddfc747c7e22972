// -- lists of prompts: which were solved in time, which were lost, which never and which always

const LISTS = {
  newly: { name: "Newly solved", rule: "At most half of its early attempts solved it, at least 3/4 of the late ones, and all of the last group." },
  lost: { name: "Lost", rule: "At most 1/4 of its late attempts solved it; before, in as many groups in a row, at least 3/4 did, and all of one." },
  never: { name: "Never solved", rule: "No attempt ever solved it." },
  always: { name: "Always solved", rule: "Every attempt solved it." },
  unsettled: { name: "Not learnt", rule: "Sampled eight times or more; between 1/4 and 3/4 of its early attempts solved it, and of its late ones too. Its reward may be noise, or its gold wrong." },
  all: { name: "All", rule: "First those that changed most, then those sampled most." },
};
const WHOSE = { solved_reward: "solved_reward", all_good: "the least in any group that is all good", best: "the best of the run" };
const browsing = { list: "", query: "", at: 0, rows: [], top: 0 };

let listsRead = null;

// What the page knows of the prompts of the whole run: {bar, by, counts, lines: key -> line}.
async function promptLists() {
  listsRead = listsRead || readLists();
  return listsRead;
}

let readLists = async () => listsOf(await unpack(block("lists").data, block("lists").packed), data.listed);

// `listed` are the numbers of the lines' prompts: -1 where none of its groups is in the page.
function listsOf(table, listed) {
  const names = Object.keys(table).filter((name) => Array.isArray(table[name]));
  const lines = new Map();
  table.title.forEach((_, i) => {
    const line = Object.fromEntries(names.map((name) => [name, table[name][i]]));
    line.key = listed[i] < 0 ? `unseen ${i}` : `${listed[i]} ${line.split}`;
    lines.set(line.key, line);
  });
  return { bar: table.bar, by: table.by, counts: table.counts, lines };
}

// Lines of a split in a list: those of the run, and for "all" those of prompts that only the page's groups tell of.
function linesOf(lists, split, list) {
  const found = [...lists.lines.values()].filter((line) => line.split === split && (list === "all" || line.list === list));
  if (list !== "all") return found;
  for (const [key, groups] of promptGroups()) {
    if (data.split[groups[0]] !== split || lists.lines.has(key)) continue;
    const curve = thinned(groups, 40).map((g) => [data.step[g], meanReward(g)]).filter(([, mean]) => mean !== null);
    const told = { key, split, title: data.title[groups[0]], list: null, groups: groups.length };
    const [early, late] = [curve[0]?.[1] ?? null, curve.at(-1)?.[1] ?? null];
    found.push({ ...told, early, late, steps: curve.map(([step]) => step), means: curve.map(([, mean]) => mean) });
  }
  return found;
}

async function drawPrompts(turn) {
  const lists = await promptLists();
  if (turn !== shown) return;
  const counts = lists.counts[state.split] || { all: linesOf(lists, state.split, "all").length };
  const known = Object.keys(LISTS).filter((name) => name in counts);
  if (!known.includes(browsing.list)) browsing.list = known.find((name) => counts[name]) || "all";
  const head = el("div", { id: "group-head" }, el("h2", {}, `Prompts of ${state.split}`), ...known.map((name) => listTool(name, counts[name])), el("span", { className: "grow" }));
  const filter = el("input", { type: "search", id: "prompt-query", value: browsing.query, placeholder: "in titles", spellcheck: false });
  head.append(el("label", { className: "muted" }, "Text ", filter));
  const list = el("div", { id: "prompt-list", role: "listbox", tabIndex: 0 }, el("div", { id: "prompt-rows" }));
  list.setAttribute("aria-label", `Prompts: ${LISTS[browsing.list].name}`);
  const fill = () => fillPrompts(lists, counts);
  filter.addEventListener("input", () => {
    Object.assign(browsing, { query: filter.value, at: 0, top: 0 });
    fill();
  });
  list.addEventListener("scroll", drawPromptRows);
  list.addEventListener("keydown", onListKey);
  $("group").replaceChildren(head, el("p", { id: "prompt-rule" }), list);
  new ResizeObserver(drawPromptRows).observe(list);
  fill();
}

function listTool(name, n) {
  const button = tool(`list-${name}`, `${LISTS[name].name} ${number(n)}`, "o", browsing.list === name, () => {
    Object.assign(browsing, { list: name, at: 0, top: 0 });
    redraw();
  });
  button.title = LISTS[name].rule;
  button.classList.add("choice");
  return button;
}

function fillPrompts(lists, counts) {
  const every = linesOf(lists, state.split, browsing.list);
  const query = browsing.query.toLowerCase();
  browsing.rows = query ? every.filter(({ title }) => title.toLowerCase().includes(query)) : every;
  const left = counts[browsing.list] - every.length;
  const told = [LISTS[browsing.list].rule];
  if (["newly", "lost", "unsettled"].includes(browsing.list)) told.push("Early and late are about eight attempts each, a third of its groups at most.");
  if (lists.bar !== null) told.push(`To solve it is a reward of ${number(lists.bar)} or more (${WHOSE[lists.by]}).`);
  if (query) told.push(`${number(browsing.rows.length)} of ${number(every.length)} bear “${browsing.query}”.`);
  if (left > 0) told.push(`Not here, for size: ${count(left, "prompt")}, the least telling.`);
  if (lists.missing) told.push("The lists of what was solved and lost could not be had from the server.");
  $("prompt-rule").textContent = told.join(" ");
  $("prompt-rows").style.height = `${browsing.rows.length * promptRowHeight()}px`;
  $("prompt-list").scrollTop = browsing.top;
  drawPromptRows();
}

const promptRowHeight = () => parseFloat(getComputedStyle($("prompt-list")).getPropertyValue("--row"));

function drawPromptRows() {
  const list = $("prompt-list");
  if (!list) return;
  browsing.top = list.scrollTop;
  const steps = extremes(data.steps[state.split]);
  const none = [el("p", { className: "empty" }, "None.")];
  const row = (line, i) => promptRow(line, i, steps);
  drawListbox(list, { name: "prompt", rows: browsing.rows, tall: promptRowHeight(), chosen: browsing.at, row, none });
}

function promptRow(line, i, steps) {
  const went = line.groups > 1 ? `${number(line.early, 3)} → ${number(line.late, 3)}` : number(line.early, 3);
  const absent = line.key.startsWith("unseen") ? el("span", { className: "tag" }, "not in this page") : "";
  const row = el("div", { className: "prompt-row", title: plainly(line.title) }, titleNode(line.title, { className: "row-title" }), absent, sparkline(line, steps));
  row.append(el("span", { className: "went", title: "mean reward, early and late" }, went), el("span", { className: "muted times" }, `${number(line.groups)} ×`));
  row.addEventListener("click", () => followLine(i));
  return row;
}

function sparkline({ steps, means }, [from, to]) {
  const [low, high] = data.range;
  const x = (step) => (3 + (94 * (step - from)) / Math.max(to - from, 1)).toFixed(1);
  const y = (mean) => (17 - (14 * (mean - low)) / (high - low || 1)).toFixed(1);
  const points = steps.map((step, i) => `${x(step)},${y(means[i])}`);
  const ends = [0, steps.length - 1].filter((i) => i in steps).map((i) => svg("circle", { cx: x(steps[i]), cy: y(means[i]), r: 2 }));
  return svg("svg", { class: "sparkline", viewBox: "0 0 100 20", "aria-hidden": "true" }, svg("polyline", { points: points.join(" ") }), ...ends);
}

function followLine(i) {
  const line = browsing.rows[i];
  const groups = line && promptGroups().get(line.key);
  browsing.at = i;
  if (!groups) return drawPromptRows();
  state.view = "follow";
  visit(groups[groups.length - 1]);
}

function onListKey(event) {
  const page = Math.max(1, Math.floor($("prompt-list").clientHeight / promptRowHeight()) - 1);
  const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Enter") followLine(browsing.at);
  else if (Object.hasOwn(moves, event.key)) goToLine(browsing.at + moves[event.key]);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function goToLine(i) {
  browsing.at = Math.max(0, Math.min(browsing.rows.length - 1, i));
  showInList($("prompt-list"), browsing.at, promptRowHeight());
  drawPromptRows();
}

function togglePrompts() {
  setView(state.view === "prompts" ? "" : "prompts");
}

// Whoever goes to a group wants to see it.
function leaveLists() {
  if (state.view === "prompts") state.view = "";
}

// "", "follow" or "prompts"
async function setView(view) {
  state.view = view;
  state.pins = [];
  remember();
  await redraw();
  if (view === "prompts") $("prompt-list")?.focus({ preventScroll: true });
  if (view && $("group").getBoundingClientRect().top > innerHeight / 2) $("group").scrollIntoView(); // on a phone
}
