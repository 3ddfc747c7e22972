// -- long lists: of which only the rows in sight are in the page

// `row(i)` makes the one at `i`, of `tall` px each, with an id that begins with `name`; `chosen` is where the chosen one is.
function drawListbox(list, { name, rows, tall, chosen, row, none = [] }) {
  const from = Math.max(0, Math.floor(list.scrollTop / tall) - 3);
  const to = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / tall) + 3);
  const nodes = [];
  for (let i = from; i < to; i++) {
    const id = `${name}-${i}`;
    const made = row(rows[i], i);
    made.of = rows[i];
    for (const [key, value] of Object.entries({ id, role: "option", "aria-selected": i === chosen, "aria-posinset": i + 1, "aria-setsize": rows.length })) {
      made.setAttribute(key, value);
    }
    made.style.top = `${i * tall}px`;
    const old = $(id);
    nodes.push(old?.of === made.of && old.isEqualNode(made) ? old : made);
  }
  replaceRows(list.firstElementChild, nodes.length ? nodes : none);
  if (chosen >= from && chosen < to) list.setAttribute("aria-activedescendant", `${name}-${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

// What stays is not touched: a press on a row that is taken out before the release is no click.
function replaceRows(drawn, nodes) {
  for (const old of [...drawn.childNodes]) if (!nodes.includes(old)) old.remove();
  nodes.forEach((node, i) => node !== drawn.childNodes[i] && drawn.insertBefore(node, drawn.childNodes[i] ?? null));
}

// Scroll as little as shows the row at `i`.
function showInList(list, i, tall) {
  const top = i * tall;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + tall > list.scrollTop + list.clientHeight) list.scrollTop = top + tall - list.clientHeight;
}
