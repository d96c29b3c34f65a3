// The responses of the runs as they came, and the last requests to look at again. They are gone with the page.

import { $, copy, el, facts, pretty, short } from "./lib.js";

const MOST_EXCHANGES = 20;
/** Characters of a body that are kept, to be copied. */
const MOST_KEPT = 200_000;
const MOST_SHOWN = 20_000;

const bytes = (count) => (count < 1000 ? `${count} B` : `${(count / 1000).toFixed(1)} kB`);

const code = (tag, status) => el(tag, { className: status < 400 ? null : "failed" }, `${status}`);

/** The text of a request: its prompt, its last message, or its first instance. */
export function asked({ messages, prompt, instances }) {
  const given = messages?.at(-1)?.content ?? prompt ?? instances?.[0] ?? "";
  const texts = typeof given === "object" ? Object.values(given).flat() : [given];
  return texts.find((text) => typeof text === "string" && text) ?? "";
}

export class Exchanges {
  /** `use(model, values)` puts the input of an exchange into the form. */
  constructor(use) {
    this.list = [];
    $("copy-body").onclick = () => copy($("copy-body"), this.shown.text);
    $("use").onclick = () => use(this.shown.model, this.shown.values);
  }

  /** Records the responses of a run, which `request` tells the signal of. */
  watch(signal, model, values) {
    this.clear("Waiting for the response …");
    signal.addEventListener("response", ({ detail }) => this._record({ model, values, ...detail }));
  }

  /** Shows none. */
  clear(hint) {
    this.shown = null;
    $("no-response").textContent = hint;
    this._show();
  }

  _record({ response, began, ...about }) {
    const { status, headers } = response;
    const isJson = /json/.test(headers.get("content-type"));
    const came = { at: new Date(), took: performance.now() - began, size: 0, text: "", note: "", done: false };
    const exchange = { ...about, ...came, status, headers: [...headers], isJson };
    this.list = [exchange, ...this.list].slice(0, MOST_EXCHANGES);
    this.shown = exchange;
    this._read(exchange, response.clone().body.getReader(), began);
  }

  async _read(exchange, reader, began) {
    const decoder = new TextDecoder();
    try {
      for (;;) {
        this._later();
        const { done, value } = await reader.read();
        if (done) break;
        exchange.size += value.byteLength;
        if (exchange.text.length < MOST_KEPT) exchange.text += decoder.decode(value, { stream: true }).slice(0, MOST_KEPT);
      }
    } catch {
      exchange.note = "The response was not read to its end.";
    }
    exchange.took = performance.now() - began;
    exchange.done = true;
    this._later();
  }

  /** Shows the exchanges at the next frame: a stream may have many events in one. */
  _later() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this._show();
    });
  }

  _show() {
    const { shown, list } = this;
    for (const id of ["body", "response-more", "copy-body"]) $(id).hidden = !shown;
    $("no-response").hidden = Boolean(shown);
    $("use").hidden = !shown || shown === list[0];
    $("history").hidden = !list.length;
    $("exchanges").replaceChildren(...list.map((one) => this._row(one)));
    $("response-status").replaceChildren();
    if (!shown) return;
    $("response-status").append(code("b", shown.status), ` · ${shown.took.toFixed(1)} ms · ${bytes(shown.size)}`);
    const text = shown.text.slice(0, MOST_SHOWN);
    const rest = shown.text.length - text.length;
    const cut = rest > 0 ? `… and ${rest.toLocaleString("en")}${shown.text.length < MOST_KEPT ? "" : " and more"} characters, which are not shown.` : "";
    $("body").textContent = (shown.isJson ? pretty(text) : text) || "(empty)";
    $("body").ariaBusy = `${!shown.done}`;
    $("body-note").textContent = [cut, shown.note].filter(Boolean).join(" ");
    $("headers").replaceChildren(...facts(shown.headers));
    $("sent").textContent = `POST ${shown.path}\n\n${pretty(JSON.stringify(shown.body))}`;
  }

  _row(exchange) {
    const { at, model, status, took, body } = exchange;
    const look = () => {
      this.shown = exchange;
      this._show();
      $("exchanges").children[this.list.indexOf(exchange)].firstChild.focus();
      $("response").scrollIntoView({ block: "nearest" });
    };
    return el("li", {}, el("button", { type: "button", className: "pick", "aria-pressed": `${exchange === this.shown}`, onclick: look },
      el("time", {}, at.toLocaleTimeString("en", { hour12: false })), el("b", {}, short(model, 24)),
      code("span", status), el("span", {}, `${took.toFixed(0)} ms`),
      el("span.asked", {}, short(asked(body), 90))));
  }
}
