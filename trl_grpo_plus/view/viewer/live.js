// Keeps the page of a running training up to date: it asks the server for what is new, and adds it without a change of
// what the reader looks at. Only a served page has this file. It replaces the functions of base.js, overview.js and
// prompts.js that read the data in a page from disk.

const POLL_EVERY = 3000; // ms, at least
const GONE = "the server is gone";
const live = { news: null, index: null, last: null, asking: false, timer: 0, came: "", failed: false };

// -- requests to the server

async function request(what) {
  const answer = await fetch(what, { signal: AbortSignal.timeout(30000) }).catch(() => null);
  if (answer && !answer.ok) throw refusal("the run was restarted, and the server is reading it");
  const text = await answer?.text().catch(() => null);
  if (!text) throw refusal(GONE);
  return text;
}

const refusal = (reason) => Object.assign(new Error(reason), { reason });

// Get a chunk from the server: `what` is "texts" for all of each attempt, "searched" for what a search reads.
const requestChunk = async (what, n) => {
  const from = data.chunk.indexOf(n);
  return { data: await request(`${what}?epoch=${live.news.epoch}&from=${from}&to=${from + live.index.chunks[n]}`), packed: false };
};

searchedChunk = (n) => requestChunk("searched", n);

packedChunk = async (n) => {
  try {
    return await requestChunk("texts", n);
  } catch (error) {
    chunks.delete(n); // to be asked for again
    live.failed = true;
    throw error;
  }
};

// Get all logged metrics from the server, when the reader opens the picker.
readMetrics = async () => JSON.parse(await request("metrics"));

// Get the lists of prompts from the server, again after each change of the run. A list in view stays as it is until it
// is opened again.
readLists = async () => {
  try {
    const { listed, ...table } = JSON.parse(await request("lists"));
    const here = new Set(data.prompt);
    return listsOf(table, listed.map((number) => (here.has(number) ? number : -1)));
  } catch {
    listsRead = null;
    return { bar: null, by: "", counts: {}, lines: new Map(), missing: true };
  }
};

// -- what is new

// Ask for what is new, and again after a while. The page also calls this when it becomes visible: then the pending timer
// is replaced.
async function poll() {
  if (live.asking || document.hidden) return;
  live.asking = true;
  const began = performance.now();
  try {
    const { epoch, groups, version } = live.news;
    const answer = JSON.parse(await request(`data?${new URLSearchParams({ epoch, groups, version })}`));
    // Take no news during a search, which holds numbers of groups and chunks. A later poll gets the news again.
    if ($("cancel").hidden) await takeNews(answer);
    showState(answer.live);
    if (data.n) followLast();
    if (live.failed && state.group >= 0) drawGroup();
    live.failed = false;
  } catch (error) {
    showGone(error);
  }
  live.asking = false;
  clearTimeout(live.timer);
  live.timer = setTimeout(poll, Math.max(POLL_EVERY, 10 * (performance.now() - began)));
}

async function takeNews({ live: now, head, index }) {
  if (!head) return;
  if (!data.n) {
    if (now.groups) location.reload();
    live.news = now;
    return;
  }
  const before = { ...data.head, scale: [data.scale, data.range] };
  const anew = now.epoch !== live.news.epoch;
  if (anew && !now.groups) return location.reload();
  const from = anew ? 0 : data.n;
  live.index = anew ? index : joinIndex(live.index, index);
  live.news = now;
  if (index.rewards.length) live.came = clock();
  if (anew) chunks.clear();
  load(head, live.index);
  listsRead = null;
  fillAgain(before);
  if (anew) {
    live.last = null; // followLast() sets it again
    return recall();
  }
  setSplit(state.split);
  showStep();
  await addRows(from);
}

// Return the index `old` with the groups of `more` appended. The server goes on with the numbers of words and prompts,
// so that they mean the same in both.
function joinIndex(old, more) {
  const groups = Object.fromEntries(Object.entries(more.groups).map(([name, values]) => [name, old.groups[name].concat(values)]));
  return { words: more.words, groups, rewards: old.rewards.concat(more.rewards), chunks: old.chunks.concat(more.chunks) };
}

// Draw again what differs from `before`, and leave the rest alone: somebody may be reading it or pointing at it.
function fillAgain(before) {
  const differs = (name, now = data.head[name]) => JSON.stringify(before[name]) !== JSON.stringify(now);
  fillHead();
  fillGiven();
  fillAbout();
  if (differs("alarms")) fillAlarms();
  fillControls();
  if (differs("scale", [data.scale, data.range])) drawLegend();
  if (differs("calibration")) fillCalibration();
  drawCurves(data.head.curves);
  fillPickedAgain().catch(() => {}); // poll() reports a server that is gone
}

async function fillPickedAgain() {
  const needed = pickedMetrics.size || (metrics.table && $("picker").open); // new metrics may have been logged
  metrics.table = null;
  if (!needed) return;
  await loadMetrics();
  for (const [name, plot] of pickedMetrics) {
    if (Object.hasOwn(metrics.metrics, name)) plot.fill(metricSpec(name), curvesSpan());
    else pick(name, false);
  }
}

// Append the new groups, from number `from` on, that pass the filters and the search. The group in view stays as it is.
async function addRows(from) {
  const { rows } = state;
  const fresh = matching().filter((g) => g >= from);
  const found = state.source ? await searchNew(fresh) : fresh;
  // If the filters changed meanwhile, the list was filled anew and has the new groups already.
  if (state.rows === rows && found.length) setRows([...rows, ...found], "", state.group < 0);
}

async function searchNew(groups) {
  const found = [];
  const worker = newWorker();
  try {
    for (const [n, members] of byChunk(groups)) {
      found.push(...(await searchChunk(worker, state.source, n, members)));
    }
  } finally {
    worker.terminate();
  }
  return found;
}

// -- following the last step, until the reader moves to another step or view, pins, searches, or focuses a text

// Return whether the page follows the newest step; uncheck the box if the reader has moved away. This runs whenever the
// address is written, so that the address names the step as soon as the reader has moved.
function followsNewest() {
  const box = $("follow-last");
  if (box.checked && live.last !== null && (state.view || state.step !== live.last)) box.checked = false;
  return box.checked;
}

const isReading = () => state.pins.length || state.source || document.activeElement.closest("#columns");
const lastStep = () => data.steps[state.split]?.at(-1) ?? null;

function followLast() {
  const follows = followsNewest();
  live.last = lastStep();
  if (!follows) return;
  if (isReading()) {
    $("follow-last").checked = false;
    remember();
  } else if (state.step !== live.last) goToStep(live.last);
}

function followFrom() {
  live.last = lastStep();
  if (!$("follow-last").checked) return;
  state.view = "";
  if (state.step !== live.last) goToStep(live.last);
  else drawGroup();
}

// -- the state of the run, as text

function showState({ ended, problem, there }) {
  const waits = `Waiting for the first batch of ${data.head.title}${there ? "" : ": its folder is not there yet"}.`;
  const over = "The run has ended. This page works only while its server runs. trl-grpo-plus view writes a page that stays.";
  const sentences = [data.n ? "" : waits, ended ? over : "", problem];
  showLive(ended ? "Ended" : data.n ? "Live" : "Waiting", sentences.filter(Boolean).join(" "), ended ? "ended" : "on");
}

function showGone(error) {
  if (live.gone === undefined) live.gone = clock();
  const why = error.reason === GONE ? `The server is gone since ${live.gone}.` : `Not understood since ${live.gone}: ${error.message}.`;
  showLive("Offline", `${why} This page keeps what it has loaded, but not the texts of groups that you have not opened. It asks the server again every few seconds. A restarted server has a new address.`, "off");
}

function showLive(name, note, kind) {
  if (kind !== "off") delete live.gone;
  const last = data.n ? data.steps.train?.at(-1) : undefined;
  const total = data.head.max_steps ? ` of ${data.head.max_steps}` : "";
  const came = live.came ? `, new at ${live.came}` : "";
  $("live").className = kind;
  $("live").textContent = last === undefined ? name : `${name}: step ${last}${total}${came}`;
  if ($("live-note").textContent !== note) $("live-note").textContent = note;
  $("live-note").hidden = !note;
}

const clock = () => new Date().toLocaleTimeString();

// -- start

function goLive(index) {
  Object.assign(live, { news: data.head.live, index });
  $("note").after(el("p", { id: "live-note", role: "status", hidden: true }));
  const followed = !new URLSearchParams(location.hash.slice(1)).has("step");
  const box = el("input", { type: "checkbox", id: "follow-last", checked: followed, oninput: followFrom });
  document.body.classList.toggle("waiting", !data.n);
  $("keys").before(el("span", { id: "live" }), el("label", { className: "muted", hidden: !data.n }, box, " Follow the last step"));
  live.last = lastStep();
  showState(data.head.live);
  document.addEventListener("visibilitychange", poll);
  live.timer = setTimeout(poll, POLL_EVERY);
}
