// -- long lists: of which only the rows in sight are in the page

// `row(i)` makes the one at `i`, of `tall` px each, with an id that begins with `name`; `chosen` is where the chosen one is.
function drawListbox(list, { name, rows, tall, chosen, row, none = [] }) {
  const from = Math.max(0, Math.floor(list.scrollTop / tall) - 3);
  const to = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / tall) + 3);
  const nodes = [];
  for (let i = from; i < to; i++) {
    const node = row(rows[i], i);
    for (const [key, value] of Object.entries({ id: `${name}-${i}`, role: "option", "aria-selected": i === chosen, "aria-posinset": i + 1, "aria-setsize": rows.length })) {
      node.setAttribute(key, value);
    }
    node.style.top = `${i * tall}px`;
    nodes.push(node);
  }
  list.firstElementChild.replaceChildren(...(nodes.length ? nodes : none));
  if (chosen >= from && chosen < to) list.setAttribute("aria-activedescendant", `${name}-${chosen}`);
  else list.removeAttribute("aria-activedescendant");
}

// Scroll as little as shows the row at `i`.
function showInList(list, i, tall) {
  const top = i * tall;
  if (top < list.scrollTop) list.scrollTop = top;
  else if (top + tall > list.scrollTop + list.clientHeight) list.scrollTop = top + tall - list.clientHeight;
}
