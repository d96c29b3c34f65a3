// The conversation of a chat: messages with what can be done with them, and the box under them.

import { $, button, copy, el, hint, parsed, pretty, sync, vars } from "./lib.js";
import { codeBlock, showMarkdown } from "./markdown.js";

export const NO_TEXT = "The model returned no text.";
const NAMES = { user: "You", assistant: "Assistant", tool: "Tool" };

export class Chat {
  /** The form has the fields "messages" and "logprobs"; this makes "message". */
  constructor(form, page) {
    Object.assign(this, { form, page });
    this.known = new WeakMap(); // message -> what is shown of it
    this.log = el("div.chat", { role: "log", "aria-label": "Chat", "aria-live": "off" }); // the status is read
    this.fresh = button("New chat", () => {
      this.answer = null;
      page.stop();
      page.set({ messages: [] });
      this.box.focus();
    });
    this.composer = form.into(el("div", { id: "composer" }));
    this.box = form.text("message", "Message", { rows: 1 });
    this.box.previousSibling.className = "unseen";
    this.box.placeholder = matchMedia("(pointer: coarse)").matches ? "Message" : "Message (Shift+Enter for a new line)";
    sends(this.box, () => $("stop").hidden && page.run());
    $("flow").after(this.composer);
    $("status").after(this.fresh);
    const header = document.querySelector("header");
    const sizes = new ResizeObserver(() => vars(document.body, { top: `${header.offsetHeight}px`, settings: `${$("form").offsetHeight}px` }));
    sizes.observe(header);
    sizes.observe($("form"));
    page.leave = () => {
      sizes.disconnect();
      this.show(false);
      this.composer.remove();
      this.fresh.remove();
    };
  }

  /** Lays the page out for a chat or, if not, for another kind of request. */
  show(on) {
    const main = document.querySelector("main");
    this.isShown = on;
    main.classList.toggle("chatting", on);
    if (on) main.prepend($("result"));
    else $("answer").prepend($("result"));
    $(on ? "form" : "answer").after($("tokens"));
    (on ? this.composer : $("form")).append($("run").parentElement);
    this.composer.hidden = this.fresh.hidden = !on;
    $("result-title").textContent = on ? "Chat" : "Result";
    $("input-title").textContent = on ? "Settings" : "Input";
    $("flow").tabIndex = on ? 0 : -1;
    this.page.runs(on ? "Send" : "Run");
    this.page.clear();
    this.render();
  }

  /** Shows messages, of which the last one may be on its way. Throws TypeError for others. */
  render(messages = this.form.values.messages) {
    if (!messages.every((one) => NAMES[one?.role] && typeof one.content === "string")) throw new TypeError("no messages");
    if (!this.isShown) return;
    for (const message of messages) this.of(message).show();
    sync(this.log, messages.map((message) => this.of(message).element));
    if (!messages.length) this.page.clear();
    else if (!this.log.isConnected) this.page.out.replaceChildren(this.log);
  }

  begin(answer, history) {
    this.answer = answer;
    this.page.set({ messages: history, message: "" });
    this.render([...history, answer]);
    $("flow").scrollTop = $("flow").scrollHeight;
    if ([document.body, $("run")].includes(document.activeElement)) this.box.focus(); // the button goes
  }

  /** Shows what has been added to an answer, with the next frame. */
  grow(answer) {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.follow(() => this.of(answer).show());
    });
  }

  /** Changes what is shown; its end stays in sight if it is there. */
  follow(change) {
    const flow = $("flow");
    const isAtEnd = flow.scrollHeight - flow.scrollTop - flow.clientHeight < 200;
    change();
    if (isAtEnd) flow.scrollTop = flow.scrollHeight;
  }

  /** Keeps an answer, unless it is empty and has failed, without figures, or another one has begun. */
  end(answer, history, figures) {
    if (this.answer !== answer) return;
    this.answer = null;
    this.of(answer).isWhole = true;
    this.follow(() => {
      if (!figures && !answer.content && !answer.tool_calls && !answer.reasoning_content) return this.render(history);
      this.page.set({ messages: [...history, answer] });
      this.figures?.remove();
      this.figures = figures;
      if (figures) this.of(answer).element.append(figures);
    });
  }

  /** Runs again from the messages before one, and these. The text in the box stays. */
  again(before, ...more) {
    const { messages, message } = this.form.values;
    this.page.set({ messages: [...messages.slice(0, messages.indexOf(before)), ...more], message: "" });
    this.page.run();
    this.page.set({ message });
  }

  of(message) {
    if (!this.known.has(message)) this.known.set(message, this.make(message));
    return this.known.get(message);
  }

  make(message) {
    const { role, content } = message;
    const thoughts = el("p");
    const reasoning = el("details.fold", { hidden: true }, el("summary", {}, "Reasoning"), thoughts);
    const body = el("div", { className: `bubble ${role}`, dir: "auto" }, role === "assistant" ? null : inLines(content) ?? content);
    const markdown = el("div.markdown.answer", {});
    const likeliest = el("div");
    const calls = el("div");
    const note = el("span.hint", {});
    const retry = button("Retry", () => this.again(message, ...(role === "user" ? [message] : [])));
    const actions = {
      user: [button("Edit", () => this.edit(message, body)), retry],
      assistant: [button("Copy", ({ target }) => copy(target, message.content)), retry],
    };
    const element = el("article", { className: `message ${role}`, "aria-label": NAMES[role] }, reasoning, body, likeliest, calls,
      el("div.foot", {}, ...(actions[role] ?? []), note));
    const made = { element, body, isWhole: true, show: () => {} };
    if (role === "assistant") made.show = () => {
      const [thought, text] = thoughtOf(message);
      const { isWhole, hasForm, tokens } = made;
      const asTokens = tokens && this.form.values.logprobs;
      const json = isWhole && inLines(text);
      reasoning.hidden = !thought;
      thoughts.textContent = thought;
      body.hidden = !text && message.tool_calls;
      sync(likeliest, asTokens ? [tokens.likeliest] : []);
      if (asTokens) sync(body, [tokens.text]);
      else if (json) body.replaceChildren(codeBlock(json, "JSON"));
      else {
        showMarkdown(markdown, text);
        sync(body, [isWhole && !text ? hint(NO_TEXT) : markdown]);
      }
      if (isWhole && (hasForm || json)) note.textContent = isJson(text) ? "Valid JSON" : "Not valid JSON";
      if (message.tool_calls && !made.hasCalls) calls.replaceChildren(...this.calls(message, isWhole));
      made.hasCalls = isWhole;
    };
    return made;
  }

  edit(message, body) {
    const box = el("textarea", { value: message.content, rows: 2, "aria-label": "Message, edited" });
    const done = () => this.again(message, { role: "user", content: box.value });
    sends(box, done);
    body.replaceChildren(box, button("Send", done), button("Cancel", () => body.replaceChildren(message.content)));
    box.focus();
  }

  /** The calls of a message, and fields for the tools' answers, which are shown while it is the last one. */
  calls(message, isWhole) {
    const shown = message.tool_calls.map(({ function: { name, arguments: text } }) =>
      el("div", {}, el("p", {}, "Calls ", el("code", {}, name)), codeBlock((isWhole && inLines(text)) || text, "arguments")));
    const boxes = message.tool_calls.map(({ function: { name } }) =>
      el("textarea", { rows: 1, "aria-label": `Answer of ${name}`, placeholder: `Answer of ${name}` }));
    const send = () => this.again(message, message, ...message.tool_calls.map(({ id }, at) => ({ role: "tool", tool_call_id: id, content: boxes[at].value })));
    for (const box of boxes) sends(box, send);
    return [...shown, isWhole ? el("div.answers", {}, ...boxes, button("Send answer", send)) : ""];
  }
}

/** Enter sends; Shift+Enter breaks the line, and so does an Enter that ends the composition of a letter. */
function sends(box, send) {
  box.enterKeyHint = "send";
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    send();
  });
}

/** The reasoning, from its own field or from the start of the text, and the rest of the text. */
function thoughtOf({ content, reasoning_content: thought = "" }) {
  const match = /^\s*<think>(.*?)(?:<\/think>\s*(.*))?$/s.exec(content);
  return match ? [thought + match[1].trim(), match[2] ?? ""] : [thought, content];
}

/** The text of an answer as it is shown, to be read aloud: without marks, and a line for each block. */
export function spoken(shown) {
  const copied = shown.cloneNode(true);
  for (const caption of copied.querySelectorAll("figcaption")) caption.remove();
  for (const block of copied.querySelectorAll("p, pre, th, td, h3, h4, h5, h6, br")) block.append("\n");
  return copied.textContent.trim();
}

const isJson = (text) => parsed(text) !== undefined;
/** An object or a list in JSON with line breaks; null for other texts. */
const inLines = (text) => (/^\s*[[{]/.test(text) && isJson(text) ? pretty(text) : null);
