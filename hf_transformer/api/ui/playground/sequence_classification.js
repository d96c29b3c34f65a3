import { el, percent, scores } from "./lib.js";

const pair = ({ text, text_pair }) => (text_pair ? { text, text_pair } : text);

export default {
  form(form) {
    form.text("text", "Text", { rows: 3 });
    form.text("text_pair", "Second text", { rows: 2, hint: "For a model that compares two texts." });
  },

  example: ({ instances: [given] }) => ({ text: given.text ?? given, text_pair: given.text_pair ?? "" }),

  body: (values) => ({ instances: [pair(values)], parameters: { output_format: "pipeline", top_k: null } }),

  tensors(values) {
    const { text, text_pair } = values;
    const inputs = text_pair ? { text: [text], text_pair: [text_pair] } : { text: [text] };
    return { inputs, parameters: this.body(values).parameters };
  },

  tokens: (values) => ({ texts: [[values.text_pair ? "Both texts" : "Text", pair(values)]] }),

  show(out, [labels], values, { info }) {
    const [best] = labels;
    if (info.problem_type === "regression") {
      const list = labels.map(({ label, score }) => el("p.figure", {}, `${score.toFixed(3)} `, el("small", {}, label)));
      out.append(...list);
      return `${best.label}: ${best.score.toFixed(3)}`;
    }
    out.append(scores(labels.map(({ label, score }) => [label, score])));
    return `${best.label}, ${percent(best.score)}`;
  },
};
