// The models of a service as cards, to choose one from. A field finds a model among many.

import { drawn, el, hint, linkTo, plural, words } from "./lib.js";

const FEW = 6;
let shown = "";

/** Draws the cards if something has changed. `models` are those of /info, with `of` for adapters. */
export function overview(host, models) {
  const known = JSON.stringify(models);
  if (known === shown && host.firstChild) return;
  shown = known;
  const wanted = host.querySelector("input")?.value ?? "";
  const focused = host.contains(document.activeElement) ? document.activeElement.getAttribute("href") ?? "input" : "";
  const found = el("p.hint", { role: "status" });
  const owners = models.filter(({ of }) => !of);
  const cards = owners.map((model) => card(model, models.filter(({ of }) => of === model.name)));
  const search = el("input", { type: "search", id: "filter", placeholder: "Name or task", value: wanted, autocomplete: "off" });
  const filter = () => {
    const parts = search.value.toLowerCase().split(/\s+/);
    for (const { item, text } of cards) item.hidden = !parts.every((part) => text.includes(part));
    found.textContent = search.value ? `${cards.filter(({ item }) => !item.hidden).length} of ${plural(cards.length, "model")}` : "";
  };
  search.oninput = filter;
  search.onkeydown = ({ key }) => {
    if (key === "Enter") cards.find(({ item }) => !item.hidden)?.item.querySelector("a").click();
  };
  const row = el("div.find", { hidden: cards.length <= FEW }, el("label", { htmlFor: "filter" }, "Find a model"), search, found);
  host.replaceChildren(row, el("ul.models", {}, ...cards.map(({ item }) => item)));
  filter();
  if (focused) (focused === "input" ? search : host.querySelector(`a[href="${CSS.escape(focused)}"]`))?.focus();
}

function card({ name, task, purpose, ready, reason, aliases = [] }, adapters) {
  const link = (model) => el("a", { href: linkTo(model) }, model);
  const picture = drawn("svg", { class: "picture", viewBox: "0 0 120 56", "aria-hidden": "true" },
    drawn("use", task ? { href: `playground/tasks.svg#${task}` } : {}));
  const item = el("li.card", {}, picture,
    el("h2", {}, link(name)),
    el("p", { className: `state ${ready ? "" : "waits"}` }, task ? words(task) : "", el("span", {}, ready ? "ready" : "not ready")),
    hint((!ready && reason) || (purpose ?? "")),
    adapters.length ? el("ul.adapters", { "aria-label": `Adapters of ${name}` }, ...adapters.map((one) => el("li", {}, link(one.name)))) : null);
  const text = [name, task && words(task), task, ...aliases, ...adapters.map((one) => one.name)].join(" ").toLowerCase();
  return { item, text };
}
