// -- search: a worker unpacks the chunks and tries the pattern, so that even a pattern that takes for ever can be stopped

const PATIENCE = 20000; // ms for one chunk
const MARKS = 500; // most hits marked in a text

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

function newWorker() {
  const source = `${bytes}\n${unpack}\n${textsOf}\n(${searcher})();`;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const worker = new Worker(url);
  URL.revokeObjectURL(url);
  return worker;
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

const search = { worker: null, run: 0 };

function stopSearch() {
  search.run++;
  if (search.worker) search.worker.terminate();
  search.worker = null;
}

// Which of `groups` hold the pattern: told(matches so far, groups looked at, problem or "") after each chunk.
async function startSearch(groups, source, told) {
  stopSearch();
  const run = search.run;
  const matches = [];
  let seen = 0;
  try {
    search.worker = newWorker();
    for (const [n, members] of byChunk(groups)) {
      const places = members.map((g) => data.place[g]);
      const hits = new Set(await ask(search.worker, { source, places, ...(await packedChunk(n)) }, PATIENCE));
      if (run !== search.run) return;
      matches.push(...members.filter((g) => hits.has(data.place[g])));
      seen += members.length;
      told(matches, seen, "");
    }
  } catch (error) {
    if (run !== search.run) return;
    const slow = error.message === "slow";
    told(matches, seen, slow ? `given up after ${PATIENCE / 1000} s on a few groups: simplify the pattern` : error.told || "search does not work in this browser or frame");
  }
  stopSearch();
}

function byChunk(groups) {
  const found = new Map();
  for (const g of groups) {
    if (!found.has(data.chunk[g])) found.set(data.chunk[g], []);
    found.get(data.chunk[g]).push(g);
  }
  return found;
}

// Spans of the hits in each text; none where finding them takes long.
async function hits(source, list) {
  const nothing = list.map(() => []);
  if (!source) return nothing;
  let worker = null;
  try {
    worker = newWorker();
    return await ask(worker, { source, texts: list, most: MARKS }, 1000);
  } catch {
    return nothing;
  } finally {
    if (worker) worker.terminate();
  }
}
