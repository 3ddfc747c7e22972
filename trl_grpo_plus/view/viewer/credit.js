// -- credit within an attempt: advantages of tokens as a heat behind the text, rewards where steps end

// The largest |advantage| of any token of the group; 0 where tokens have none of their own.
function hottest(attempts) {
  const sizes = attempts.flatMap((attempt) => (attempt.heat || []).map(([, , value]) => Math.abs(value)));
  return sizes.reduce((a, b) => Math.max(a, b), 0);
}

const hasCredit = (attempts) => attempts.some((attempt) => attempt.heat || attempt.steps);

// Ranges for paint().
function creditRanges(attempt, most, names) {
  const heat = (attempt.heat || []).map(([from, to, value]) => [from, to, "heat", (mark) => warm(mark, value, most)]);
  const steps = (attempt.steps || []).map(([end, reward, name]) => {
    const at = attempt.text.slice(0, end).trimEnd().length || end; // on the step's own line
    return [at, at, "step", stepNode(reward, name, names)];
  });
  return [...heat, ...steps];
}

function warm(mark, value, most) {
  mark.title = `advantage ${signed(value)}`;
  if (value) mark.style.setProperty("--heat", tint(value / most));
}

// The ends of the rewards' scale, no stronger than that text is read on them, on light and dark ground.
function tint(share) {
  const strength = Math.round((0.08 + 0.42 * Math.abs(share)) * 255);
  return (share < 0 ? SCALE[0] : SCALE[SCALE.length - 1]) + strength.toString(16).padStart(2, "0");
}

// Its label is drawn by the style sheet: it is no part of the text that is searched, compared and copied.
function stepNode(reward, name, names) {
  const title = `${name}: step ends, reward ${signed(reward)}`;
  const node = el("span", { className: `step ${reward > 0 ? "up" : reward < 0 ? "down" : ""}`, title, role: "img" });
  node.setAttribute("aria-label", title);
  node.dataset.label = names.length > 1 ? `${name} ${signed(reward)}` : signed(reward);
  return node;
}

const stepNames = (attempts) => [...new Set(attempts.flatMap((attempt) => (attempt.steps || []).map(([, , name]) => name)))].sort();

function creditLegend(attempts) {
  const most = hottest(attempts);
  const names = stepNames(attempts);
  const node = el("span", { className: "muted", id: "credit-legend" });
  if (most) {
    const bar = el("span", { className: "heat-bar" });
    bar.style.background = `linear-gradient(to right, ${tint(-1)}, transparent, ${tint(1)})`;
    node.append("advantage by token ", signed(-most), " ", bar, " ", signed(most));
  } else if (attempts.some((attempt) => attempt.heat)) node.append("advantage by token 0");
  if (names.length) node.append(node.hasChildNodes() ? "; " : "", el("span", { className: "step", "data-label": "r" }), " a step of ", el("bdi", {}, names.join(" or ")), " ends; its reward");
  return node;
}
