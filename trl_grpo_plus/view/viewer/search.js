// Searches for a text or a pattern, for both pages: which groups hold it, and where in a text it stands. A worker unpacks
// the chunks and tries the pattern, so that even one that takes for ever can be stopped. It needs base.js, and the fields
// `query` and `regex` of the page.

// -- the pattern

function pattern(query, regex) {
  const source = regex ? query : query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(source, "gim");
}

// The pattern that the field asks for, as its source; "" where there is none, or none that can be read.
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

const PATIENCE = 20000; // ms for one chunk
const search = { worker: null, run: 0 };

// Which of `groups` hold the pattern: report(matches so far, groups searched, problem or "") after each chunk.
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

// Which of a chunk's `groups` hold the pattern.
async function searchChunk(worker, source, n, groups) {
  const places = groups.map((g) => data.place[g]);
  const found = new Set(await ask(worker, { source, places, ...(await packedChunk(n)) }, PATIENCE));
  return groups.filter((g) => found.has(data.place[g]));
}

// -- its hits in texts

const MOST_HITS = 500; // marked in a text

// Of each text its hits, as ranges of paint(); none where finding them takes long.
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
    const groups = await unpack(task.data, task.packed);
    postMessage(task.places.filter((place) => textsOf(groups[place]).some(hit)));
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
