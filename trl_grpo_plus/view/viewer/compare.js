// -- start of the page of several runs

const KEYS = {
  j: () => movePrompt(1),
  k: () => movePrompt(-1),
  "/": () => $("query").focus(),
  d: () => toggle("diff"),
  t: () => toggle("unfold"),
  c: () => toggle("credit"),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input:not([type=checkbox], [type=range]), select")) return;
  const arrows = { ArrowDown: 1, ArrowUp: -1 };
  if (event.target === $("list") && Object.hasOwn(arrows, event.key)) movePrompt(arrows[event.key]);
  else if (Object.hasOwn(KEYS, event.key) && prompts.all.length) KEYS[event.key]();
  else return;
  event.preventDefault();
}

function fillHead() {
  const { title, runs, settings, notes } = data.head;
  document.title = `${title}: runs side by side`;
  $("run").replaceChildren(el("bdi", {}, title));
  const of = settings.length < runs.length ? ` of ${count(settings.length, "setting")}` : "";
  $("facts").textContent = `${count(runs.length, "run")}${of}, ${count(data.head.shared, "prompt")} of two runs or more`;
  $("note").hidden = !notes.length;
  $("note").open = notes.length < 4;
  $("note").querySelector("summary").textContent = count(notes.length, "note");
  $("notes").append(...notes.map((note) => el("li", {}, note)));
}

function fillControls() {
  const { runs } = data.head;
  const splits = data.splits.map((split) => [split, words(split)]);
  $("split").append(...[["", "any"], ...splits].map(([value, name]) => el("option", { value }, name)));
  $("split-field").hidden = splits.length < 2;
  const orders = [["gap", "furthest apart at last"], ...runs.map(({ name }, r) => [r, `${name} ahead`])];
  $("order").append(...orders.map(([value, name]) => el("option", { value }, name)));
}

function listen() {
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("query").addEventListener("input", () => {
    clearTimeout(prompts.timer);
    prompts.timer = setTimeout(refresh, 250);
  });
  for (const id of ["split", "order", "regex"]) $(id).addEventListener("input", refresh);
  $("list").addEventListener("scroll", drawShared);
  new ResizeObserver(drawShared).observe($("list"));
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", show);
}

function show() {
  recall();
  refresh();
  return drawCurves();
}

async function start() {
  const index = block("index");
  if (!("DecompressionStream" in window)) {
    throw new Error("This browser cannot unpack the data: it lacks DecompressionStream. Chrome 103, Firefox 113, Safari 16.4 and later have it.");
  }
  const unpacked = await unpack(index.data, index.packed);
  load(JSON.parse(block("head").data), unpacked);
  loadPrompts(unpacked);
  fillHead();
  fillOutcomes();
  fillOptions();
  fillCurves();
  fillControls();
  listen();
  await show();
}

start().catch((error) => {
  $("note").hidden = false;
  $("note").open = true;
  $("notes").append(el("li", {}, error.message));
});
