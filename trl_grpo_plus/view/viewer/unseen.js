// -- characters that are not seen, or that change the direction of those that are, as marks: what one reads is what a
// verifier read

// What keeps an emoji whole is left alone.
const JOINT = String.raw`(?<joint>(?<=\p{Extended_Pictographic})\uFE0F|(?<=[\p{Extended_Pictographic}\p{Emoji_Modifier}\uFE0F])\u200D(?=\p{Extended_Pictographic}))`;
const HIDDEN = String.raw`[\p{Default_Ignorable_Code_Point}\p{Cs}\p{Zl}\p{Zp}\u2800\uFFF9-\uFFFB]|(?![\t\n])\p{Cc}|(?! )\p{Zs}`;
const UNSEEN = new RegExp(`${JOINT}|(${HIDDEN})\\2*`, "gu");

const CONTROLS = "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");
const NAMED = {
  0x7f: ["DEL", "delete"], 0xa0: ["␣", "no-break space"], 0xad: ["SHY", "soft hyphen"], 0x61c: ["ALM", "Arabic letter mark"],
  0x200b: ["ZWSP", "zero width space"], 0x200c: ["ZWNJ", "zero width non-joiner"], 0x200d: ["ZWJ", "zero width joiner"],
  0x200e: ["LRM", "left-to-right mark"], 0x200f: ["RLM", "right-to-left mark"], 0x2028: ["LS", "line separator"],
  0x2029: ["PS", "paragraph separator"], 0x202a: ["LRE", "left-to-right embedding"], 0x202b: ["RLE", "right-to-left embedding"],
  0x202c: ["PDF", "pop directional formatting"], 0x202d: ["LRO", "left-to-right override"], 0x202e: ["RLO", "right-to-left override"],
  0x202f: ["␣", "narrow no-break space"], 0x2060: ["WJ", "word joiner"], 0x2066: ["LRI", "left-to-right isolate"],
  0x2067: ["RLI", "right-to-left isolate"], 0x2068: ["FSI", "first strong isolate"], 0x2069: ["PDI", "pop directional isolate"],
  0xfeff: ["BOM", "zero width no-break space"],
};

// [short, long] name of a code point.
function codeName(code) {
  if (NAMED[code]) return NAMED[code];
  const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  if (code < 32) return [CONTROLS[code], "control character"];
  if (code >= 0xe0020 && code < 0xe007f) return [`tag ${String.fromCodePoint(code - 0xe0000)}`, "tag character"];
  if (code >= 0xd800 && code < 0xe000) return [hex, "lone surrogate"];
  if (/\p{Zs}/u.test(String.fromCodePoint(code))) return ["␣", "space"];
  return [hex, "is not seen"];
}

// `text` as strings and marks. The characters stay in the page's text, where they are not drawn.
function seen(value) {
  const text = String(value);
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.groups.joint) continue;
    parts.push(text.slice(at, match.index), unseenNode(match[0]));
    at = match.index + match[0].length;
  }
  parts.push(at ? text.slice(at) : text);
  return parts.filter((part) => part !== "");
}

// Equal ones that follow each other are one mark.
function unseenNode(run) {
  const code = run.codePointAt(0);
  const times = run.length / String.fromCodePoint(code).length;
  const [short, long] = codeName(code);
  const hex = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
  const title = `${hex} ${long}${times > 1 ? `, ${times} times` : ""}`;
  const node = el("span", { className: "ghost", title, role: "img" }, el("span", {}, run));
  node.setAttribute("aria-label", title);
  node.dataset.label = times === 1 ? short : short === "␣" && times < 20 ? short.repeat(times) : `${short} ×${times}`;
  return node;
}

// For titles under the pointer, which hold no marks.
const plainly = (text) => seen(text).map((part) => (typeof part === "string" ? part : `[${part.dataset.label}]`)).join("");

// Of a prompt.
const titleNode = (title, properties = {}) => el("bdi", properties, ...seen(title || "(empty prompt)"));

// The nearest place that is not within a character of two units.
function whole(text, at, by) {
  const code = text.charCodeAt(at);
  const before = text.charCodeAt(at - 1);
  return code >= 0xdc00 && code < 0xe000 && before >= 0xd800 && before < 0xdc00 ? at + by : at;
}
