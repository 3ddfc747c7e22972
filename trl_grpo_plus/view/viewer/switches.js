// -- what is switched in the group in view

// Differences and credit are marks in the text as it is written.
function toggleDiff() {
  if (state.rendered) Object.assign(state, { rendered: false, diff: false, pairDiff: false });
  if (paired()) state.pairDiff = !state.pairDiff;
  else state.diff = !state.diff;
  redraw();
}

function toggleFold() {
  state.unfold = !state.unfold;
  redraw();
}

function toggleCredit() {
  state.credit = state.rendered || !state.credit;
  state.rendered = false;
  redraw();
}

function toggleRendered() {
  if (!canRender()) return;
  state.rendered = !state.rendered;
  redraw();
}

function toggleApart() {
  state.apart = !state.apart;
  redraw();
}

function togglePin(attempt) {
  const has = state.pins.includes(attempt);
  state.pins = has ? state.pins.filter((pin) => pin !== attempt) : [...state.pins, attempt].slice(-2);
  redraw();
}

function unpin() {
  state.pins = [];
  redraw();
}

// Focus stays on the same button or text.
async function redraw() {
  const active = document.activeElement;
  const attempt = active.closest?.(".attempt")?.dataset.attempt;
  const id = active.id || (attempt && `pin-${attempt}`);
  await drawGroup();
  if (id && $(id)) $(id).focus({ preventScroll: true });
}

function pinNext() {
  const focused = document.activeElement.closest?.(".attempt");
  if (focused) return togglePin(Number(focused.dataset.attempt));
  const all = [...document.querySelectorAll("#columns .attempt")].map((node) => Number(node.dataset.attempt));
  const next = all.find((attempt) => !state.pins.includes(attempt));
  if (next !== undefined && state.pins.length < 2) togglePin(next);
}
