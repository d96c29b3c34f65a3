import { bars, el, marked, percent, slice } from "./lib.js";

export default {
  form(form) {
    form.text("question", "Question", { rows: 2 });
    form.text("context", "Context", { rows: 6 });
    form.number("top_k", "Answers", { value: 3, max: 20 });
  },

  example: ({ instances: [{ question, context }], parameters = {} }) => ({ question, context, top_k: parameters.top_k ?? 3 }),

  body: ({ question, context, top_k }) => ({ instances: [{ question, context }], parameters: { top_k } }),

  tensors: ({ question, context, top_k }) => ({
    inputs: { question: [question], context: [context] },
    parameters: { top_k },
  }),

  tokens: ({ question, context }) => ({
    texts: [["Question and context", { text: question, text_pair: context }]],
    hint: "A context that is too long is read in windows, not cut off.",
    windows: true,
  }),

  show(out, [found], { context }) {
    const answers = [found].flat().filter(({ answer }) => answer);
    if (!answers.length) return "No answer.";
    const prose = el("p.prose", { dir: "auto" });
    const choose = ({ start, end, score }) => {
      const answer = marked(slice(context, start, end), percent(score), "answer");
      prose.replaceChildren(slice(context, 0, start), answer, slice(context, end));
    };
    const names = answers.map(({ answer, start }, at) =>
      answers.some((other, place) => place < at && other.answer === answer) ? `${answer} (at ${start})` : answer);
    out.append(prose, bars(answers.map(({ score }, at) => ({
      name: names[at], share: score, value: percent(score), say: `Mark ${names[at]} in the context`,
    })), (name) => choose(answers[names.indexOf(name)])));
    choose(answers[0]);
    return `${answers[0].answer}, ${percent(answers[0].score)}`;
  },
};
