// -- keys

const KEYS = {
  j: () => moveGroup(1),
  ArrowDown: () => moveGroup(1),
  k: () => moveGroup(-1),
  ArrowUp: () => moveGroup(-1),
  l: () => moveStep(1),
  ArrowRight: () => moveStep(1),
  h: () => moveStep(-1),
  ArrowLeft: () => moveStep(-1),
  "/": () => $("query").focus(),
  d: toggleDiff,
  t: toggleFold,
  c: toggleCredit,
  p: pinNext,
  f: toggleFollow,
  o: togglePrompts,
  m: toggleRendered,
  e: toggleApart,
  w: goToWorst,
  W: goToWorstAttempt,
  "?": () => $("help").showModal(),
};

// What they are about is not in view there.
const IDLE = { follow: [..."pceW"], prompts: [..."pceWdtm"] };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.key === "Escape") return escape();
  const typing = event.target.matches("input:not([type=checkbox], [type=radio], [type=range]), select");
  // Arrows scroll a text that has the focus.
  const scrolling = event.key.startsWith("Arrow") && event.target.matches("input, .body, .prompt, .reference");
  if (typing || scrolling || !Object.hasOwn(KEYS, event.key) || IDLE[state.view]?.includes(event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

function escape() {
  if (document.activeElement === $("query") && !$("query").value) return $("query").blur();
  if (!$("cancel").hidden) return cancel();
  if (state.view && document.activeElement !== $("query")) return setView("");
  if (state.pins.length && document.activeElement !== $("query")) return unpin();
  if ($("query").value) {
    $("query").value = "";
    refresh();
  }
  $("query").blur();
}
