// -- a prompt through training: its mean reward over the steps, and attempts of two of its groups side by side

const SPOTS = 1500; // most groups drawn or offered
const following = { key: "", sides: [] }; // each side: a group of the prompt, and "best" or "worst"

const keyOfPrompt = (g) => `${data.prompt[g]} ${data.split[g]}`;

// Key of a prompt in its split -> its groups, by step. Built when it is first asked for, and where groups have come.
const byPrompt = { of: null, n: 0, groups: new Map() };

function promptGroups() {
  if (byPrompt.of === data.prompt && byPrompt.n === data.n) return byPrompt.groups;
  Object.assign(byPrompt, { of: data.prompt, n: data.n, groups: new Map() });
  for (let g = 0; g < data.n; g++) {
    const found = byPrompt.groups.get(keyOfPrompt(g));
    if (found) found.push(g);
    else byPrompt.groups.set(keyOfPrompt(g), [g]);
  }
  return byPrompt.groups;
}

// Evenly spread, the first and the last among them.
function thinned(list, most) {
  if (list.length <= most) return list;
  return Array.from({ length: most }, (_, i) => list[Math.round((i * (list.length - 1)) / (most - 1))]);
}

async function drawFollow(g, turn) {
  const groups = promptGroups().get(keyOfPrompt(g));
  const lists = await promptLists();
  if (following.key !== keyOfPrompt(g) || !following.sides.every((side) => groups.includes(side.g))) {
    const [first, last] = [groups[0], groups[groups.length - 1]];
    following.key = keyOfPrompt(g);
    following.sides = [{ g: first, which: "best" }, { g: last, which: first === last ? "worst" : "best" }];
  }
  const { sides } = following;
  const found = await Promise.all(sides.map((side) => texts(side.g))).catch((error) => lost(error, turn));
  if (!found) return;
  if (state.rendered) await loadLibraries();
  if (turn !== shown) return;
  const line = lists.lines.get(keyOfPrompt(g)) ?? null;
  const chosen = found.map(({ attempts }, i) => alone(chosenOf(attempts, sides[i].which)));
  const pair = el("div", { id: "pair" }, ...chosen.map((attempt, i) => sideNode(groups, i, attempt, chosen)));
  const plot = promptPlot(g, groups, line);
  const view = el("div", { id: "follow" }, promptFacts(groups, line, lists.bar), plot.node);
  $("group").replaceChildren(followHead(g), view, task(found[0], [...found[0].prompt, ...found[0].reference].map(() => [])), pair);
  plot.rest(loggedStepOf(g));
}

function followHead(g) {
  const title = el("h2", {}, titleNode(data.title[g]));
  const head = el("div", { id: "group-head" }, title, el("span", { className: "muted" }, data.split[g]), el("span", { className: "grow" }));
  head.append(tool("follow-on", "Follow", "f", true, toggleFollow), tool("diff", "Differences", "d", diffOn(), toggleDiff));
  head.append(tool("unfold", "Thinking", "t", state.unfold, toggleFold));
  if (canRender()) head.append(tool("rendered", "Rendered", "m", state.rendered, toggleRendered));
  return head;
}

// -- what is known of it

// Where it has no line of its own, what its groups in the page say.
function promptFacts(groups, line, bar) {
  const whole = line || pageFacts(groups, bar);
  const told = [`Sampled ${count(whole.groups, "time")}, ${count(whole.attempts, "attempt")}`];
  if (bar !== null && whole.groups) {
    const at = (step) => `at step ${number(loggedStep(step, data.split[groups[0]]))}`;
    told.push(whole.solved === null ? "no group all solved" : `first solved by all attempts ${at(whole.solved)}`);
    told.push(whole.failed === null ? "never failed by all" : `last failed by all ${at(whole.failed)}`);
  }
  if (groups.length < whole.groups) told.push(`${number(groups.length)} of its groups in this page`);
  const list = whole.list ? el("span", { className: "tag" }, LISTS[whole.list].name.toLowerCase()) : null;
  return el("p", { id: "follow-facts" }, list, list ? " " : null, `${told.join("; ")}.`);
}

function pageFacts(groups, bar) {
  const shares = groups.map((g) => [data.step[g], rewardsOf(g).filter((r) => r !== null)]).filter(([, rewards]) => rewards.length);
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

// The mean of all groups at a step, also of those that found no room in the page; a dot for each group that did.
function promptPlot(g, groups, line) {
  const of = data.belief[g]?.[4]; // one reward, of which something is believed
  const earned = (other) => (of ? data.belief[other]?.[3] ?? null : meanReward(other));
  const here = groups.map((other) => [loggedStepOf(other), earned(other)]).filter(([, mean]) => mean !== null);
  const missing = !of && line && line.groups > groups.length ? line.steps.map((step, i) => [loggedStep(step, data.split[g]), line.means[i]]) : [];
  const believed = groups.filter((other) => data.belief[other] && data.belief[other][0] !== null);
  const means = believed.map((other) => [loggedStepOf(other), data.belief[other][0]]);
  const range = extremes([...(of ? [0, 1] : data.range), ...[...here, ...missing, ...means].map(([, y]) => y)]);
  const within = (y) => Math.max(range[0], Math.min(range[1], y));
  const band = believed.map((other) => {
    const [mean, std] = data.belief[other];
    return [loggedStepOf(other), within(mean - (std || 0)), within(mean + (std || 0))];
  });
  const series = [{ name: "mean reward", label: of ? `mean ${of}` : "mean reward", style: "s0", points: byStep(missing.length ? missing : here) }];
  if (means.length) series.push({ name: "believed", style: "s1", points: means, band });
  const dots = thinned(groups, SPOTS).filter((other) => earned(other) !== null).map((other) => spotOf(other, earned(other)));
  const pick = (x) => leaveFor(groups.reduce((best, other) => (Math.abs(loggedStepOf(other) - x) < Math.abs(loggedStepOf(best) - x) ? other : best)));
  const xs = extremes(data.steps[data.split[g]].map((step) => loggedStep(step, data.split[g])));
  const plot = newPlot({ title: of ? `mean ${of}` : "mean reward", series, range, dots }, { xs, pick, go: (dot) => leaveFor(dot.g) });
  plot.node.id = "follow-plot";
  return plot;
}

function spotOf(g, y) {
  const round = data.round[g] ? `, round ${data.round[g]}` : "";
  const verdict = data.verdict[g];
  const chosen = following.sides.some((side) => side.g === g) ? "chosen" : "";
  const title = `step ${loggedStepOf(g)}${round}: ${number(y, 3)}${verdict ? `, ${words(verdict)}` : ""}`;
  return { x: loggedStepOf(g), y, g, title, style: `${verdict || ""} ${chosen}`.trim() };
}

// Points at the same step as one, by step.
function byStep(points) {
  const sums = new Map();
  for (const [step, mean] of points) {
    const [sum, n] = sums.get(step) || [0, 0];
    sums.set(step, [sum + mean, n + 1]);
  }
  return [...sums].map(([step, [sum, n]]) => [step, sum / n]).sort(([a], [b]) => a - b);
}

// To one of its groups, out of this view.
function leaveFor(g) {
  state.view = "";
  visit(g);
}

// -- two attempts

const alone = (attempt) => ({ ...attempt, members: [attempt.attempt], hits: [], best: false });

function chosenOf(attempts, which) {
  return which === "best" ? attempts[0] : attempts.findLast((attempt) => attempt.reward !== null) || attempts[attempts.length - 1];
}

function sideNode(groups, i, attempt, both) {
  const side = following.sides[i];
  const some = [...new Set([...thinned(groups, 300), ...following.sides.map(({ g }) => g)])].sort((a, b) => a - b);
  const named = (g) => `step ${loggedStepOf(g)}${data.round[g] ? `, round ${data.round[g]}` : ""}: ${number(meanReward(g), 3)}`;
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
  const node = column(attempt, both, true, []);
  node.classList.remove("pinned");
  node.querySelector("[id^='pin-']")?.remove(); // pins are of one group
  node.querySelector(".body").setAttribute("aria-label", `Text of attempt ${attempt.attempt} on the ${i ? "right" : "left"}`);
  return el("section", { className: "side" }, el("div", { className: "row-line" }, group, which, badge(data.verdict[side.g]), open), node);
}

function toggleFollow() {
  setView(state.view === "follow" ? "" : "follow");
}
