// Draws two views in the place of a group. "prompts" lists the prompts that were solved in time, were lost, and so on.
// "follow" shows one prompt through training: its mean reward over the steps, and an attempt of each of two of its
// groups side by side. It needs base.js, text.js, plot.js, markdown.js, group.js and the `state` of page.js.

// -- to a view and back

// Show a view: "" (the group), "follow" or "prompts".
async function setView(view) {
  state.view = view;
  state.pins = [];
  remember();
  await redraw();
  if (view === "prompts") $("prompt-list")?.focus({ preventScroll: true });
  if (view) revealGroup();
}

const toggleView = (view) => setView(state.view === view ? "" : view);

// Leave the lists of prompts, because a group is to be shown in their place.
function leaveLists() {
  if (state.view === "prompts") state.view = "";
}

// -- the groups of a prompt

const keyOfPrompt = (g) => `${data.prompt[g]} ${data.split[g]}`;

const byPrompt = { source: null, n: 0, groups: new Map() }; // the cache of promptGroups()

// Return a Map: the key of a prompt in its split -> its groups, by step. It is built anew when a live page gets groups.
function promptGroups() {
  if (byPrompt.source === data.prompt && byPrompt.n === data.n) return byPrompt.groups;
  Object.assign(byPrompt, { source: data.prompt, n: data.n, groups: groupedBy(data.prompt.keys(), keyOfPrompt) });
  return byPrompt.groups;
}

// Return at most `most` items, evenly spread over the list, with the first and the last.
function thinned(list, most) {
  if (list.length <= most) return list;
  return Array.from({ length: most }, (_, i) => list[Math.round((i * (list.length - 1)) / (most - 1))]);
}

// -- lists of prompts

const LISTS = {
  newly: { name: "Newly solved", rule: "At most half of its early attempts solved it. At least 3/4 of its late attempts did, and all attempts of its last group." },
  lost: { name: "Lost", rule: "At most 1/4 of its late attempts solved it. Earlier, in the same number of successive groups, at least 3/4 of the attempts did, and in one group all." },
  never: { name: "Never solved", rule: "No attempt ever solved it." },
  always: { name: "Always solved", rule: "Every attempt solved it." },
  unsettled: { name: "Not learnt", rule: "It was sampled eight times or more. Between 1/4 and 3/4 of its early attempts solved it, and the same holds for its late attempts. Its reward may be noise, or its gold answer may be wrong." },
  all: { name: "All", rule: "The prompts that changed most come first, then the prompts that were sampled most." },
};

const BAR_SOURCES = { solved_reward: "solved_reward", all_good: "the lowest reward in any all_good group", best: "the best reward of the run" };
const browsing = { list: "", query: "", at: 0, rows: [], top: 0 };
let listsRead = null;

// Return {bar, by, counts, lines} about the prompts of the whole run. `bar` is the reward from which on a prompt counts
// as solved, or null; `by` says where the bar comes from, a key of BAR_SOURCES. `counts` has, for each split, the
// number of prompts in each list. `lines` is a Map: key of a prompt -> its line in the lists.
async function promptLists() {
  listsRead = listsRead || readLists();
  return listsRead;
}

let readLists = async () => listsOf(await unpackBlock("lists"), data.listed);

// Return the result of promptLists() from the table of a page or server. `listed` has the number of each line's prompt;
// -1 if none of the prompt's groups is in the page.
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

// Return the lines of a list in a split. The list "all" also has lines for prompts that are in none of the run's lines:
// they are made from the groups in the page.
function linesOf(lists, split, list) {
  const found = [...lists.lines.values()].filter((line) => line.split === split && (list === "all" || line.list === list));
  if (list !== "all") return found;
  for (const [key, groups] of promptGroups()) {
    if (data.split[groups[0]] !== split || lists.lines.has(key)) continue;
    const curve = thinned(groups, 40).map((g) => [data.step[g], meanReward(g)]).filter(([, mean]) => mean !== null);
    const line = { key, split, title: data.title[groups[0]], list: null, groups: groups.length };
    const [early, late] = [curve[0]?.[1] ?? null, curve.at(-1)?.[1] ?? null];
    found.push({ ...line, early, late, steps: curve.map(([step]) => step), means: curve.map(([, mean]) => mean) });
  }
  return found;
}

async function drawPrompts(turn) {
  const lists = await promptLists();
  if (turn !== drawTurn) return;
  const counts = lists.counts[state.split] || { all: linesOf(lists, state.split, "all").length };
  const names = Object.keys(LISTS).filter((name) => name in counts);
  if (!names.includes(browsing.list)) browsing.list = names.find((name) => counts[name]) || "all";
  const head = el("div", { id: "group-head" }, el("h2", {}, `Prompts of ${state.split}`), ...names.map((name) => listTool(name, counts[name])), el("span", { className: "grow" }));
  const oninput = ({ target }) => {
    Object.assign(browsing, { query: target.value, at: 0, top: 0 });
    fillPrompts(lists, counts);
  };
  const filter = el("input", { type: "search", id: "prompt-query", value: browsing.query, placeholder: "in titles", spellcheck: false, oninput });
  head.append(el("label", { className: "muted" }, "Text ", filter));
  const listbox = { role: "listbox", tabIndex: 0, "aria-label": `Prompts: ${LISTS[browsing.list].name}` };
  const list = el("div", { id: "prompt-list", ...listbox, onscroll: drawPromptRows, onkeydown: onListKey }, el("div", { id: "prompt-rows" }));
  $("group").replaceChildren(head, el("p", { id: "prompt-rule" }), list);
  new ResizeObserver(drawPromptRows).observe(list);
  fillPrompts(lists, counts);
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
  const sentences = [LISTS[browsing.list].rule];
  if (["newly", "lost", "unsettled"].includes(browsing.list)) sentences.push("Early and late attempts are about eight each, from at most a third of the prompt's groups each.");
  if (lists.bar !== null) sentences.push(`An attempt solves a prompt with a reward of ${number(lists.bar)} or more (${BAR_SOURCES[lists.by]}).`);
  if (query) sentences.push(`${number(browsing.rows.length)} of ${number(every.length)} contain “${browsing.query}”.`);
  if (left > 0) sentences.push(`Left out for size: ${count(left, "prompt")}, the least informative.`);
  if (lists.missing) sentences.push("The server did not send the lists of solved and lost prompts.");
  $("prompt-rule").textContent = sentences.join(" ");
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
  const properties = { className: "prompt-row", title: readableString(line.title), onclick: () => followLine(i) };
  const means = el("span", { className: "went", title: "mean reward, early and late" }, went);
  const times = el("span", { className: "muted times" }, `${number(line.groups)} ×`);
  return el("div", properties, titleNode(line.title, { className: "row-title" }), absent, sparkline(line, steps), means, times);
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

// -- a prompt through training

const MOST_SPOTS = 1500; // most groups drawn or offered
const following = { key: "", sides: [] }; // each side: a group of the prompt, and "best" or "worst"

async function drawFollow(g, turn) {
  const groups = promptGroups().get(keyOfPrompt(g));
  const lists = await promptLists();
  if (following.key !== keyOfPrompt(g) || !following.sides.every((side) => groups.includes(side.g))) {
    const [first, last] = [groups[0], groups[groups.length - 1]];
    following.key = keyOfPrompt(g);
    following.sides = [{ g: first, which: "best" }, { g: last, which: first === last ? "worst" : "best" }];
  }
  const { sides } = following;
  const found = await Promise.all(sides.map((side) => texts(side.g))).catch((error) => showMissing(error, turn));
  if (!found) return;
  if (state.rendered) await loadLibraries();
  if (turn !== drawTurn) return;
  const line = lists.lines.get(keyOfPrompt(g)) ?? null;
  const chosen = found.map(({ attempts }, i) => asColumn(chosenOf(attempts, sides[i].which)));
  const pair = el("div", { id: "pair" }, ...chosen.map((attempt, i) => sideNode(groups, i, attempt, chosen)));
  const plot = promptPlot(g, groups, line);
  const view = el("div", { id: "follow" }, promptFacts(groups, line, lists.bar), plot.node);
  $("group").replaceChildren(followHead(g), view, taskNode(found[0]), pair);
  plot.rest(data.step[g]);
}

function followHead(g) {
  const title = el("h2", { className: "row-title grow" }, titleNode(data.title[g]));
  const head = el("div", { id: "group-head" }, el("span", { className: "muted" }, data.split[g]), title);
  head.append(followTool(), diffTool(), foldTool(), ...(canRender() ? [renderTool()] : []));
  return head;
}

// -- facts about the prompt

// Return the facts from the prompt's line, or from its groups in the page if it has no line.
function promptFacts(groups, line, bar) {
  const whole = line || pageFacts(groups, bar);
  const facts = [`Sampled ${count(whole.groups, "time")}, ${count(whole.attempts, "attempt")}`];
  if (bar !== null && whole.groups) {
    const at = (step) => `at step ${number(step)}`;
    facts.push(whole.solved === null ? "no group all solved" : `first solved by all attempts ${at(whole.solved)}`);
    facts.push(whole.failed === null ? "never failed by all" : `last failed by all ${at(whole.failed)}`);
  }
  if (groups.length < whole.groups) facts.push(`${number(groups.length)} of its groups in this page`);
  const list = whole.list ? el("span", { className: "tag" }, LISTS[whole.list].name.toLowerCase()) : null;
  return el("p", { id: "follow-facts" }, list, list ? " " : null, `${facts.join("; ")}.`);
}

function pageFacts(groups, bar) {
  const shares = groups.map((g) => [data.step[g], scoredRewards(g)]).filter(([, rewards]) => rewards.length);
  const some = (rewards) => rewards.some((reward) => reward >= bar - 1e-6);
  const all = (rewards) => rewards.every((reward) => reward >= bar - 1e-6);
  return {
    groups: groups.length,
    attempts: groups.reduce((sum, g) => sum + data.size[g], 0),
    solved: shares.find(([, rewards]) => all(rewards))?.[0] ?? null,
    failed: shares.findLast(([, rewards]) => !some(rewards))?.[0] ?? null,
    list: null,
  };
}

// -- its plot

// Return the plot of a prompt: its mean reward at each step, which includes groups that were left out of the page for
// size, and a dot for each group in the page.
function promptPlot(g, groups, line) {
  const reward = data.belief[g]?.[4]; // the name of a reward, if beliefs are about one reward and not about the total
  const earned = (other) => (reward ? data.belief[other]?.[3] ?? null : meanReward(other));
  const here = groups.map((other) => [data.step[other], earned(other)]).filter(([, mean]) => mean !== null);
  const missing = !reward && line && line.groups > groups.length ? line.steps.map((step, i) => [step, line.means[i]]) : [];
  const believed = groups.filter((other) => data.belief[other] && data.belief[other][0] !== null);
  const means = believed.map((other) => [data.step[other], data.belief[other][0]]);
  const range = extremes([...(reward ? [0, 1] : data.range), ...[...here, ...missing, ...means].map(([, y]) => y)]);
  const within = (y) => Math.max(range[0], Math.min(range[1], y));
  const band = believed.map((other) => {
    const [mean, std] = data.belief[other];
    return [data.step[other], within(mean - (std || 0)), within(mean + (std || 0))];
  });
  const series = [{ name: "mean reward", label: reward ? `mean ${reward}` : "mean reward", style: "s0", points: byStep(missing.length ? missing : here) }];
  if (means.length) series.push({ name: "believed", style: "s1", points: means, band });
  const dots = thinned(groups, MOST_SPOTS).filter((other) => earned(other) !== null).map((other) => spotOf(other, earned(other)));
  const pick = (x) => leaveFor(nearest(groups, x, (g) => data.step[g]));
  const xs = extremes(data.steps[data.split[g]]);
  const plot = newPlot({ title: reward ? `mean ${reward}` : "mean reward", series, range, dots }, { xs, pick, go: (dot) => leaveFor(dot.g) });
  plot.node.id = "follow-plot";
  return plot;
}

const stepAndRound = (g) => `step ${data.step[g]}${data.round[g] ? `, round ${data.round[g]}` : ""}`;

function spotOf(g, y) {
  const verdict = data.verdict[g];
  const chosen = following.sides.some((side) => side.g === g) ? "chosen" : "";
  const title = `${stepAndRound(g)}: ${number(y, 3)}${verdict ? `, ${words(verdict)}` : ""}`;
  return { x: data.step[g], y, g, title, style: `${verdict || ""} ${chosen}`.trim() };
}

// Return the mean of the points at each step, sorted by step.
function byStep(points) {
  const means = [...groupedBy(points, ([step]) => step)].map(([step, those]) => [step, meanOf(those.map(([, mean]) => mean))]);
  return means.sort(([a], [b]) => a - b);
}

// Leave this view and show group `g`.
function leaveFor(g) {
  state.view = "";
  visit(g);
}

// -- two attempts

function chosenOf(attempts, which) {
  return which === "best" ? attempts[0] : attempts.findLast((attempt) => attempt.reward !== null) || attempts[attempts.length - 1];
}

const asColumn = (attempt) => ({ ...attempt, members: [attempt.attempt], hits: [], best: false });

function sideNode(groups, i, attempt, both) {
  const side = following.sides[i];
  const some = ascending(new Set([...thinned(groups, 300), ...following.sides.map(({ g }) => g)]));
  const named = (g) => `${stepAndRound(g)}: ${number(meanReward(g), 3)}`;
  const group = el("select", { id: `side-group-${i}` }, ...some.map((g) => el("option", { value: g, selected: g === side.g }, named(g))));
  const which = el("select", { id: `side-which-${i}` }, ...["best", "worst"].map((name) => el("option", { selected: name === side.which }, name)));
  for (const select of [group, which]) {
    select.setAttribute("aria-label", `${select === group ? "Group" : "Attempt"} on the ${i ? "right" : "left"}`);
    select.addEventListener("input", () => {
      Object.assign(side, { g: Number(group.value), which: which.value });
      redraw();
    });
  }
  const open = tool(`side-open-${i}`, "Open", "Enter in the plot", null, () => leaveFor(side.g));
  const node = columnNode(attempt, both, true, []);
  node.classList.remove("pinned");
  node.querySelector("[id^='pin-']")?.remove(); // pins are of one group
  node.querySelector(".body").setAttribute("aria-label", `Text of attempt ${attempt.attempt} on the ${i ? "right" : "left"}`);
  return el("section", { className: "side" }, el("div", { className: "row-line" }, group, which, badge(data.verdict[side.g]), open), node);
}
