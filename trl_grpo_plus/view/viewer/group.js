// Draws the group in view: its head, its prompt, and its attempts as columns with scores and texts. It also has the
// switches and the copy buttons of that view. It needs base.js, text.js, search.js, markdown.js and the `state` of
// page.js. If state.view names another view, drawGroup() lets prompts.js draw in the place of the group.

let drawTurn = 0; // counts the draws: a draw that waited for texts gives up if a later one has begun

async function drawGroup() {
  const g = state.group;
  const turn = ++drawTurn;
  remember();
  document.body.classList.toggle("viewing", Boolean(state.view));
  $("prompts").setAttribute("aria-pressed", state.view === "prompts");
  if (state.view === "prompts") return drawPrompts(turn);
  if (g < 0) return $("group").replaceChildren(el("p", { className: "empty" }, "No group matches."));
  if (state.view === "follow") return drawFollow(g, turn);
  const group = await texts(g).catch((error) => showMissing(error, turn));
  if (!group) return;
  const marked = await hits(state.source, textsOf(group));
  if (state.rendered) await loadLibraries();
  if (turn !== drawTurn) return;
  const every = group.attempts.map((attempt, i) => ({ ...attempt, i, best: i === 0 && firstIsBest(group.attempts) }));
  const attempts = mergeEqual(every, state.apart);
  movePins(attempts);
  const before = group.prompt.length + group.reference.length;
  attempts.forEach((attempt) => (attempt.hits = marked[before + attempt.i]));
  const pinned = attempts.filter((attempt) => state.pins.includes(attempt.attempt));
  const cols = columnNodes(pinned.length === 2 ? pinned : attempts, pinned, attempts);
  $("group").replaceChildren(groupHead(g, group, attempts, pinned), taskNode(group, marked), cols);
  countHidden(cols);
  for (const body of cols.querySelectorAll(".body")) showHit(body);
}

// Draw the group again and give the focus back to the button or attempt that had it.
async function redraw() {
  const active = document.activeElement;
  const attempt = active.closest?.(".attempt")?.dataset.attempt;
  const id = active.id || (attempt && `pin-${attempt}`);
  await drawGroup();
  if (id && $(id)) $(id).focus({ preventScroll: true });
}

// Say why the texts of this group are missing: the server of a live page may be gone. The rest of the page still works.
function showMissing(error, turn) {
  if (!error.reason) throw error;
  if (turn === drawTurn) $("group").replaceChildren(el("p", { className: "empty" }, `The attempts of this group cannot be shown: ${error.reason.replace(/\.$/, "")}.`));
}

// Return whether the first attempt is better than the last one. If not, all are equal and none is marked as the best.
function firstIsBest(attempts) {
  const [first, last] = [attempts[0], attempts[attempts.length - 1]];
  return first.advantage !== last.advantage || first.reward !== last.reward;
}

// -- above its attempts

function groupHead(g, group, attempts, pinned) {
  const where = `${data.split[g]}, step ${data.step[g]}, batch ${data.batch[g]}, round ${data.round[g]}, group ${data.group[g]}`;
  const head = el("div", { id: "group-head" }, el("h2", {}, where), badge(data.verdict[g]));
  if (data.kept[g] !== null) head.append(el("span", { className: "muted" }, treatment(g)));
  for (const name of data.alarms[g]) head.append(el("span", { className: "alarm-mark" }, words(name)));
  head.append(...rescoredMarks(g));
  if (data.belief[g]) head.append(beliefNode(g));
  const credited = hasCredit(attempts);
  if (state.rendered) head.append(el("span", { className: "muted" }, "rendered: only the plain text shows marks"));
  else if (credited && state.credit) head.append(creditLegend(attempts));
  head.append(el("span", { className: "grow" }), moreToTheRightTool(), followTool());
  if (pinned.length) head.append(tool("unpin", pinned.length === 2 ? `Show all ${group.attempts.length}` : "Unpin", "Esc", null, unpin));
  head.append(diffTool(), foldTool());
  if (credited) head.append(tool("credit", "Credit", "c", state.credit, toggleCredit));
  head.append(moreTools(g, group));
  return head;
}

// Return the fold "More" with the tools that are seldom needed.
function moreTools(g, group) {
  const tools = [];
  const equal = new Set(group.attempts.map(equalKey)).size < group.attempts.length;
  if (equal) tools.push(tool("apart", "Equal apart", "e", state.apart, KEYS.e));
  if (canRender()) tools.push(renderTool());
  tools.push(tool("worst-attempt", "Worst attempt", "W", null, goToWorstAttempt), ...copyTools(g, group));
  const summary = el("summary", { id: "more-tools-summary" }, "More");
  const ontoggle = ({ target }) => (state.moreTools = target.open);
  return el("details", { id: "more-tools", open: state.moreTools, ontoggle }, summary, el("div", { className: "bar" }, ...tools));
}

// Return the belief about the prompt before its attempts were scored, and what they earned.
function beliefNode(g) {
  const [mean, std, attempts, earned, reward] = data.belief[g];
  const on = attempts === null ? "" : ` on ${count(Math.round(10 * attempts) / 10, "attempt")}`;
  const text = `believed ${number(mean, 3)} ± ${number(std, 3)}${on}; earned ${number(earned, 3)}`;
  return el("span", { className: "belief" }, reward ? el("bdi", {}, reward) : null, reward ? ": " : null, text);
}

// -- a column for each attempt

function columnNodes(attempts, pinned, group) {
  const node = el("div", { id: "columns", className: pinned.length === 2 ? "pair" : "" });
  const [most, names] = [largestAdvantage(group), stepNames(group)];
  for (const attempt of attempts) {
    const credit = state.credit ? creditRanges(attempt, most, names) : [];
    node.append(columnNode(attempt, attempts, pinned.includes(attempt), credit));
  }
  return node;
}

function columnNode(attempt, attempts, pinned, credit) {
  const node = el("article", { className: "attempt", "aria-label": `Attempt ${attempt.attempt}` });
  node.dataset.attempt = attempt.attempt;
  if (attempt.reward !== null) node.dataset.reward = attempt.reward;
  if (pinned) node.classList.add("pinned");
  if (attempt.rescored?.some(([, , , , kind]) => kind)) node.classList.add("disagrees");
  const [base, name] = attempts.length === 2 && pinned ? [attempts[attempt === attempts[0] ? 1 : 0], "the other"] : [attempts[0], "the best"];
  const body = el("div", { className: "body", tabIndex: 0, role: "region", "aria-label": `Text of attempt ${attempt.attempt}` });
  const compared = diffOn() && !state.rendered && base !== attempt;
  fillBody(body, attempt, [...credit, ...attempt.hits], compared ? base : null, name);
  node.append(scores(attempt, pinned), body);
  return node;
}

function showHit(body) {
  const hit = body.querySelector("mark.hit");
  if (hit) body.scrollTop = hit.getBoundingClientRect().top - body.getBoundingClientRect().top - 40;
}

function moreToTheRightTool() {
  const onclick = () => ($("columns").scrollLeft += Math.max(260, $("columns").clientWidth - 60));
  return el("button", { type: "button", id: "more-right", title: "Attempts to the right", hidden: true, onclick });
}

// Keep the button "N more" up to date: N columns have less than half of their width in sight.
function countHidden(cols) {
  const update = () => {
    const end = cols.getBoundingClientRect().right;
    const hidden = [...cols.children].filter((node) => {
      const { left, right } = node.getBoundingClientRect();
      return (left + right) / 2 > end;
    });
    if (!$("more-right")) return;
    $("more-right").hidden = !hidden.length;
    $("more-right").textContent = `${number(hidden.length)} more →`;
  };
  cols.addEventListener("scroll", update);
  new ResizeObserver(update).observe(cols);
}

// -- scores and facts of an attempt

function scores(attempt, pinned) {
  const pin = tool(`pin-${attempt.attempt}`, "Pin", "p", pinned, () => togglePin(attempt.attempt));
  const copy = copyButton(`copy-${attempt.attempt}`, "Copy", `Copy the text of attempt ${attempt.attempt}`, () => attempt.text);
  const times = attempt.members.length;
  const equals = times > 1 ? el("span", { className: "tag times", title: `Equal: attempts ${attempt.members.join(", ")}` }, `× ${times}`) : null;
  const title = el("h3", {}, `#${attempt.attempt}`, equals, attempt.best ? el("span", { className: "tag" }, "best") : null);
  const top = el("div", { className: "row-line" }, title, el("span", { className: "grow" }), copy, pin);
  const total = el("div", { className: "total" }, dot(attempt.reward), el("b", {}, number(attempt.reward)));
  total.append(el("span", { className: "muted" }, data.head.note ? "sum" : "reward"));
  total.append(el("span", { className: "end" }, el("span", { className: "muted" }, "advantage "), signed(attempt.advantage)), facts(attempt));
  return el("div", { className: "scores" }, top, total, parts(attempt), rescoredTable(attempt), extra(attempt));
}

function parts(attempt) {
  const rows = attempt.parts.map(([name, score, outcome]) => {
    const weight = Object.hasOwn(data.head.weights, name) ? data.head.weights[name] : undefined;
    const note = weight === 0 ? "monitor" : weight === undefined || weight === 1 ? "" : `× ${number(weight)}`;
    const failed = outcome && outcome !== "ok" ? el("span", { className: `outcome ${outcome}` }, outcome) : null;
    const label = el("th", { scope: "row" }, el("bdi", {}, name), note ? el("span", { className: "muted" }, ` ${note}`) : null);
    return el("tr", {}, label, el("td", {}, failed, failed ? " " : null, number(score)));
  });
  return el("table", {}, el("tbody", {}, ...rows));
}

function facts(attempt) {
  const counts = [];
  if (attempt.tokens !== null) counts.push(count(attempt.tokens, "token"));
  if (attempt.kl !== null) counts.push(`KL ${number(attempt.kl)}`);
  const [, ...equals] = attempt.members.map((other) => `#${other}`);
  if (equals.length) counts.push(`also ${equals.join(" ")}`);
  const line = el("span", { className: "muted facts" }, counts.join(", "));
  if (attempt.truncated) line.append(" ", el("span", { className: "outcome" }, "truncated"));
  return line;
}

function extra(attempt) {
  if (!attempt.extra.length) return null;
  const pairs = attempt.extra.flatMap(([key, value]) => [el("dt", {}, el("bdi", {}, ...readable(key))), el("dd", {}, el("bdi", {}, ...readable(value)))]);
  return el("dl", { className: "extra" }, ...pairs);
}

// -- equal attempts as one column

// Return a column for each different attempt: a copy of its first attempt with `members`, the numbers of all attempts
// that are equal to it. With `apart` each attempt has its own column.
function mergeEqual(attempts, apart) {
  const equals = groupedBy(attempts, (one) => (apart ? one.attempt : equalKey(one)));
  return [...equals.values()].map((all) => ({ ...all[0], members: all.map(({ attempt }) => attempt) }));
}

// Return a key that two attempts share if all that their column shows is the same, except their number and lengths.
function equalKey({ text, roles, reward, advantage, parts, truncated, steps, heat, extra, rescored }) {
  return JSON.stringify([text, roles, number(reward), number(advantage), parts, truncated, steps, heat, extra, rescored]);
}

// Move each pin to the column that holds its attempt, and drop pins without a column. At most two pins stay.
function movePins(columns) {
  const standsFor = (pin) => columns.find(({ members }) => members.includes(pin))?.attempt;
  state.pins = [...new Set(state.pins.map(standsFor))].filter((pin) => pin !== undefined).slice(-2);
}

// -- rescored attempts: where a reward that was tried later disagrees with what the run recorded

// Return marks for a group: how its attempts disagree, and what its verdict would be with the reward.
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

// Return a table for an attempt: for each rescored reward the recorded score and the score now.
function rescoredTable({ rescored }) {
  if (!rescored) return null;
  const rows = rescored.map(([label, against, old, now, kind, message]) => {
    const name = el("th", { scope: "row" }, el("bdi", {}, label));
    const mark = kind ? el("span", { className: "outcome", title: readableString(message) }, el("bdi", {}, kind)) : null;
    const scores = el("td", {}, mark, mark ? " " : null, number(old), " → ", el("b", {}, number(now)));
    const recorded = against === null ? "The recorded reward to compare with is missing" : `${against} was recorded as ${number(old)}`;
    scores.title = `${recorded}; ${label} scores ${number(now)}`;
    return el("tr", { className: kind ? "disagrees" : "" }, name, scores);
  });
  return el("table", { className: "rescored" }, el("caption", { className: "muted" }, "recorded → now"), el("tbody", {}, ...rows));
}

// -- the switches of the group in view

const paired = () => state.pins.length === 2 || state.view === "follow";
const diffOn = () => (paired() ? state.pairDiff : state.diff);

// Differences and credit are marks in the plain text: switching them on ends the rendered view.
function toggleDiff() {
  if (state.rendered) Object.assign(state, { rendered: false, diff: false, pairDiff: false });
  if (paired()) state.pairDiff = !state.pairDiff;
  else state.diff = !state.diff;
  redraw();
}

// Switch on or off a part of the state that has no effect on other parts.
function flip(name) {
  state[name] = !state[name];
  redraw();
}

function toggleCredit() {
  state.credit = state.rendered || !state.credit;
  state.rendered = false;
  redraw();
}

function toggleRendered() {
  if (canRender()) flip("rendered");
}

// The tools that the group and the view of one prompt share. A click does what their key does.
const followTool = () => tool("follow-on", "Follow", "f", state.view === "follow", KEYS.f);
const diffTool = () => tool("diff", "Differences", "d", diffOn(), toggleDiff);
const foldTool = () => tool("unfold", "Thinking", "t", state.unfold, KEYS.t);
const renderTool = () => tool("rendered", "Rendered", "m", state.rendered, toggleRendered);

function togglePin(attempt) {
  const pinned = state.pins.includes(attempt);
  state.pins = pinned ? state.pins.filter((pin) => pin !== attempt) : [...state.pins, attempt].slice(-2);
  redraw();
}

function pinNext() {
  const focused = document.activeElement.closest?.(".attempt");
  if (focused) return togglePin(Number(focused.dataset.attempt));
  const all = [...document.querySelectorAll("#columns .attempt")].map((node) => Number(node.dataset.attempt));
  const next = all.find((attempt) => !state.pins.includes(attempt));
  if (next !== undefined && state.pins.length < 2) togglePin(next);
}

function unpin() {
  state.pins = [];
  redraw();
}

// -- copying: it must also work in a file that is opened from disk, and in a frame

function copyTools(g, group) {
  return [
    el("span", { className: "muted" }, "Copy"),
    copyButton("copy-prompt", "Prompt", "Copy the prompt", () => plainText(group.prompt)),
    copyButton("copy-link", "Link", "Copy a link to this view", () => `${location.href.split("#")[0]}#${placeOfView(true)}`),
    copyButton("copy-group", "JSON", "Copy the group as JSON", () => JSON.stringify(groupData(g, group), null, 1)),
  ];
}

function copyButton(id, name, title, text) {
  const button = el("button", { type: "button", id, title, className: "copy" }, name);
  button.addEventListener("click", async () => {
    const done = await copied(await text());
    button.textContent = done ? "Copied" : "Not copied";
    $("told").textContent = done ? `${title}: copied` : `${title}: this browser does not let the page copy`;
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

// Copy a text to the clipboard and return whether that worked.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

function copiedBySelection(text) {
  const active = document.activeElement;
  const area = el("textarea", { value: text, className: "unseen", readOnly: true, ariaHidden: "true" });
  document.body.append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    // `done` stays false.
  }
  area.remove();
  active?.focus?.({ preventScroll: true });
  return done;
}

const plainText = (parts) => parts.map(([, text]) => text).join("\n");

// Return a group as data, with the names that the traces use.
function groupData(g, { prompt, reference, attempts }) {
  const place = Object.fromEntries(["split", "step", "batch", "round", "group", "verdict", "reason", "alarms"].map((name) => [name, data[name][g]]));
  const plain = attempts.map(({ attempt, text, reward, advantage, tokens, kl, truncated, parts, extra, roles, rescored }) => ({
    ...{ attempt, reward, advantage, tokens, kl, truncated },
    rewards: Object.fromEntries(parts.map(([name, score]) => [name, score])),
    outcomes: Object.fromEntries(parts.map(([name, , outcome]) => [name, outcome])),
    extra: Object.fromEntries(extra),
    ...(rescored ? { rescored: rescored.map(rescoredData) } : {}),
    ...(roles.length ? { messages: turns({ text, roles }).map(([role, from, to]) => ({ role, content: text.slice(from, to) })) } : {}),
    text,
  }));
  return {
    ...place,
    kept: data.kept[g] === null ? null : Boolean(data.kept[g]),
    prompt: prompt.map(([role, content]) => ({ role, content })),
    reference: Object.fromEntries(reference),
    attempts: plain,
  };
}

function rescoredData([reward, recorded_as, recorded, now, disagreement, message]) {
  return { reward, recorded_as, recorded, now, disagreement, message };
}
