// -- copying, which must also do in a file that is opened from disk, or in a frame

// Whether it was copied.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

function copiedBySelection(text) {
  const active = document.activeElement;
  const area = el("textarea", { value: text, className: "unseen", readOnly: true, ariaHidden: "true" });
  document.body.append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {
    // It says so below.
  }
  area.remove();
  active?.focus?.({ preventScroll: true });
  return done;
}

function copyButton(id, name, title, text) {
  const button = el("button", { type: "button", id, title, className: "copy" }, name);
  button.addEventListener("click", async () => {
    const done = await copied(await text());
    button.textContent = done ? "Copied" : "Not copied";
    $("told").textContent = done ? `${title}: copied` : `${title}: this browser does not let the page copy`;
    setTimeout(() => (button.textContent = name), 1500);
  });
  return button;
}

const plainText = (parts) => parts.map(([, text]) => text).join("\n");

// A group as data, in the words of its traces.
function groupData(g, { prompt, reference, attempts }) {
  const place = Object.fromEntries(["split", "step", "batch", "round", "group", "verdict", "reason", "alarms"].map((name) => [name, data[name][g]]));
  const plain = attempts.map(({ attempt, text, reward, advantage, tokens, kl, truncated, parts, extra, roles, rescored }) => ({
    ...{ attempt, reward, advantage, tokens, kl, truncated },
    rewards: Object.fromEntries(parts.map(([name, score]) => [name, score])),
    outcomes: Object.fromEntries(parts.map(([name, , outcome]) => [name, outcome])),
    extra: Object.fromEntries(extra),
    ...(rescored ? { rescored: rescored.map(rescoredData) } : {}),
    ...(roles.length ? { messages: turns({ text, roles }).map(([role, from, to]) => ({ role, content: text.slice(from, to) })) } : {}),
    text,
  }));
  return {
    ...place,
    kept: data.kept[g] === null ? null : Boolean(data.kept[g]),
    prompt: prompt.map(([role, content]) => ({ role, content })),
    reference: Object.fromEntries(reference),
    attempts: plain,
  };
}

function rescoredData([reward, recorded_as, recorded, now, disagreement, message]) {
  return { reward, recorded_as, recorded, now, disagreement, message };
}

function copyTools(g, group) {
  return [
    el("span", { className: "muted" }, "Copy"),
    copyButton("copy-prompt", "Prompt", "Copy the prompt", () => plainText(group.prompt)),
    copyButton("copy-link", "Link", "Copy a link to this view", () => `${location.href.split("#")[0]}#${placeOfView(true)}`),
    copyButton("copy-group", "JSON", "Copy the group as JSON", () => JSON.stringify(groupData(g, group), null, 1)),
  ];
}
