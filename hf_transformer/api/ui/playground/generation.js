// text_generation and text2text_generation: completions and chats over OpenAI's API, streamed.

import { Chat, NO_TEXT, spoken } from "./chat.js";
import { bars, el, events, facts, hint, listbox, parsed, percent, plural, request, vars, visible } from "./lib.js";

const SLIDERS = {
  temperature: ["Temperature", { value: 0.7, max: 2 }, NaN],
  top_p: ["Top p", { value: 1, min: 0.05 }, 1],
  top_k: ["Top k (0: all)", { value: 0, max: 100, step: 1 }, 0],
  min_p: ["Min p", { value: 0 }, 0],
  repetition_penalty: ["Repetition penalty", { value: 1, min: 1, max: 2 }, 1],
  presence_penalty: ["Presence penalty", { value: 0, min: -2, max: 2, step: 0.1 }, 0],
  frequency_penalty: ["Frequency penalty", { value: 0, min: -2, max: 2, step: 0.1 }, 0],
};
/** Name -> label, bounds, and the neutral value, which is not sent. */
const OF_VLLM = ["top_k", "min_p", "repetition_penalty", "ignore_eos"];
const CHAT = "Chat";
const COMPLETION = "Completion";
const AUTO = "auto";

const chats = (values) => values.mode === CHAT;

/** The messages up to the one to answer; without a new one, the last one again. */
function saidIn({ messages, message }) {
  if (message.trim() || !messages.length) return [...messages, { role: "user", content: message }];
  return messages.slice(0, messages.findLastIndex(({ role }) => role !== "assistant") + 1);
}

/** The body of the request that the form stands for. */
function bodyOf(values, { name, generation }) {
  const body = { model: name };
  if (chats(values)) {
    const system = values.system ? [{ role: "system", content: values.system }] : [];
    body.messages = [...system, ...saidIn(values)];
    if (values.tools?.trim()) {
      body.tools = parsed(values.tools) ?? values.tools; // of which the service says what is wrong
      if ((values.tool_choice ?? AUTO) !== AUTO) body.tool_choice = values.tool_choice;
    }
    if (values.schema?.trim()) body.structured_outputs = { json: values.schema };
  } else body.prompt = values.prompt;
  body.max_tokens = values.max_tokens;
  for (const [field, [, , neutral]] of Object.entries(SLIDERS)) {
    if (field in values && values[field] !== neutral) body[field] = values[field];
  }
  if (values.seed?.trim()) body.seed = Number(values.seed);
  if (values.stop) body.stop = values.stop.replaceAll("\\n", "\n");
  if (values.ignore_eos) body.ignore_eos = true;
  if (values.logprobs) {
    const likeliest = generation.interface === "logits" ? 5 : 0;
    Object.assign(body, chats(values) ? { logprobs: true, top_logprobs: likeliest } : { logprobs: likeliest });
  }
  return { ...body, stream: true };
}

function pathOf(values, { protocols }) {
  return protocols.openai.find((path) => path.endsWith("/chat/completions") === chats(values));
}

export default {
  form(form, { generation, max_length: most }, page) {
    const { host } = form;
    const [chat, completion] = [el("div"), el("div")];
    form.hidden("messages", [], (messages) => page.chat?.render(messages));
    const modes = form.segments("mode", "Kind of request", generation.chat ? [CHAT, COMPLETION] : [COMPLETION]);
    modes.hidden = !generation.chat;
    host.append(chat, completion);
    form.into(chat);
    form.line("system", "System", { hint: "Instructions for the whole chat, if any." });
    const honoured = (name) => generation.parameters.includes(name);
    const structured = honoured("structured_outputs");
    if (generation.tools || structured) form.fold("Tools and JSON");
    if (generation.tools) {
      form.text("tools", "Tools", { hint: "As in OpenAI's API: [{\"type\": \"function\", \"function\": {\"name\": …}}]" });
      if (structured) form.select("tool_choice", "Choice of a tool", [AUTO, "required", "none"]);
    }
    if (structured) form.text("schema", "JSON schema", { hint: "The form of a JSON answer." });
    form.into(completion);
    form.text("prompt", "Prompt", { rows: 4 });
    form.into(host);
    form.fold("Sampling");
    form.number("max_tokens", "New tokens at most", { value: Math.min(128, generation.max_new_tokens ?? 128, most), max: most });
    for (const [name, [label, bounds]] of Object.entries(SLIDERS)) {
      if (name === "min_p") {
        form.into(host);
        form.fold("More sampling");
      }
      if (honoured(name)) form.slider(name, label, bounds);
    }
    if (honoured("seed")) form.line("seed", "Seed", { inputMode: "numeric", pattern: "[0-9]*" });
    form.line("stop", "Stop at", { hint: "A text that ends the answer; \\n is a new line." });
    if (honoured("ignore_eos")) form.toggle("ignore_eos", "Go on after its end");
    form.into(host);
    if (honoured("logprobs")) {
      // A chat shows Markdown first; tokens are shown as they are.
      form.toggle("logprobs", "Colour tokens by probability", !generation.chat).addEventListener("input", () => page.chat?.render());
    }
    if (generation.chat) page.chat = new Chat(form, page);
    const show = () => {
      const isChat = chats(form.values);
      [chat.hidden, completion.hidden] = [!isChat, isChat];
      page.chat?.show(isChat);
    };
    modes.addEventListener("change", show);
    show();
    form.set({ message: "What is the capital of france?" });
  },

  example({ instances: [given] = [], messages }, { generation }) {
    if (messages) return { mode: CHAT, messages: messages.slice(0, -1), message: messages.at(-1).content };
    return { prompt: given.text ?? given, mode: generation.chat ? CHAT : COMPLETION };
  },

  request: (values, info) => ({ path: pathOf(values, info), body: bodyOf(values, info) }),

  openai(values, info) {
    const { stream, ...body } = bodyOf(values, info);
    const extra = Object.fromEntries(OF_VLLM.filter((name) => name in body).map((name) => [name, body[name]]));
    for (const name of OF_VLLM) delete body[name];
    const method = chats(values) ? "chat.completions.create" : "completions.create";
    const print = chats(values) ? 'choice.delta.content or ""' : "choice.text";
    return { method, known: { ...body, stream }, extra, print, stream };
  },

  tensors(values, info) {
    if (chats(values)) return null;
    const { model, prompt, max_tokens, stream, logprobs, ...body } = bodyOf(values, info);
    return { inputs: { text: [prompt] }, parameters: { max_new_tokens: max_tokens, ...body } };
  },

  tokens(values) {
    if (!chats(values)) return { texts: [["Prompt", values.prompt]] };
    const texts = saidIn(values).map(({ role, content }) => [`${role}: ${content}`, content]);
    return { texts, hint: "The chat template puts tokens of its own around it." };
  },

  run: (values, page, signal) => (chats(values) ? answer(values, page, signal) : complete(values, page, signal)),
};

async function complete(values, page, signal) {
  const view = tokensView();
  // T5 and others write a text of their own, which does not go on where the prompt ends.
  const prompt = page.info.generation.full_text ? values.prompt : "";
  page.out.replaceChildren(el("p.prose.written", { dir: "auto" }, el("span.prompt", {}, prompt), view.text));
  let text = "", outcome, numbers;
  try {
    [outcome, numbers] = await generate(values, page, signal, (choice, scores) => {
      text += choice.text;
      view.add(choice.text, scores);
    });
  } finally {
    view.end();
    page.out.append(view.likeliest, numbers ?? "");
  }
  if (!text) page.out.prepend(hint(NO_TEXT));
  return [outcome, text || NO_TEXT];
}

async function answer(values, { chat, ...page }, signal) {
  const { messages, message } = values;
  if (!message.trim() && (messages.at(-1)?.role ?? "assistant") === "assistant") return "Write a message first.";
  const history = saidIn(values);
  const made = { role: "assistant", content: "" };
  const shown = Object.assign(chat.of(made), { isWhole: false, hasForm: Boolean(values.schema?.trim()) });
  const view = tokensView();
  let outcome, numbers;
  chat.begin(made, history);
  try {
    [outcome, numbers] = await generate(values, page, signal, ({ delta }, scores) => {
      made.content += delta.content ?? "";
      view.add(delta.content, scores);
      if (scores.length) shown.tokens = view;
      const thought = delta.reasoning_content ?? delta.reasoning;
      if (thought) made.reasoning_content = (made.reasoning_content ?? "") + thought;
      for (const { index, id, function: { name, arguments: text } } of delta.tool_calls ?? []) {
        made.tool_calls ??= [];
        made.tool_calls[index] ??= { id, type: "function", function: { name, arguments: "" } };
        made.tool_calls[index].function.arguments += text ?? "";
      }
      chat.grow(made);
    });
  } finally {
    view.end();
    chat.end(made, history, numbers);
  }
  // A hidden body has no text beside the calls.
  return [outcome, shown.body.hidden ? made.tool_calls.map((call) => `Calls ${call.function.name}`).join() : spoken(shown.body)];
}

/** Streams an answer, each choice to `take` with the scores of its tokens. Returns the outcome and its figures. */
async function generate(values, page, signal, take) {
  const body = { ...bodyOf(values, page.info), stream_options: { include_usage: true } };
  const clock = { began: performance.now() };
  let usage = null, finish = "";
  const response = await request(pathOf(values, page.info), body, signal);
  page.times(response, performance.now() - clock.began, "until the response began");
  for await (const chunk of events(response)) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      if (choice.text || Object.entries(choice.delta ?? {}).some(([name, part]) => name !== "role" && part)) clock.first ??= performance.now();
      take(choice, scoresOf(choice.logprobs));
      finish = choice.finish_reason ?? finish;
    }
  }
  return [finish === "length" ? "Cut off at the limit" : "Done", figures(clock, usage, finish)];
}

/** The scores of each token, in the forms of both routes: [{token, logprob, likeliest: [[token, logprob]]}]. */
function scoresOf(logprobs) {
  if (logprobs?.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs: top }) =>
      ({ token, logprob, likeliest: top.map((one) => [one.token, one.logprob]) }));
  }
  return (logprobs?.tokens ?? []).map((token, at) =>
    ({ token, logprob: logprobs.token_logprobs[at], likeliest: Object.entries(logprobs.top_logprobs?.[at] ?? {}) }));
}

/** The text of an answer, coloured by the probabilities of its tokens if they are known. */
function tokensView() {
  const text = el("span.answer", {});
  const box = el("div.likeliest", {});
  const parts = [];
  return {
    text,
    likeliest: box,
    add(piece, scores) {
      if (!piece) return;
      if (!scores.length) return text.append(piece);
      // Several tokens may be one character, and a stop string may have cut a piece: then they are one part.
      const apart = scores.map(({ token }) => token).join("") === piece;
      const chance = scores.reduce((sum, { logprob }) => sum + logprob, 0);
      for (const { token, logprob, likeliest } of apart ? scores : [{ token: piece, logprob: chance, likeliest: [] }]) {
        const span = vars(el("span.token", {}, token), { heat: 1 - Math.exp(logprob) });
        parts.push({ span, likeliest: likeliest.length ? likeliest : [[token, logprob]] });
        text.append(span);
      }
    },
    /** Makes tokens selectable; `likeliest` shows the chosen token's alternatives. */
    end() {
      if (!parts.length) return;
      const legend = [0, 0.25, 0.5, 0.75, 1].map((share) => vars(el("span.token", {}, ` ${100 * share} % `), { heat: 1 - share }));
      const list = el("div");
      box.append(el("p.hint.legend", {}, "Probability of a token: ", ...legend), list);
      listbox(text, "Tokens of the answer", parts.map(({ span }) => span), (at) => {
        const { span, likeliest } = parts[at];
        list.replaceChildren(el("h3", {}, `Likeliest in the place of “${visible(span.textContent)}”`), bars(likeliest.map(([token, logprob]) =>
          ({ name: visible(token), share: Math.exp(logprob), value: percent(Math.exp(logprob)) }))));
      });
    },
  };
}

/** Milliseconds between the first token and the end from which a rate says something: fewer are one packet. */
const LEAST_TIMED = 250;

function figures({ began, first }, usage, finish) {
  const [ended, begun] = [performance.now(), first ?? performance.now()];
  const count = usage?.completion_tokens ?? 0;
  const took = ended - begun;
  const rate = count > 1 && took >= LEAST_TIMED && `${((count - 1) / (took / 1000)).toFixed(0)} / s after the first`;
  const rows = [
    ...(rate ? [["Tokens", rate]] : []), ["First token after", `${(begun - began).toFixed(0)} ms`],
    ["New tokens", plural(count, "token")], ["Prompt", plural(usage?.prompt_tokens ?? 0, "token")], ["Ended by", finish],
  ];
  return el("dl.figures", {}, ...facts(rows));
}
