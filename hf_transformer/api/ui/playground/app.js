// The page around a widget: finds the model, runs what the widget asks for, and shows tokens, times and the request.

import { Exchanges, asked } from "./exchange.js";
import { Form } from "./form.js";
import {
  $, Failure, apiKey, copy, el, facts, hint, linkTo, listbox, plural, readable, request, short, slice, tokenize, track, vars, words,
} from "./lib.js";
import { snippets } from "./snippets.js";

const TOKENS_SHOWN = 400;
const STAGES = ["parse", "tokenize", "queue", "predict", "decode"];

let info, widget, form, page, running, tokenTimer, startTimer, offerTimer, tokenTurn = 0, startTurn = 0;
/** Name -> the form of a model shown before, to show its values again. */
const forms = new Map();
const emptyOut = $("out").cloneNode(true);
const empty = (...ids) => ids.forEach((id) => $(id).replaceChildren());
const tell = (...about) => $("about").replaceChildren(...about.filter(Boolean).map((fact) => el("span", {}, fact)));
const ask = async (path) => (await request(path)).json();

/** Shows the model that the address names, or the first one. Tries again until it is ready. */
async function start() {
  const turn = ++startTurn;
  clearTimeout(startTimer);
  let chosen, loaded, module;
  try {
    const { models } = await ask("/v1/models");
    chosen = models.length === 1 ? { name: models[0] } : await offer();
    if (chosen.all) return turn === startTurn && showOverview(chosen);
    if (chosen.reason) throw new Failure(chosen.reason);
    loaded = await ask(`/v1/models/${chosen.of ?? chosen.name}/info`);
    module = await import(`./${loaded.generation ? "generation" : loaded.task}.js`);
  } catch (failure) {
    if (turn === startTurn) showProblem(failure, chosen);
    return;
  }
  if (turn !== startTurn) return; // another model was chosen meanwhile
  if (chosen.of) {
    loaded.name = chosen.name;
    loaded.protocols.v1 = `/v1/models/${chosen.name}:predict`;
  }
  show(loaded, module.default);
}

function show(model, itsWidget) {
  leave();
  [info, widget] = [model, itsWidget];
  document.title = `${info.name} · ${words(info.task)}`;
  $("title").textContent = info.name;
  tell(words(info.task), info.version && `version ${info.version}`, `up to ${plural(info.max_length, "token")}`);
  form = new Form($("fields"), changed);
  page = pageOf(info, form);
  page.runs("Run");
  widget.form(form, info, page);
  fillExamples();
  form.set(forms.get(info.name)?.values);
  forms.set(info.name, form);
  restore();
  showLinks(info.links, info.server.version);
  $("note").textContent = info.note ?? "";
  showParts({ main: true });
  changed();
}

function showParts({ main = false, overview = false }) {
  document.querySelector("main").hidden = $("link").hidden = !main;
  $("overview").hidden = !overview;
}

function showLinks(links, version) {
  $("version").textContent = `hf_transformer ${version}`;
  for (const [name, address] of Object.entries(links)) {
    $(name).hidden = false;
    $(name).href = address.replace(/^\//, "./"); // relative, as in request()
  }
}

/** Ends the run of the model before. Its later output is not shown. */
function leave() {
  running?.abort();
  page?.leave?.();
  info = running = null;
  clearTimeout(tokenTimer);
  tokenTurn++;
  empty("note", "fields", "status", "cut", "error", "times", "token-list");
  $("out").replaceWith(emptyOut.cloneNode(true));
  exchanges.clear("A run shows here what the service answers, as it came.");
  $("stop").hidden = true;
}

function showProblem(failure, chosen) {
  leave();
  showParts({});
  if (chosen?.reason) document.title = $("title").textContent = chosen.name;
  // The same text again would be read aloud again.
  if ($("about").textContent !== failure.message) $("about").textContent = failure.message;
  if (failure.status === 401) askForKey();
  else startTimer = setTimeout(start, 2000);
}

// Several models: the query of the address names the one that is shown. Without it all of them are.

async function showOverview({ all, problem }) {
  const { overview } = await import("./overview.js");
  leave();
  showParts({ overview: true });
  $("chooser").hidden = true;
  document.title = $("title").textContent = "Playground";
  const models = all.filter(({ of }) => !of);
  const waiting = models.filter(({ ready }) => !ready).length;
  tell(problem && el("b.failed", {}, problem), plural(models.length, "model"), waiting && `${waiting} not ready`);
  overview($("overview"), all);
}

function go(address) {
  history.pushState(null, "", address);
  start();
}

/** Looks again at which models are ready. */
async function offerAgain() {
  const turn = startTurn;
  try {
    const offered = await offer();
    if (offered.all && turn === startTurn) await showOverview(offered);
  } catch (failure) {
    if (turn === startTurn && !$("overview").hidden) $("about").textContent = failure.message;
  }
}

/**
 * Fills the chooser. Returns the chosen model or adapter, with a reason if it can't be shown, or all of them if none
 * is chosen, with the problem if there is none of that name. The input of a link without a model is for the first one.
 */
async function offer() {
  clearTimeout(offerTimer);
  offerTimer = setTimeout(offerAgain, 5000);
  const { models, links, version } = await ask("/info");
  showLinks(links, version);
  const all = models.flatMap((model) => [model, ...(model.adapters ?? []).map((name) => ({ ...model, name, of: model.name }))]);
  const labels = all.map(({ name, task, of, ready }) =>
    [name, task && words(task), of && `adapter of ${of}`, ready ? "" : "not ready"].filter(Boolean).join(" · "));
  const wanted = all.length === 1 ? all[0].name : new URLSearchParams(location.search).get("model");
  if (wanted === null && all.length && location.hash.length < 2) return { all };
  if (all.every(({ ready }) => ready)) clearTimeout(offerTimer);
  if (labels.join() !== Array.from($("model").options, ({ text }) => text).join()) {
    $("model").replaceChildren(...all.map(({ name }, at) => el("option", { value: name }, labels[at])));
  }
  $("chooser").hidden = all.length < 2;
  const chosen = wanted === null ? all[0] : all.find(({ name, aliases }) => [name, ...(aliases ?? [])].includes(wanted));
  $("model").value = chosen?.name;
  if (!chosen && all.length) return { all, problem: `There is no model ${wanted}.` };
  return chosen ?? { name: "Playground", reason: "There is no model yet." };
}

/** The page's interface for widgets. */
const pageOf = (info, form) => ({
  info,
  out: $("out"),
  run,
  changed,
  set(values) {
    form.set(values);
    changed();
  },
  /** Shows a status; `spoken` is for screen readers alone. */
  say: (text, spoken = "") => $("status").replaceChildren(text, el("span.unseen", {}, spoken)),
  times: showTimes,
  stop: () => running?.abort(),
  /** Sets the button's label, also in the hint to press it. */
  runs: (label) => {
    $("run").textContent = label;
    for (const hint of document.querySelectorAll("#out > .empty")) hint.textContent = `Press ${label} to see what the model says.`;
  },
  clear() {
    empty("status", "cut", "error", "times");
    this.out.replaceChildren(...emptyOut.cloneNode(true).childNodes);
    this.runs($("run").textContent);
  },
});

function fillExamples() {
  const known = new Map();
  for (const { summary, value } of info.examples) {
    let values;
    try {
      values = widget.example(value, info);
    } catch { /* the model's own example has another form */ }
    const name = JSON.stringify(values);
    if (values && !known.has(name)) known.set(name, { summary, values, text: asked(value) });
  }
  const distinct = [...known.values()];
  const defaults = form.values;
  const use = (index) => form.set({ ...defaults, ...distinct[index].values });
  if (distinct.length) use(0);
  const labels = distinct.map(({ text }) => short(text, 28));
  $("examples").replaceChildren(...distinct.map(({ summary }, at) =>
    el("option", { value: at }, labels.indexOf(labels[at]) < at ? `${labels[at]} (${summary})` : labels[at])));
  $("examples").hidden = distinct.length < 2;
  $("examples").onchange = () => {
    use(Number($("examples").value));
    changed();
  };
}

// The link: all values in the fragment, which browsers don't send.

function fragment() {
  const bytes = new TextEncoder().encode(JSON.stringify(form.values));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replace(/\+/g, "-").replace(/\//g, "_");
}

function restore() {
  if (location.hash.length < 2) return;
  try {
    const letters = atob(location.hash.slice(1).replace(/-/g, "+").replace(/_/g, "/"));
    const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
    form.set(JSON.parse(new TextDecoder().decode(bytes)));
  } catch {
    page.say("The link is damaged: it holds no input.");
  }
}

// A run

async function run() {
  running?.abort();
  const controller = (running = new AbortController());
  const values = form.values;
  empty("cut", "error", "times");
  $("stop").hidden = false;
  $("out").ariaBusy = "true";
  exchanges.watch(controller.signal, info.name, values);
  page.say("Running …");
  reveal($("result").getBoundingClientRect().top > innerHeight - 150);
  try {
    const outcome = await (widget.run ?? predict)(values, page, controller.signal);
    if (controller === running) {
      page.say(...[outcome].flat());
      showCut(values, controller);
    }
  } catch (failure) {
    if (controller !== running) return;
    if (failure.name === "AbortError") page.say("Stopped.");
    else {
      page.say("");
      showError(failure);
    }
  }
  if (controller !== running) return;
  $("out").ariaBusy = "false";
  $("stop").hidden = true;
  const { top, bottom } = $("result").getBoundingClientRect();
  reveal(top > 0 && bottom > innerHeight && !matchMedia("(min-width: 56rem)").matches); // there it is beside the input
  changed();
}

/** Scrolls to the result. A chat scrolls by itself. */
function reveal(isHidden) {
  if (isHidden && !page.chat?.isShown) $("result").scrollIntoView();
}

/** Shows beside the result which texts were cut off. */
async function showCut(values, controller) {
  const { texts, parameters, windows } = widget.tokens(values, info);
  if (isWindowed(windows)) return;
  const whole = texts.filter((one) => !isEmpty(one));
  if (!whole.length) return;
  let tokenized;
  try {
    tokenized = await tokenize(info.name, { instances: whole.map(([, instance]) => instance), ...(parameters && { parameters }) });
  } catch {
    return; // the tokens say why
  }
  const cut = tokenized.filter(({ truncated }) => truncated);
  if (controller !== running || !cut.length) return;
  const [{ truncated, kept }] = cut;
  const rest = `${plural(truncated, "token")} cut off: the result is for the first ${kept} alone.`;
  $("cut").textContent = whole.length === 1 ? rest : `${cut.length} of ${plural(whole.length, "text")} cut off: only the first tokens count.`;
}

async function predict(values, page, signal) {
  const began = performance.now();
  const { texts } = widget.tokens(values, info);
  page.out.replaceChildren();
  if (texts.length && texts.every(isEmpty)) return "The text is empty.";
  const response = await request(info.protocols.v1, widget.body(values, info), signal);
  const { predictions } = await response.json();
  signal.throwIfAborted();
  page.times(response, performance.now() - began);
  return widget.show(page.out, predictions, values, page);
}

function showError(failure) {
  const status = failure.status ? el("b", {}, `${failure.status} `) : null;
  $("error").replaceChildren(el("p", {}, status, failure.message));
  if (failure.status === 401) askForKey();
  if (!(failure instanceof Failure)) throw failure;
}

/** The service's stages and what is left of the time that the page has seen, in milliseconds. */
function showTimes(response, total, label = "total") {
  const timings = (response.headers.get("server-timing") ?? "").matchAll(/(\w+);dur=([\d.]+)/g);
  const stages = [...timings].map(([, name, duration]) => [name, Number(duration)]).filter(([name]) => STAGES.includes(name));
  const rest = total - stages.reduce((sum, [, duration]) => sum + duration, 0);
  const parts = [...stages, ["network", Math.max(0, rest)]];
  $("times").replaceChildren(
    el("div.stack", { "aria-hidden": "true" },
      ...parts.map(([name, duration]) => vars(el("i", { className: name }), { share: duration }))),
    el("dl", {}, ...facts([
      ...parts.map(([name, duration]) => [name, `${duration.toFixed(duration < 10 ? 2 : 0)} ms`, name]),
      [label, `${total.toFixed(1)} ms`],
    ])));
}

// Beside the input: its tokens and the request.

function changed() {
  if (!info) return;
  showRequest();
  clearTimeout(tokenTimer);
  tokenTimer = setTimeout(showTokens, 300);
}

/** Whether long texts are read in windows, so that nothing is cut off. */
const isWindowed = (windows) => windows || info.on_overflow === "window";
const isEmpty = ([, instance]) => (instance.text ?? instance) === "";

async function showTokens() {
  const turn = ++tokenTurn;
  const wanted = widget.tokens(form.values, info);
  const texts = wanted.texts.filter((one) => !isEmpty(one));
  let tokenized = [];
  let problem = texts.length ? "" : "No text yet.";
  if (texts.length) {
    const body = { instances: texts.map(([, instance]) => instance) };
    if (wanted.parameters) body.parameters = wanted.parameters;
    try {
      tokenized = await tokenize(info.name, body);
    } catch (failure) {
      problem = failure.message;
    }
  }
  if (turn !== tokenTurn) return; // something was typed meanwhile
  const blocks = tokenized.map((tokens, at) => tokenBlock(texts[at][0], texts[at][1], tokens, at === 0, isWindowed(wanted.windows)));
  const hints = [problem, wanted.hint].filter(Boolean).map((text) => hint(text));
  $("token-list").replaceChildren(...blocks, ...hints);
}

function tokenBlock(name, instance, tokenized, open, windows) {
  const texts = [instance.text ?? instance, instance.text_pair ?? ""];
  const cut = (at) => {
    const span = tokenized.truncated_text?.[tokenized.sequence_ids?.[at] ?? 0];
    return span && !windows && !tokenized.special_tokens_mask[at] && tokenized.offsets[at][0] >= span[0];
  };
  const shown = readable(tokenized.tokens, tokenized.special_tokens_mask, texts);
  const chips = tokenized.tokens.slice(0, TOKENS_SHOWN).map((token, at) => {
    const special = tokenized.special_tokens_mask[at];
    const place = tokenized.offsets && !special ? ` · ${tokenized.offsets[at].join("–")}` : "";
    const kind = special ? "special" : cut(at) ? "cut" : "";
    return el("li", { className: kind, title: special ? `${token}: a special token` : token }, el("code", {}, shown[at]), el("small", {}, `${tokenized.ids[at]}${place}`));
  });
  const most = `${tokenized.count.toLocaleString("en")} of ${plural(tokenized.max_length, "token")}`;
  const more = tokenized.count - TOKENS_SHOWN;
  const lost = (tokenized.truncated_text ?? []).map((span, at) => span && slice(texts[at], ...span));
  return el("details.fold", { open },
    el("summary", {}, el("span", {}, short(name)), el("span.count", {}, most)), track(tokenized.kept / tokenized.max_length),
    tokenized.truncated && !windows
      ? el("p.warning", {}, `${plural(tokenized.truncated, "token")} cut off: `, el("q", {}, short(lost.find(Boolean) ?? "", 200)))
      : null,
    el("ol.tokens", { tabIndex: 0, "aria-label": `Tokens of ${short(name)}` }, ...chips), more > 0 ? hint(`… and ${more} more`) : null);
}

let tab = 0;

function showRequest() {
  const programs = snippets(widget, form.values, info);
  tab = Math.min(tab, programs.length - 1);
  const tabs = programs.map(([name], at) => el("button", { type: "button", id: `tab-${at}`, "aria-controls": "code" }, name));
  $("tabs").replaceChildren(...tabs);
  const choose = listbox($("tabs"), "Program", tabs, (at) => {
    tab = at;
    $("code").setAttribute("aria-labelledby", `tab-${at}`);
    $("code").replaceChildren(el("code", {}, programs[at][1]));
  }, ["tablist", "tab"]);
  choose(tab, false);
}

const exchanges = new Exchanges((model, values) => {
  if (model === info.name) page.set(values);
  else {
    forms.set(model, { values });
    go(linkTo(model));
  }
});

// The key

function askForKey() {
  $("access").open = true;
  $("key").focus();
}

$("key").value = apiKey.get();
$("keyform").onsubmit = (event) => {
  event.preventDefault();
  apiKey.set($("key").value.trim());
  $("access").open = false;
  $("error").replaceChildren();
  if (info) changed();
  else start();
};
$("form").onsubmit = (event) => {
  event.preventDefault();
  run();
};
$("form").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  }
};
$("stop").onclick = () => {
  running?.abort();
  $("run").focus();
};
$("all").href = "?";
$("model").onchange = () => go(linkTo($("model").value));
document.onclick = (event) => {
  const link = event.target.closest("a[href^='?']");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
  scrollTo(0, 0);
  $("title").focus();
};
window.onpopstate = start;
$("copy").onclick = () => copy($("copy"), $("code").textContent);
$("link").onclick = () => {
  history.replaceState(null, "", `${$("chooser").hidden ? "" : linkTo(info.name)}#${fragment()}`);
  copy($("link"), location.href);
};
start();
