// text_generation and text2text_generation: completions and chats over OpenAI's API, streamed.

import { bars, el, events, listbox, percent, plural, request, vars } from "./lib.js";

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

const chats = (values) => values.mode === CHAT;

/** The messages up to the one to answer; without a new one, the last one again. */
function saidIn({ messages, message }) {
  if (message || !messages.length) return [...messages, { role: "user", content: message }];
  return messages.slice(0, messages.findLastIndex(({ role }) => role === "user") + 1);
}

/** The body of the request that the form stands for. */
function bodyOf(values, { name, generation }) {
  const body = { model: name };
  if (chats(values)) {
    const system = values.system ? [{ role: "system", content: values.system }] : [];
    body.messages = [...system, ...saidIn(values)];
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
    form.hidden("messages", []);
    const modes = form.segments("mode", "Kind of request", generation.chat ? [CHAT, COMPLETION] : [COMPLETION]);
    modes.hidden = !generation.chat;
    host.append(chat, completion);
    form.into(chat);
    form.text("message", "Message", { rows: 3 });
    form.line("system", "System", { hint: "Instructions for the whole chat, if any." });
    if (generation.parameters.includes("structured_outputs")) {
      form.text("schema", "JSON schema", { hint: "The form of a JSON answer." });
    }
    const fresh = () => {
      form.set({ messages: [] });
      page.out.replaceChildren();
      page.say("");
    };
    chat.append(el("button", { type: "button", className: "quiet", onclick: fresh }, "New chat"));
    form.into(completion);
    form.text("prompt", "Prompt", { rows: 4 });
    form.into(host);
    form.fold("Sampling", true);
    form.number("max_tokens", "New tokens at most", { value: Math.min(128, generation.max_new_tokens ?? 128, most), max: most });
    const honoured = (name) => generation.parameters.includes(name);
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
    if (honoured("logprobs")) form.toggle("logprobs", "Colour tokens by probability", true);
    const show = () => {
      const isChat = chats(form.values);
      [chat.hidden, completion.hidden] = [!isChat, isChat];
      page.runs(isChat ? "Send" : "Run");
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
    return { texts: saidIn(values).map(({ role, content }) => [`${role}: ${content}`, content]), hint: "The chat template puts tokens of its own around it." };
  },

  async run(values, page, signal) {
    const isChat = chats(values);
    const body = { ...bodyOf(values, page.info), stream_options: { include_usage: true } };
    const history = isChat ? saidIn(values) : [];
    // T5 and others write a text of their own, which does not go on where the prompt ends.
    const goesOn = !isChat && page.info.task === "text_generation";
    const shown = answerOf(page.out, history, goesOn ? values.prompt : "");
    const clock = { began: performance.now() };
    let text = "", usage = null, finish = "";
    const keep = () => {
      if (isChat && text) page.set({ messages: [...history, { role: "assistant", content: text }], message: "" });
    };
    try {
      const response = await request(pathOf(values, page.info), body, signal);
      page.times(response, performance.now() - clock.began, "first token");
      for await (const chunk of events(response)) {
        usage = chunk.usage ?? usage;
        for (const choice of chunk.choices) {
          const piece = isChat ? choice.delta.content ?? "" : choice.text;
          if (piece && !clock.first) clock.first = performance.now();
          text += piece;
          shown.add(piece, scoresOf(choice.logprobs));
          finish = choice.finish_reason ?? finish;
        }
      }
    } catch (failure) {
      if (failure.name === "AbortError") keep();
      shown.end();
      throw failure;
    }
    keep();
    shown.end(figures(clock, usage, finish));
    return [finish === "length" ? "Cut off at the limit" : "Done", text];
  },
};

/** What is told of each token, in the forms of both routes: [{token, logprob, likeliest: [[token, logprob]]}]. */
function scoresOf(logprobs) {
  if (logprobs?.content) {
    return logprobs.content.map(({ token, logprob, top_logprobs: top }) =>
      ({ token, logprob, likeliest: top.map((one) => [one.token, one.logprob]) }));
  }
  return (logprobs?.tokens ?? []).map((token, at) =>
    ({ token, logprob: logprobs.token_logprobs[at], likeliest: Object.entries(logprobs.top_logprobs?.[at] ?? {}) }));
}

/** The place of an answer. `add` appends a piece, coloured by the scores of its tokens if there are some. */
function answerOf(out, history, prompt) {
  const said = el("span", { className: "answer" });
  const bubbles = history.map(({ role, content }) => el("div", { className: `bubble ${role}`, dir: "auto" }, content));
  out.replaceChildren(history.length
    ? el("div", { className: "chat", role: "log", "aria-label": "Chat" }, ...bubbles, el("div", { className: "bubble assistant", dir: "auto" }, said))
    : el("p", { className: "prose written", dir: "auto" }, el("span", { className: "prompt" }, prompt), said));
  const parts = [];
  return {
    add(piece, scores) {
      if (!piece) return;
      if (!scores.length) return said.append(piece);
      // Several tokens may be one character, and a stop string may have cut a piece: then they are one part.
      const apart = scores.map(({ token }) => token).join("") === piece;
      const chance = scores.reduce((sum, { logprob }) => sum + logprob, 0);
      for (const { token, logprob, likeliest } of apart ? scores : [{ token: piece, logprob: chance, likeliest: [] }]) {
        const span = vars(el("span", { className: "token" }, token), { heat: 1 - Math.exp(logprob) });
        parts.push({ span, likeliest: likeliest.length ? likeliest : [[token, logprob]] });
        said.append(span);
      }
    },
    end(details) {
      const more = el("div", { className: "likeliest" });
      if (parts.length) {
        out.append(more);
        listbox(said, "Tokens of the answer", parts.map(({ span }) => span), (at) => {
          const { span, likeliest } = parts[at];
          more.replaceChildren(el("h3", {}, `Likeliest in the place of “${span.textContent}”`), bars(likeliest.map(([token, logprob]) =>
            ({ name: JSON.stringify(token).slice(1, -1), share: Math.exp(logprob), value: percent(Math.exp(logprob)) }))));
        });
      }
      if (details) out.append(details);
      else if (!said.textContent && history.length) said.parentElement.remove();
    },
  };
}

function figures({ began, first }, usage, finish) {
  const [ended, begun] = [performance.now(), first ?? performance.now()];
  const count = usage?.completion_tokens ?? 0;
  const rate = count > 1 ? `${((count - 1) / Math.max(1e-3, (ended - begun) / 1000)).toFixed(0)} / s` : "–";
  const rows = [
    ["Tokens per second", rate], ["First token after", `${(begun - began).toFixed(0)} ms`],
    ["New tokens", plural(count, "token")], ["Prompt", plural(usage?.prompt_tokens ?? 0, "token")], ["Ended by", finish],
  ];
  return el("dl", { className: "figures" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
