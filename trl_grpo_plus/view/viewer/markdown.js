// Renders Markdown and mathematics. The page carries two libraries that parse them; this file makes nodes from their
// tokens and trees, only elements and attributes that are listed here. It needs base.js and text.js. The page of
// several runs does not have it.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MOST_RENDERED = 200000; // characters of a text
const MOST_FORMULA = 5000; // characters
const TAGS = new Set("p ul ol li blockquote table thead tbody tr th td strong em s code pre hr br".split(" "));
const MATH_TAGS = new Set("math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mtable mtr mtd mstyle mpadded menclose mmultiscripts mprescripts none".split(" "));
const MATH_ATTRIBUTES = new Set("display displaystyle scriptlevel mathvariant stretchy fence separator form lspace rspace movablelimits accent accentunder largeop symmetric minsize maxsize linethickness width height depth voffset columnalign rowspacing columnspacing columnlines rowlines columnspan rowspan notation".split(" "));

let parser = null;

const canRender = () => "markdown-it" in LIBRARIES;

// Load the libraries when they are first needed. The page's Content-Security-Policy lists their hashes.
async function loadLibraries() {
  if (parser || !canRender()) return;
  for (const packed of Object.values(LIBRARIES)) {
    document.head.append(el("script", { textContent: await inflate(packed) }));
  }
  parser = window.markdownit({ html: false, linkify: false, typographer: false, breaks: true });
  parser.inline.ruler.before("escape", "formula", inlineFormula);
  parser.block.ruler.before("fence", "formula", blockFormula, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

// -- into nodes

function renderedNodes(text) {
  if (text.length > MOST_RENDERED) return [el("p", { className: "muted" }, "Too long to render."), el("pre", {}, ...readable(text))];
  const top = el("div");
  appendTokens(top, parser.parse(text, {}));
  return [...top.childNodes];
}

function appendTokens(top, tokens) {
  const open = [top];
  for (const token of tokens) {
    const parent = open[open.length - 1];
    if (token.nesting < 0) {
      const closed = open.pop();
      const address = closed.dataset?.address;
      if (address && address !== closed.textContent) closed.append(el("span", { className: "muted" }, " (", ...readable(address), ")"));
    } else if (token.nesting > 0) {
      const node = openNode(token);
      parent.append(node);
      open.push(node);
    } else if (token.type === "inline") appendTokens(parent, token.children);
    else parent.append(...leafNodes(token));
  }
}

function openNode(token) {
  if (token.type === "heading_open") return el("p", { className: `heading ${token.tag}` });
  if (token.type === "link_open") {
    const node = el("span", { className: "link" });
    node.dataset.address = token.attrGet("href") || "";
    return node;
  }
  // A hidden token is a paragraph in a tight list: its text needs no block of its own.
  const node = el(token.hidden || !TAGS.has(token.tag) ? "span" : token.tag);
  const align = /^text-align:(left|center|right)$/.exec(token.attrGet("style") || "");
  if (align) node.style.textAlign = align[1];
  if (token.tag === "ol" && token.attrGet("start")) node.start = Number(token.attrGet("start"));
  return node;
}

function leafNodes(token) {
  if (token.type === "formula") return [formulaNode(token.content, token.meta)];
  if (token.type === "fence" || token.type === "code_block") return [el("pre", {}, ...readable(token.content))];
  if (token.type === "code_inline") return [el("code", {}, ...readable(token.content))];
  if (token.type === "softbreak" || token.type === "hardbreak") return [el("br")];
  if (token.type === "hr") return [el("hr")];
  if (token.type === "image") return [el("span", { className: "link" }, ...readable(`![${token.content}](${token.attrGet("src")})`))];
  return readable(token.content);
}

// Return a formula as MathML, or its source if it cannot be rendered.
function formulaNode(tex, display) {
  const written = () => el("code", { className: "formula" }, ...readable(tex));
  if (readable(tex).length > 1) return written();
  try {
    const tree = window.temml.__renderToMathMLTree(tex, { displayMode: display, throwOnError: true, trust: false, maxSize: [20, 200], maxExpand: 500 });
    return el("span", { className: display ? "formula display" : "formula", title: tex }, mathNode(tree));
  } catch {
    return written();
  }
}

function mathNode(tree) {
  if (typeof tree.text === "string") return document.createTextNode(tree.text);
  if (tree.type === undefined && tree.children) {
    const fragment = document.createDocumentFragment();
    fragment.append(...tree.children.map(mathNode));
    return fragment;
  }
  if (!MATH_TAGS.has(tree.type)) throw new Error(`no known element: ${tree.type}`);
  const node = document.createElementNS(MATHML, tree.type);
  for (const [name, value] of Object.entries(tree.attributes)) if (MATH_ATTRIBUTES.has(name)) node.setAttribute(name, value);
  const classes = tree.classes.filter((name) => /^tml-[a-z-]+$/.test(name));
  if (tree.style.border) classes.push("boxed");
  if (classes.length) node.setAttribute("class", classes.join(" "));
  node.append(...tree.children.map(mathNode));
  return node;
}

// -- finding formulas: rules for the parser

const FORMULA_BOUNDS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];

// Return [tex, end, display] of the formula that begins at `at`, or null. For single dollars pandoc's rule holds, so
// that prices are not read as formulas.
function formulaAt(text, at, end) {
  for (const [open, close, display] of FORMULA_BOUNDS) {
    if (!text.startsWith(open, at)) continue;
    const from = at + open.length;
    const to = closing(text, close, from, Math.min(end, from + MOST_FORMULA));
    if (to < 0) return null;
    const tex = text.slice(from, to);
    const price = open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(text[to + 1] || ""));
    return !tex.trim() || price ? null : [tex, to + close.length, display];
  }
  const begun = /^\\begin\{([a-z]+\*?)\}/.exec(text.slice(at, at + 40));
  if (!begun) return null;
  const close = `\\end{${begun[1]}}`;
  const to = closing(text, close, at, Math.min(end, at + MOST_FORMULA));
  return to < 0 ? null : [text.slice(at, to + close.length), to + close.length, true];
}

const closings = { text: "", places: {} };

// Return the first place of `close` in [from, end) that is not escaped, or -1. Places are cached for one text:
// thousands of openings without a closing then take no longer than one.
function closing(text, close, from, end) {
  if (closings.text !== text) Object.assign(closings, { text, places: {} });
  let at = closings.places[close];
  if (at === undefined || (at >= 0 && at < from)) closings.places[close] = at = text.indexOf(close, from);
  while (at >= 0 && at <= end - close.length) {
    let before = at;
    while (before > from && text[before - 1] === "\\") before--;
    if ((at - before) % 2 === 0) return at;
    at = text.indexOf(close, at + 1);
  }
  return -1;
}

function inlineFormula(state, silent) {
  const found = "$\\".includes(state.src[state.pos]) && formulaAt(state.src, state.pos, state.posMax);
  if (!found) return false;
  if (!silent) Object.assign(state.push("formula", "", 0), { content: found[0], meta: found[2] });
  state.pos = found[1];
  return true;
}

// Parse a display formula that has lines of its own, which may include empty lines.
function blockFormula(state, line, last, silent) {
  const from = state.bMarks[line] + state.tShift[line];
  const found = formulaAt(state.src, from, state.eMarks[last - 1]);
  if (!found || !found[2]) return false;
  let next = line;
  while (next < last - 1 && state.eMarks[next] < found[1]) next++;
  if (state.src.slice(found[1], state.eMarks[next]).trim()) return false;
  if (!silent) {
    Object.assign(state.push("formula", "", 0), { content: found[0], meta: true });
    state.line = next + 1;
  }
  return true;
}
