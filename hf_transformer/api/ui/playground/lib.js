// Shared parts of the widgets: elements, calls, bars, fields. Nothing here sets a style attribute, which the page's
// Content-Security-Policy forbids: colours and sizes are custom properties, set through CSSOM.

export const $ = (id) => document.getElementById(id);

/** A new element, as "p" or "p.hint". Properties that it does not have become attributes; null and false are left out. */
export function el(name, given = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(given)) {
    if (value == null || value === false) continue;
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((child) => child != null));
  return made;
}

export function drawn(name, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export const hint = (...text) => el("p.hint", {}, ...text);
export const button = (label, onclick, more = {}) => el("button", { type: "button", className: "quiet", onclick, ...more }, label);
/** Terms with their descriptions, and a class if there is a third part. */
export const facts = (rows) => rows.map(([name, told, className]) => el("div", { className }, el("dt", {}, name), el("dd", {}, told)));

/** Makes these the children of an element. Those at its beginning that are there already are not touched. */
export function sync(host, nodes) {
  let same = 0;
  while (same < nodes.length && host.childNodes[same] === nodes[same]) same++;
  while (host.childNodes.length > same) host.lastChild.remove();
  host.append(...nodes.slice(same));
}

/** Puts a text on the clipboard, which the button then says. */
export async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Can't copy here";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

/** Sets custom properties of CSS. */
export function vars(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(`--${name}`, value);
  return element;
}

/** Offsets of the service count code points, and JavaScript's strings UTF-16 units. */
export const slice = (text, start, end) => Array.from(text).slice(start, end).join("");

/** A number; one that would read as 0 says that it is not. */
export const fixed = (number, digits) => {
  const least = 10 ** -digits;
  return number > 0 && number < least ? `<${least.toFixed(digits)}` : number.toFixed(digits);
};
/** A share in percent: neither 0 % nor 100 % unless it is. */
export const percent = (share) =>
  (share < 1 && share >= 0.9995 ? ">99.9 %" : `${share ? fixed(100 * share, 1) : 0} %`);
export const short = (text, length = 48) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
export const plural = (count, one, several = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
export const words = (task) => task.replaceAll("_", " ");
export const linkTo = (model) => `?${new URLSearchParams({ model })}`;
/** The parts of a text with commas. */
export const listed = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

/** The value of a text in JSON; undefined for other texts. */
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** JSON in lines. Numbers stay as they came, and so does a list of numbers in one line. */
export function pretty(json) {
  let depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|\{\s*\}|\[[^"[\]{}]*\]|[[\]{},:]|\s+/g, (part) => {
    if (!part.trim()) return "";
    if (part.length > 1) return part[0] === "[" ? part.replace(/\s+/g, "").replaceAll(",", ", ") : part;
    if ("[{".includes(part)) return depth++, part + line();
    if ("]}".includes(part)) return depth--, line() + part;
    return part === "," ? part + line() : part === ":" ? ": " : part;
  });
}

// GPT-2's letters for bytes: printable ones stand for themselves, the others for the letters from U+0100 on.
const isPrintable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte < 256 && byte !== 173);
const BYTES = new Map();
for (let byte = 0, next = 256; byte < 256; byte++) BYTES.set(String.fromCodePoint(isPrintable(byte) ? byte : next++), byte);

const utf8 = new TextEncoder();
/** Tokenizers that don't keep the text as it is: a token to bytes, and signs of theirs. */
const SPELLINGS = [
  [(token) => Array.from(token, (letter) => BYTES.get(letter) ?? NaN), /[\u0100-\u0143]/g], // byte-level BPE
  [(token) => (/^<0x[\dA-F]{2}>$/.test(token) ? [parseInt(token.slice(3), 16)] : [...utf8.encode(token.replaceAll("▁", " "))]), /▁/g], // SentencePiece
];

/** White space as signs that are seen. */
export const visible = (text) => text.replace(/[ \n\t]/g, (space) => ({ " ": "␣", "\n": "↵", "\t": "⇥" })[space]);

/**
 * Tokens as people read them: for a tokenizer that spells bytes or spaces, their text, or bytes that are no whole
 * character. It is one if its signs are in tokens but not in the texts, or if only decoded tokens are the texts.
 */
export function readable(tokens, isSpecial, texts) {
  const bare = (text) => text.normalize("NFKC").toLowerCase().replace(/\s+/g, "");
  const own = tokens.filter((_, at) => !isSpecial[at]);
  const isNew = (part) => !texts.some((text) => text.includes(part));
  const [spelling] = SPELLINGS.find(([decode, signs]) => {
    const bytes = own.flatMap(decode);
    if (bytes.some(Number.isNaN)) return false;
    const decoded = bare(new TextDecoder().decode(Uint8Array.from(bytes)));
    return (own.join("").match(signs) ?? []).some(isNew) || (own.some(isNew) && texts.every((text) => decoded.includes(bare(text))));
  }) ?? [];
  if (!spelling) return tokens;
  return tokens.map((token, at) => {
    if (isSpecial[at]) return token;
    const bytes = spelling(token);
    try {
      return visible(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)));
    } catch {
      return bytes.map((byte) => byte.toString(16).toUpperCase().padStart(2, "0")).join(" ");
    }
  });
}

/** Parts of the widgets of a single text. */
export const ofText = {
  tokens: ({ text }) => ({ texts: [["Text", text]] }),
  tensors(values) {
    return { inputs: { text: [values.text] }, parameters: this.body(values).parameters };
  },
};

/** A hue of its own for a label; labels with the same end (B-PER, I-PER) share it. */
export function hue(label) {
  let sum = 0;
  for (const letter of label.replace(/^[BIESLU]-/, "")) sum = (sum * 31 + letter.codePointAt(0)) % 997;
  return (sum * 47) % 360;
}

/** A bar of this length from 0 to 1, for those who see it. */
export const track = (share) =>
  vars(el("span.track", { "aria-hidden": "true" }, el("i")), { share: Math.min(1, Math.max(0, share)) });

/** An ordered list of names, bars and values; `share` is the bar's length from 0 to 1. With `pick` names are buttons. */
export function bars(rows, pick) {
  return el("ol.bars", {}, ...rows.map(({ name, share, value, say }) => {
    const label = pick
      ? button(name, () => pick(name), { className: "pick", "aria-label": say })
      : el("span", {}, name);
    return el("li", {}, label, track(share), el("b", {}, value));
  }));
}

export const scores = (pairs) => bars(pairs.map(([name, score]) => ({ name, share: score, value: percent(score) })));

/** A stretch of text with its label. */
export function marked(text, label, tone = label) {
  return vars(el("mark", {}, text, label ? el("small", {}, label) : null), { hue: hue(tone) });
}

export const scroll = (label, child) => el("div.scroll", { tabIndex: 0, role: "group", "aria-label": label }, child);

export function table(caption, heads, rows) {
  return scroll(caption, el("table", {},
    el("caption.unseen", {}, caption),
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))));
}

/** Makes a row of elements a list box, or tabs: one of them is chosen, by a click or by the arrow keys. */
export function listbox(host, label, items, chosen, [group, role] = ["listbox", "option"]) {
  host.setAttribute("role", group);
  host.setAttribute("aria-label", label);
  const choose = (index, focus = true) => {
    items.forEach((item, at) => {
      item.setAttribute("aria-selected", at === index);
      item.tabIndex = at === index ? 0 : -1;
    });
    if (focus) items[index].focus();
    chosen(index);
  };
  items.forEach((item, index) => {
    item.setAttribute("role", role);
    item.setAttribute("aria-selected", "false");
    item.tabIndex = index ? -1 : 0;
    item.onclick = () => choose(index);
    item.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const to = { Home: 0, End: items.length - 1, Enter: index, " ": index }[event.key] ?? index + (step ?? NaN);
      if (Number.isNaN(to)) return;
      event.preventDefault();
      if (to >= 0 && to < items.length) choose(to);
    };
  });
  return choose;
}

export const dot = (a, b) => a.reduce((sum, value, at) => sum + value * b[at], 0);
export const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);

/** The service's message about a failed request; the status is 0 without an answer, or within a stream. */
export class Failure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const KEY = "hf_transformer.key";
export const apiKey = { get: () => sessionStorage.getItem(KEY) ?? "", set: (key) => sessionStorage.setItem(KEY, key) };

/** A request to the service, by a path that begins with a slash; its response. Throws Failure. Tells the signal. */
export async function request(path, body, signal) {
  const headers = body ? { "content-type": "application/json" } : {};
  if (apiKey.get()) headers["x-api-key"] = apiKey.get();
  const began = performance.now();
  let response;
  try {
    // Relative to the page, which a proxy may serve under a path of its own.
    response = await fetch(`.${path}`, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure("The service can't be reached.");
  }
  signal?.dispatchEvent(new CustomEvent("response", { detail: { path, body, response, began } }));
  if (response.ok) return response;
  const text = await response.text();
  const error = parsed(text)?.error;
  const again = response.headers.get("retry-after");
  throw new Failure(`${error?.message ?? error ?? text}${again ? ` (try again in ${again} s)` : ""}`, response.status);
}

export async function tokenize(model, body) {
  const response = await request(`/v1/models/${model}:tokenize`, body);
  return (await response.json()).predictions;
}

/** The data of server-sent events as they come. Throws Failure for an error in the middle. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:") || line.trim() === "data: [DONE]") continue;
      const data = JSON.parse(line.slice(5));
      if (data.error) throw new Failure(data.error.message ?? data.error);
      yield data;
    }
  }
}
