// Searches for a text or a regular expression, on both pages: finds the groups that hold it, and its places in a text.
// A worker unpacks the chunks and runs the pattern, because a pattern that never ends can be stopped only there. It
// needs base.js, and the fields `query` and `regex` of the page.

// -- the pattern

function pattern(query, regex) {
  const source = regex ? query : query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(source, "gim");
}

// Return {source, problem}. `source` is the source of the pattern in the field `query`, "" if the field is empty or
// holds no valid regular expression; `problem` then says what is wrong with it.
function searchedFor() {
  const query = $("query").value;
  $("query").removeAttribute("aria-invalid");
  try {
    return { source: query && pattern(query, $("regex").checked).source, problem: "" };
  } catch (error) {
    $("query").setAttribute("aria-invalid", "true");
    return { source: "", problem: `Not a regular expression: ${error.message.split(": ").pop()}.` };
  }
}

// -- the groups that hold it

const PATIENCE = 20000; // ms that the worker may take for one chunk
const search = { worker: null, run: 0 };

// Find the groups whose texts hold the pattern. After each chunk it calls report(matches so far, number of groups
// searched, problem or "").
async function startSearch(groups, source, report) {
  stopSearch();
  const run = search.run;
  const matches = [];
  let searched = 0;
  try {
    search.worker = newWorker();
    for (const [n, members] of byChunk(groups)) {
      const found = await searchChunk(search.worker, source, n, members);
      if (run !== search.run) return;
      matches.push(...found);
      searched += members.length;
      report(matches, searched, "");
    }
  } catch (error) {
    if (run !== search.run) return;
    const slow = error.message === "slow";
    report(matches, searched, slow ? `given up after ${PATIENCE / 1000} s on a few groups: simplify the pattern` : error.reason || "search does not work in this browser or frame");
  }
  stopSearch();
}

function stopSearch() {
  search.run++;
  if (search.worker) search.worker.terminate();
  search.worker = null;
}

const byChunk = (groups) => groupedBy(groups, (g) => data.chunk[g]);

let searchedChunk = (n) => packedChunk(n); // live.js replaces it: a search needs less than the page shows

// Return those of `groups`, all of chunk `n`, that hold the pattern.
async function searchChunk(worker, source, n, groups) {
  const places = groups.map((g) => data.place[g]);
  const found = new Set(await ask(worker, { source, places, ...(await searchedChunk(n)) }, PATIENCE));
  return groups.filter((g) => found.has(data.place[g]));
}

// -- its hits in texts

const MOST_HITS = 500; // hits that are marked in one text

// Return, for each text, its hits as ranges of paint(): [from, to, "hit"]. All lists are empty if the search takes
// longer than a second.
async function hits(source, texts) {
  const nothing = texts.map(() => []);
  if (!source) return nothing;
  let worker = null;
  try {
    worker = newWorker();
    const spans = await ask(worker, { source, texts, most: MOST_HITS }, 1000);
    return spans.map((list) => list.map(([from, to]) => [from, to, "hit"]));
  } catch {
    return nothing;
  } finally {
    if (worker) worker.terminate();
  }
}

// -- the worker

function newWorker() {
  const source = `${bytes}\n${inflate}\n${unpack}\n${textsOf}\n(${searcher})();`;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const worker = new Worker(url);
  URL.revokeObjectURL(url);
  return worker;
}

function searcher() {
  onmessage = async ({ data: task }) => {
    const found = new RegExp(task.source, "gim");
    const hit = (text) => {
      found.lastIndex = 0;
      return found.test(text);
    };
    const spans = (text) => {
      const out = [];
      for (const match of text.matchAll(found)) {
        if (match[0]) out.push([match.index, match.index + match[0].length]);
        if (out.length >= task.most) break;
      }
      return out;
    };
    if (task.texts) return postMessage(task.texts.map(spans));
    const groups = await unpack(task);
    const textsAt = (place) => (Array.isArray(groups[place]) ? groups[place] : textsOf(groups[place]));
    postMessage(task.places.filter((place) => textsAt(place).some(hit)));
  };
}

function ask(worker, task, patience) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("slow")), patience);
    worker.onmessage = ({ data: answer }) => {
      clearTimeout(timer);
      resolve(answer);
    };
    worker.onerror = (event) => {
      event.preventDefault();
      clearTimeout(timer);
      reject(new Error("failed"));
    };
    worker.postMessage(task);
  });
}
