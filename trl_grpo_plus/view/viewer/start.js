// -- start

// What is filled here may be filled again, with what is new; what is chosen stays.
function options(id, choices) {
  const { value } = $(id);
  $(id).closest("label").hidden = choices.length < 2;
  if (JSON.stringify(choices) === JSON.stringify([...$(id).options].map((option) => [option.value, option.text]))) return;
  $(id).replaceChildren(...choices.map(([value, name]) => el("option", { value }, name)));
  if (choices.some(([known]) => known === value)) $(id).value = value;
}

function fillControls() {
  const used = (list) => [...new Set(list)].filter(Boolean).sort();
  const named = (list) => list.map((value) => [value, words(value)]);
  options("split", data.splits.map((split) => [split, split]));
  const verdicts = used(data.verdict);
  options("verdict", verdicts.length ? [["", "any"], ...named(verdicts)] : []);
  const alarms = used(data.alarms.flat());
  options("alarm", alarms.length ? [["", "–"], ["*", "any alarm"], ...named(alarms)] : []);
  const reasons = used(data.reason);
  options("kept", data.kept.some((kept) => kept !== null) ? [["", "–"], ["*", "yes"], ...reasons.map((r) => [r, `no: ${words(r)}`])] : []);
}

function fillHead() {
  const { title, groups, groups_total: total, attempts, attempts_total: all, note, panel } = data.head;
  document.title = `${title}: attempts side by side`;
  if ($("run").textContent !== title) $("run").replaceChildren(el("bdi", {}, title));
  const steps = data.splits.map((split) => `${count(data.steps[split].length, "step")} of ${split}`).join(", ");
  const left = total - groups;
  $("facts").textContent = data.n ? `${steps}; ${count(groups, "group")}, ${count(attempts, "attempt")}` : "";
  const told = [];
  if (left) told.push(`Left out for size: ${number(left)} of ${number(total)} groups (${number(all - attempts)} of ${number(all)} attempts), evenly over the steps; those that an alarm names and live ones stay longest.`);
  if (note) told.push(note);
  $("note").textContent = told.join(" ");
  $("note").hidden = !told.length;
  document.body.classList.toggle("panel", panel);
}

function fillAlarms() {
  const { alarms } = data.head;
  if (!alarms.length) return;
  if ($("alarms").hidden) $("alarms").open = true;
  $("alarms").hidden = false;
  $("alarm-list").replaceChildren();
  $("alarms").querySelector("summary").textContent = count(alarms.length, "alarm");
  for (const { name, count: n, times } of alarms) {
    const buttons = times.map((time) => {
      const button = el("button", { type: "button", title: alarmTold(time.message) }, `step ${loggedStep(time.step, "train")}`);
      button.addEventListener("click", () => goToAlarm(time));
      return button;
    });
    const more = n > times.length ? ` ${times.length} of ${n} shown` : "";
    const told = el("bdi", { className: "muted" }, alarmTold(times[0].message));
    $("alarm-list").append(el("div", { className: "alarm" }, el("b", {}, words(name)), el("span", { className: "times" }, ...buttons, more), told));
  }
}

function listen() {
  const soon = { timer: 0 };
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("query").addEventListener("keydown", (event) => event.key === "Enter" && $("list").focus());
  $("query").addEventListener("input", () => {
    state.rendered = false; // hits are marked in the text as it is written
    clearTimeout(soon.timer);
    soon.timer = setTimeout(refresh, 250);
  });
  const filters = ["verdict", "alarm", "differs", "kept", "reward-min", "reward-max", "measure", "regex"];
  for (const id of filters) $(id).addEventListener("input", refresh);
  $("split").addEventListener("input", () => {
    setSplit($("split").value);
    refresh();
  });
  $("step").addEventListener("input", () => goToStep(data.steps[state.split][$("step").value]));
  $("step-back").addEventListener("click", () => moveStep(-1));
  $("step-on").addEventListener("click", () => moveStep(1));
  $("scope").addEventListener("input", (event) => {
    setScope(event.target.value);
    refresh();
  });
  $("cancel").addEventListener("click", cancel);
  $("prompts").addEventListener("click", togglePrompts);
  $("clear").addEventListener("click", clearFilters);
  $("keys").addEventListener("click", () => $("help").showModal());
  $("list").addEventListener("scroll", drawRows);
  new ResizeObserver(drawRows).observe($("list"));
  document.addEventListener("keydown", onKey);
  addEventListener("hashchange", recall);
}

async function start() {
  const index = block("index");
  if (index.packed && !("DecompressionStream" in window)) {
    throw new Error("This browser cannot unpack the texts: it lacks DecompressionStream. Chrome 103, Firefox 113, Safari 16.4 and later have it.");
  }
  load(JSON.parse(block("head").data), await unpack(index.data, index.packed));
  fillHead();
  if (data.head.live) goLive(JSON.parse(index.data)); // in live.js: of a page that is served
  if (!data.n && data.head.live) return;
  if (!data.n) throw new Error("There are no groups to show.");
  fillAlarms();
  fillControls();
  fillSort();
  drawLegend();
  if (data.head.panel) setScope("all");
  fillRescored();
  listen();
  fillAbout();
  fillGiven();
  fillResults();
  drawCurves(data.head.curves);
  fillPicker();
  fillCalibration();
  recall();
}

start().catch((error) => {
  $("note").hidden = false;
  $("note").textContent = error.message;
});
