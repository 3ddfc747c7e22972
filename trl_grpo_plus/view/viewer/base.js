// Helpers of both pages: elements, numbers, colours, the data that a page carries, long lists, and the address. The
// code of this file draws nothing when it is loaded. It needs no other file, but for the `state` of the page.

// -- elements of the page

const $ = (id) => document.getElementById(id);

// Return an element. Texts of the run enter the page only through el() and paint(), as text nodes, never as markup.
function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Return a button that calls act(). `key` is the keyboard key that does the same. `pressed` is null if the button is no
// on/off switch.
function tool(id, name, key, pressed, act) {
  const pressing = pressed === null ? {} : { "aria-pressed": pressed };
  return el("button", { type: "button", id, title: `${name} (${key})`, ...pressing, onclick: act }, name);
}

// -- numbers and words

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return (value + 0).toLocaleString("en-US"); // + 0 makes 0 of -0
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(Math.max(2, digits - 2)) : String(Number(value.toPrecision(digits)));
}

const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));
const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
const words = (name) => name.replaceAll("_", " ");

const meanOf = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const largest = (values) => (values.length ? values.reduce((a, b) => Math.max(a, b)) : null);
const least = (values) => (values.length ? values.reduce((a, b) => Math.min(a, b)) : null);
const spread = (values) => (values.length ? largest(values) - least(values) : null);
const ascending = (values) => [...values].sort((a, b) => a - b);

// Return [lowest, highest], ignoring nulls; [0, 1] if no value is left.
function extremes(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

// Return the item whose place is nearest to `wanted`; the first one if several are equally near.
function nearest(items, wanted, placeOf = (item) => item) {
  const distance = (item) => Math.abs(placeOf(item) - wanted);
  return items.reduce((best, item) => (distance(item) < distance(best) ? item : best), items[0]);
}

// Return a Map: key -> the items with that key. Keys and items keep the order of `items`.
function groupedBy(items, keyOfItem) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOfItem(item);
    if (groups.has(key)) groups.get(key).push(item);
    else groups.set(key, [item]);
  }
  return groups;
}

// -- colours of rewards

// ColorBrewer's RdYlBu. Its ends can be told apart with every kind of colour blindness, and on light and dark ground.
const SCALE = ["#d73027", "#fc8d59", "#fee090", "#ffffbf", "#e0f3f8", "#91bfdb", "#4575b4"];

// Return the lowest reward of each colour, ascending. Up to SCALE.length distinct rewards have a colour each. More are
// cut into as many bins with equally many distinct rewards each. Equal steps of the reward would not do: with one
// outlier (a penalty), all other rewards would have the same colour.
function scaleOf(rewards) {
  const distinct = ascending(new Set(rewards)).filter((reward) => reward !== null);
  const bins = Math.min(SCALE.length, distinct.length);
  return Array.from({ length: bins }, (_, i) => distinct[Math.ceil((i * distinct.length) / bins)]);
}

// Return the colour of a reward; `lows` comes from scaleOf().
function colour(reward, lows) {
  let bin = 0;
  while (bin + 1 < lows.length && lows[bin + 1] <= reward) bin++;
  return SCALE[lows.length > 1 ? Math.round((bin * (SCALE.length - 1)) / (lows.length - 1)) : (SCALE.length - 1) / 2];
}

function dot(reward, lows = data.scale) {
  const node = el("span", { className: "dot" });
  if (reward === null) node.classList.add("hollow");
  else node.style.background = colour(reward, lows);
  return node;
}

// -- the groups of the run, as columns: data.step[g] is the step of group g

const data = {};

function load(head, index) {
  const { words, groups, rewards, chunks: sizes } = index;
  const word = (code) => (code < 0 ? null : words[code]);
  Object.assign(data, groups, { head, listed: index.listed || [], n: groups.step.length, rewards, first: [] });
  for (const name of ["split", "verdict", "reason"]) data[name] = groups[name].map(word);
  data.alarms = groups.alarms.map((codes) => codes.map(word));
  let at = 0;
  for (const size of groups.size) {
    data.first.push(at);
    at += size;
  }
  data.chunk = sizes.flatMap((size, n) => Array(size).fill(n));
  data.place = sizes.flatMap((size) => [...Array(size).keys()]);
  data.range = extremes(rewards);
  data.scale = scaleOf(rewards);
  data.splits = [...new Set(data.split)].sort((a, b) => (b === "train") - (a === "train") || (a < b ? -1 : 1));
  data.steps = Object.fromEntries(data.splits.map((split) => [split, stepsOf(split)]));
}

const stepsOf = (split) => ascending(new Set(data.step.filter((_, g) => data.split[g] === split)));

const rewardsOf = (g) => data.rewards.slice(data.first[g], data.first[g] + data.size[g]);
const scoredRewards = (g) => rewardsOf(g).filter((reward) => reward !== null);
const meanReward = (g) => meanOf(scoredRewards(g));
const keyOf = (g) => `${data.batch[g]}.${data.round[g]}.${data.group[g]}`;

const findGroup = (split, step, key) => data.step.findIndex((other, g) => other === step && data.split[g] === split && keyOf(g) === key);

// -- packed data of the page, and a cache of unpacked chunks of texts

// The worker of search.js gets the source text of these four functions, so they must not use other names of this file.

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const raw = atob(base64);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

async function inflate(base64) {
  const stream = new Blob([bytes(base64)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).text();
}

async function unpack({ data, packed }) {
  return JSON.parse(packed ? await inflate(data) : data);
}

function textsOf(group) {
  return [...group.prompt, ...group.reference].map(([, text]) => text).concat(group.attempts.map((a) => a.text));
}

function block(id) {
  const node = $(id);
  return { data: node.textContent, packed: node.type !== "application/json" };
}

const unpackBlock = async (id) => unpack(block(id));

// Read the head and the index into `data`, and return the index.
async function unpackIndex() {
  if (block("index").packed && !("DecompressionStream" in window)) {
    throw new Error("This browser cannot unpack the data: it lacks DecompressionStream. Chrome 103, Firefox 113, Safari 16.4 and later have it.");
  }
  const index = await unpackBlock("index");
  load(await unpackBlock("head"), index);
  return index;
}

const MOST_CHUNKS = 8; // the number of chunks that stay unpacked
const chunks = new Map();
let packedChunk = async (n) => block(`chunk-${n}`); // live.js replaces it: a served page asks the server for chunks

function chunk(n) {
  const found = chunks.get(n) || packedChunk(n).then(unpack);
  chunks.delete(n);
  chunks.set(n, found);
  if (chunks.size > MOST_CHUNKS) chunks.delete(chunks.keys().next().value);
  return found;
}

async function texts(g) {
  const group = (await chunk(data.chunk[g]))[data.place[g]];
  if (group.problem) throw Object.assign(new Error(group.problem), { reason: group.problem });
  if (group.thumbnails) for (const attempt of group.attempts) attempt.thumbnails = group.thumbnails;
  return group;
}

// -- long lists: the document holds only the rows in sight

// Draw the rows in sight. row(item, i) returns the node of rows[i]. Each row is `tall` px high and has the id `name`-i.
// `chosen` is the index of the selected row. The nodes `none` are drawn if there is no row.
function drawListbox(list, { name, rows, tall, chosen, row, none = [] }) {
  const from = Math.max(0, Math.floor(list.scrollTop / tall) - 3);
  const to = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / tall) + 3);
  const nodes = [];
  for (let i = from; i < to; i++) {
    const id = `${name}-${i}`;
    const made = row(rows[i], i);
    made.item = rows[i];
    for (const [key, value] of Object.entries({ id, role: "option", "aria-selected": i === chosen, "aria-posinset": i + 1, "aria-setsize": rows.length })) {
      made.setAttribute(key, value);
    }
    made.style.top = `${i * tall}px`;
    const old = $(id);
    nodes.push(old?.item === made.item && old.isEqualNode(made) ? old : made);
  }
  replaceRows(list.firstElementChild, nodes.length ? nodes : none);
  if (chosen >= from && chosen < to) list.setAttribute("aria-activedescendant", `${name}-${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

// Keep unchanged rows in the document: the browser reports no click if a row is removed between press and release.
function replaceRows(drawn, nodes) {
  for (const old of [...drawn.childNodes]) if (!nodes.includes(old)) old.remove();
  nodes.forEach((node, i) => node !== drawn.childNodes[i] && drawn.insertBefore(node, drawn.childNodes[i] ?? null));
}

// Scroll only as far as is needed to see row `i`.
function showInList(list, i, tall) {
  const top = i * tall;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + tall > list.scrollTop + list.clientHeight) list.scrollTop = top + tall - list.clientHeight;
}

// Call refresh() a moment after the last letter of the search, and draw() when other rows of the list come in sight.
function listenToList(refresh, draw) {
  let timer = 0;
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("query").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 250);
  });
  $("list").addEventListener("scroll", draw);
  new ResizeObserver(draw).observe($("list"));
}

// -- the address

const MOST_QUERY = 2000; // characters of a search that an address holds

// Each part of the view that an address holds: [() => its value, or "" for the value with which the page opens; text =>
// sets it, "" being that value]. A text that is no valid value changes nothing.

const option = (id) => [
  () => ($(id).selectedIndex > 0 ? $(id).value : ""),
  (text) => {
    const at = text ? [...$(id).options].findIndex(({ value }) => value === text) : 0;
    if (at >= 0) $(id).selectedIndex = at;
  },
];

const onOff = (owner, name, usual) => [
  () => (owner()[name] === usual ? "" : String(Number(!usual))),
  (text) => { if (["", "0", "1"].includes(text)) owner()[name] = text ? text === "1" : usual; },
];
const box = (id, usual) => onOff(() => $(id), "checked", usual);
const flag = (name, usual) => onOff(() => state, name, usual);

const query = [() => $("query").value.slice(0, MOST_QUERY), (text) => { $("query").value = text.slice(0, MOST_QUERY); }];

function setAddress(place) {
  try {
    history.replaceState(null, "", `#${place}`);
  } catch {
    // A frame without an address of its own refuses it.
  }
}
