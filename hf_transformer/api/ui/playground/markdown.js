// Markdown of answers, as elements. The text comes from a model, so it never becomes HTML, and nothing is loaded for it.

import { button, copy, el, sync, table } from "./lib.js";

const FENCE = /^ *(`{3,}|~{3,}) *([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) +(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DEEPEST = 8; // of what is in each other; what is deeper stays text
const MOST_COLUMNS = 50; // every row has all of them
/** Parts within a block. Only these links are links. Lengths are bounded, so that marks without an end take no time. */
const INLINE = new RegExp([
  /\\(?<plain>[!-/:-@[-`{-~])/,
  /(?<!`)(?<ticks>`+)(?<code>.{0,3000}?[^`])\k<ticks>(?!`)/,
  /!?\[(?<label>(?:[^[\]\\]|\\.|\[[^[\]]*\])*)\]\(\s*(?<href>(?:https?:\/\/|mailto:)(?:[^\s<>()]|\([^\s()]*\))*)(?:\s+["'][^"']*["'])?\s*\)/i,
  /<?(?<address>https?:\/\/[^\s<>"`\]]*[\w/#&=%+-])>?/,
  /(?<two>\*\*|__|~~)(?=\S)(?<strong>.{0,3000}?\S)\k<two>(?!\*)/,
  /(?<![*\w])(?<one>[*_])(?=[^\s*])(?<em>.{0,3000}?[^\s*])\k<one>(?![*\w])/,
  /(?<br><br ?\/?>)/,
].map(({ source }) => source).join("|"), "gis");

/** Shows a text in an element. Blocks that an earlier call has made, and that have not changed, stay as they are. */
export function showMarkdown(host, text) {
  const known = host.blocks ?? [];
  host.blocks = blocksOf(text.split("\n")).map((block, at) => {
    const old = known[at];
    if (old?.source === block.source) return old;
    if (block.kind === "code" && old?.kind === "code" && old.language === block.language) {
      old.node.querySelector("code").textContent = block.lines.join("\n"); // the button stays, and what is scrolled
      return { ...block, node: old.node };
    }
    return { ...block, node: MAKE[block.kind](block, 1) };
  });
  sync(host, host.blocks.map(({ node }) => node));
}

function blocksOf(lines) {
  const found = [];
  for (let at = 0; at < lines.length;) {
    const block = blockAt(lines, at);
    if (block.kind) found.push({ ...block, source: lines.slice(at, block.end).join("\n") });
    at = block.end;
  }
  return found;
}

const BLOCKS = [FENCE, HEADING, RULE, QUOTE, ITEM];
const opensBlock = (lines, at) => BLOCKS.some((form) => form.test(lines[at])) || isTable(lines, at);

function blockAt(lines, at) {
  const line = lines[at];
  const upTo = (stops, end = at + 1) => {
    while (end < lines.length && !stops(lines[end], end)) end++;
    return { lines: lines.slice(at, end), end };
  };
  let match;
  if (!line.trim()) return { end: at + 1 };
  if ((match = FENCE.exec(line))) {
    const indent = line.search(/\S/);
    const { lines: [, ...code], end } = upTo((one) => one.trim().startsWith(match[1]) && !one.trim().replaceAll(match[1][0], ""));
    return { kind: "code", lines: code.map((one) => one.slice(Math.min(indent, one.search(/\S|$/)))), language: match[2].trim(), end: end + 1 };
  }
  if ((match = HEADING.exec(line))) return { kind: "heading", level: match[1].length, text: match[2].trimEnd().replace(/ #+$/, ""), end: at + 1 };
  if (RULE.test(line)) return { kind: "rule", end: at + 1 };
  if (QUOTE.test(line)) return { kind: "quote", ...upTo((one) => !QUOTE.test(one)) };
  if (ITEM.test(line)) return listAt(lines, at);
  if (isTable(lines, at)) return { kind: "table", ...upTo((one) => !one.includes("|")) };
  return { kind: "text", ...upTo((one, end) => !one.trim() || opensBlock(lines, end)) };
}

/** A list: the lines of each item, without their indent. */
function listAt(lines, at) {
  const items = [];
  const [, outer, first] = ITEM.exec(lines[at]);
  const sort = (mark) => mark.replace(/\d+/, "");
  let indented = 0, blank = false;
  for (; at < lines.length; at++) {
    const line = lines[at];
    const indent = line.search(/\S|$/);
    const match = ITEM.exec(line);
    if (!line.trim()) items.at(-1).push("");
    else if (match && indent <= Math.max(indented - 1, outer.length)) {
      if (indent < outer.length || sort(match[2]) !== sort(first) || RULE.test(line)) break;
      indented = indent + match[2].length + Math.min(4, match[3].length || 1);
      items.push([line.slice(indented)]);
    } else if (indent > outer.length) items.at(-1).push(line.slice(Math.min(indent, indented)));
    else if (blank || opensBlock(lines, at)) break;
    else items.at(-1).push(line);
    blank = !line.trim();
  }
  return { kind: "list", items, start: first.replace(/\D/g, ""), end: at };
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());

function isTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const rule = cells(lines[at + 1]);
  return rule.length <= MOST_COLUMNS && rule.length === cells(lines[at]).length && rule.every((cell) => /^:?-+:?$/.test(cell));
}

const MAKE = {
  code: ({ lines, language }) => codeBlock(lines.join("\n"), language),
  // The page has headings of its own, down to the second level.
  heading: ({ level, text }) => el(`h${Math.min(6, level + 2)}`, {}, ...inline(text)),
  rule: () => el("hr"),
  quote: ({ lines }, depth) => el("blockquote", {}, ...within(lines.map((line) => line.replace(QUOTE, "")), depth)),
  list({ items, start }, depth) {
    return el(start ? "ol" : "ul", { start: start || null }, ...items.map((lines) => el("li", {}, ...within(lines, depth))));
  },
  table({ lines: [head, rule, ...rows] }) {
    const sides = cells(rule);
    const row = (line) => cells(line).slice(0, sides.length).map((cell) => inline(cell.replaceAll("\\|", "|")));
    const made = table("Table", row(head), rows.map(row));
    for (const { children } of made.querySelectorAll("tr")) [...children].forEach((cell, at) => sides[at].endsWith(":") && (cell.className = "right"));
    return made;
  },
  text: ({ lines }) => el("p", {}, ...inline(lines.map((line) => line.trim().replace(/\\$/, "")).join("\n"))),
};

function within(lines, depth) {
  if (depth > DEEPEST) return [el("p", {}, lines.join("\n"))];
  return blocksOf(lines).map((block) => MAKE[block.kind](block, depth + 1));
}

/** Code with its language and a button to copy it. */
export function codeBlock(text, language = "") {
  const code = el("code", {}, text);
  const copies = button("Copy", ({ target }) => copy(target, code.textContent));
  return el("figure.code", {}, el("figcaption", {}, language || "text", copies), el("pre", { tabIndex: 0, dir: "ltr" }, code));
}

function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const nodes = [];
  let last = 0;
  for (const { index, 0: { length }, groups: { plain, code, label, href, address, two, strong, em } } of text.matchAll(INLINE)) {
    const within = (tag, part) => el(tag, {}, inline(part, depth + 1));
    const link = (to, shown) => el("a", { href: to, target: "_blank", rel: "noopener noreferrer" }, ...shown);
    nodes.push(text.slice(last, index), plain
      ?? (code ? el("code", {}, code.trim() || code)
        : href ? link(href, (/https?:|mailto:/i.test(label) ? [label] : inline(label, depth + 1))) : address ? link(address, [address])
          : strong ? within(two === "~~" ? "del" : "strong", strong) : em ? within("em", em) : el("br")));
    last = index + length;
  }
  return [...nodes, text.slice(last)];
}
