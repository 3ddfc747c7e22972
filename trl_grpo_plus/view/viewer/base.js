// -- elements, numbers, and the data that the page carries

const $ = (id) => document.getElementById(id);

const MOST_QUERY = 2000; // characters of a search that an address holds

function setAddress(place) {
  try {
    history.replaceState(null, "", `#${place}`);
  } catch {
    // A frame without an address of its own.
  }
}

// All text of the run goes through here or through paint(): it becomes text nodes, never markup.
function el(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(Math.max(2, digits - 2)) : String(Number(value.toPrecision(digits)));
}

const signed = (value) => (value > 0 ? `+${number(value)}` : number(value));
const count = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
const words = (name) => name.replaceAll("_", " ");

// The step at which a batch is logged: the number of steps done once it was trained on. Only this is shown. Traces, and
// with them `data` and the address, hold the number of steps done when it was sampled.
const loggedStep = (step, split) => step + (split === "train" ? data.head.step_shift : 0);
const loggedStepOf = (g) => loggedStep(data.step[g], data.split[g]);

// A button; `key` does the same, and `pressed` is null where nothing stays pressed.
function tool(id, name, key, pressed, act) {
  const button = el("button", { type: "button", id, title: `${name} (${key})` }, name);
  if (pressed !== null) button.setAttribute("aria-pressed", pressed);
  button.addEventListener("click", act);
  return button;
}

// ColorBrewer's RdYlBu: its ends stay apart in every kind of colour blindness, and on light and dark ground.
const SCALE = ["#d73027", "#fc8d59", "#fee090", "#ffffbf", "#e0f3f8", "#91bfdb", "#4575b4"];

// Where the colours of a scale begin: at each reward where they are few, else at every so many of those that are
// distinct. So one far below the others, of a penalty say, leaves them apart; how far is for the legend to say.
function scaleOf(rewards) {
  const distinct = [...new Set(rewards)].filter((reward) => reward !== null).sort((a, b) => a - b);
  const bins = Math.min(SCALE.length, distinct.length);
  return Array.from({ length: bins }, (_, i) => distinct[Math.ceil((i * distinct.length) / bins)]);
}

// `lows` is what scaleOf() gives.
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

// These three also run inside the worker of search.js, from their source text.

function bytes(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const raw = atob(base64);
  const out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out;
}

async function unpack(data, packed) {
  if (!packed) return JSON.parse(data);
  const stream = new Blob([bytes(data)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

function textsOf(group) {
  return [...group.prompt, ...group.reference].map(([, text]) => text).concat(group.attempts.map((a) => a.text));
}

function block(id) {
  const node = $(id);
  return { data: node.textContent, packed: node.type !== "application/json" };
}

// -- chunks of texts, the last few of which are kept

const KEPT = 8;
const chunks = new Map();
let packedChunk = async (n) => block(`chunk-${n}`); // a page that is served asks for them: live.js

const unpackChunk = async (n) => {
  const { data: packed, packed: is } = await packedChunk(n);
  return unpack(packed, is);
};

function chunk(n) {
  const found = chunks.get(n) || unpackChunk(n);
  chunks.delete(n);
  chunks.set(n, found);
  if (chunks.size > KEPT) chunks.delete(chunks.keys().next().value);
  return found;
}

async function texts(g) {
  const group = (await chunk(data.chunk[g]))[data.place[g]];
  if (group.thumbnails) for (const attempt of group.attempts) attempt.thumbnails = group.thumbnails;
  return group;
}

// -- the list's columns

const data = {};

function load(head, index) {
  const { words, groups, rewards, chunks: sizes } = index;
  const word = (code) => (code < 0 ? null : words[code]);
  Object.assign(data, groups, { head, listed: index.listed || [], n: groups.step.length, rewards, first: [], chunk: [], place: [] });
  for (const name of ["split", "verdict", "reason"]) data[name] = groups[name].map(word);
  data.alarms = groups.alarms.map((codes) => codes.map(word));
  let at = 0;
  for (const size of groups.size) {
    data.first.push(at);
    at += size;
  }
  sizes.forEach((size, n) => {
    for (let i = 0; i < size; i++) {
      data.chunk.push(n);
      data.place.push(i);
    }
  });
  data.range = extremes(rewards);
  data.scale = scaleOf(rewards);
  data.splits = [...new Set(data.split)].sort((a, b) => (b === "train") - (a === "train") || (a < b ? -1 : 1));
  data.steps = Object.fromEntries(data.splits.map((split) => [split, stepsOf(split)]));
}

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

function stepsOf(split) {
  const steps = new Set();
  for (let g = 0; g < data.n; g++) if (data.split[g] === split) steps.add(data.step[g]);
  return [...steps].sort((a, b) => a - b);
}

const rewardsOf = (g) => data.rewards.slice(data.first[g], data.first[g] + data.size[g]);
const meanOf = (known) => (known.length ? known.reduce((a, b) => a + b, 0) / known.length : null);
const meanReward = (g) => meanOf(rewardsOf(g).filter((reward) => reward !== null));
const keyOf = (g) => `${data.batch[g]}.${data.round[g]}.${data.group[g]}`;

function findGroup(split, step, key) {
  for (let g = 0; g < data.n; g++) {
    if (data.step[g] === step && data.split[g] === split && keyOf(g) === key) return g;
  }
  return -1;
}
