// -- the address of the page of several runs: #axis=tokens&metric=kl&prompt=3, what of the view is not as it opens

const chosenIn = (id) => [
  () => ($(id).selectedIndex > 0 ? $(id).value : ""),
  (text) => { $(id).value = [...$(id).options].some(({ value }) => value === text) ? text : $(id).options[0].value; },
];
const tickedAt = (id, usual) => [() => ($(id).checked === usual ? "" : String(Number(!usual))), (text) => { $(id).checked = text ? text === "1" : usual; }];
const held = (name, usual) => [() => (state[name] === usual ? "" : String(Number(!usual))), (text) => { state[name] = text ? text === "1" : usual; }];

// key -> its value ("" where it is as it opens), and what sets it from a text, "" for as it opens.
const VIEW = {
  axis: chosenIn("axis"),
  mean: tickedAt("mean", true),
  without: [() => [...curves.hidden].sort().join("."), hideRuns],
  split: chosenIn("split"),
  order: chosenIn("order"),
  text: [() => $("query").value.slice(0, MOST_QUERY), (text) => { $("query").value = text.slice(0, MOST_QUERY); }],
  regex: tickedAt("regex", false),
  diff: held("diff", true),
  thinking: held("unfold", false),
  credit: held("credit", true),
};

function hideRuns(text) {
  const hidden = text.split(".").filter(Boolean).map(Number);
  curves.hidden = new Set(hidden.filter((r) => r in data.head.runs));
  document.querySelectorAll("#outcomes input").forEach((box, r) => { box.checked = !curves.hidden.has(r); });
}

// `prompt` is its number in this page; `at` is which of its groups each run shows, where that is not the last.
function remember() {
  const place = new URLSearchParams();
  for (const [key, [value]] of Object.entries(VIEW)) if (value()) place.set(key, value());
  const { first } = data.head;
  if (curves.names.join() !== first.join()) for (const name of curves.names.length ? curves.names : [""]) place.append("metric", name);
  const { chosen, rows } = prompts;
  const moved = chosen && [...chosen.runs].some(([r, groups]) => state.at[r] !== groups.length - 1);
  if (moved || (chosen && chosen !== rows[0])) place.set("prompt", chosen.i);
  if (moved) place.set("at", [...chosen.runs.keys()].map((r) => state.at[r]).join("."));
  setAddress(place);
}

function recall() {
  const place = new URLSearchParams(location.hash.slice(1));
  for (const [key, [, set]] of Object.entries(VIEW)) set(place.get(key) || "");
  curves.names = place.has("metric") ? [...new Set(place.getAll("metric"))].filter((name) => data.head.metrics.includes(name)) : data.head.first.slice();
  prompts.chosen = null;
  const prompt = prompts.all[Number(place.get("prompt") || -1)];
  if (prompt) showLast(prompt);
  const at = (place.get("at") || "").split(".").map(Number);
  [...(prompt?.runs ?? [])].forEach(([r, groups], i) => { if (at[i] in groups) state.at[r] = at[i]; });
}
