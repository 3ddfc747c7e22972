// -- the first prompt of the run as the model saw it, which alone is kept: folded, with what to know of it in sight

function fillGiven() {
  const { first_prompt: prompt } = data.head;
  $("given").hidden = !prompt;
  // While a run goes on this is asked again and again, and somebody may be reading it.
  if (!prompt || $("given-text").textContent === prompt.text) return;
  // A run that an earlier version began has one of the step from which it went on.
  const of = prompt.step ? `a prompt of step ${number(loggedStep(prompt.step, "train"))}, the first that was kept` : "the first prompt of the run";
  const summary = [el("b", {}, "As the model saw it"), el("span", { className: "muted" }, `${of}, ${count(prompt.tokens, "token")}`)];
  summary.push(...prompt.flags.map((flag) => el("bdi", {}, ...seen(flag))));
  $("given").querySelector("summary").replaceChildren(...dotted(summary));
  $("given-text").replaceChildren(...seen(prompt.text));
}
