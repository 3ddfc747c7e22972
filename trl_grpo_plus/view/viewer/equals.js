// -- equal attempts of a group as one column

// Of the same text, rewards, tried ones too, and outcomes.
function equalKey({ text, roles, reward, advantage, parts, truncated, steps, rescored }) {
  return JSON.stringify([text, roles, number(reward), number(advantage), parts, truncated, steps, rescored]);
}

// Attempts as columns: each with `members`, the attempts that it stands for, itself the first.
function together(attempts, apart) {
  const found = new Map();
  attempts.forEach((attempt) => {
    const key = apart ? attempt.attempt : equalKey(attempt);
    if (found.has(key)) found.get(key).members.push(attempt.attempt);
    else found.set(key, { ...attempt, members: [attempt.attempt] });
  });
  return [...found.values()];
}

// Pins are of columns: one of an attempt that another stands for moves there.
function movePins(columns) {
  const standsFor = (pin) => columns.find(({ members }) => members.includes(pin))?.attempt;
  state.pins = [...new Set(state.pins.map(standsFor))].filter((pin) => pin !== undefined).slice(-2);
}

function equalsTitle({ attempt, members }) {
  const title = [`#${attempt}`];
  if (members.length > 1) {
    const others = members.slice(1).map((other) => `#${other}`).join(" ");
    title.push(el("span", { className: "tag times", title: `Equal: attempts ${members.join(", ")}` }, `× ${members.length}`), el("span", { className: "muted others" }, others));
  }
  return title;
}
