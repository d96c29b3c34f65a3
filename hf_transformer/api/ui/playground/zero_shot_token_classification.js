import ner from "./token_classification.js";

export default {
  form(form) {
    form.text("text", "Text", { rows: 4 });
    form.chips("labels", "Labels", "Enter or a comma adds a label.");
    form.toggle("nested", "Entities may be inside others");
    form.toggle("multi_label", "Several labels may fit");
  },

  example({ instances: [given], parameters = {} }) {
    const labels = given.labels ?? parameters.labels;
    return {
      text: given.text ?? given,
      labels: Array.isArray(labels) ? labels : labels.split(","),
      nested: parameters.flat_ner === false,
      multi_label: parameters.multi_label ?? false,
    };
  },

  body({ text, labels, nested, multi_label }) {
    const more = { ...(nested && { flat_ner: false }), ...(multi_label && { multi_label }) };
    return { instances: [text], parameters: { labels, ...more } };
  },

  tensors(values) {
    const { labels, ...parameters } = this.body(values).parameters;
    const more = Object.keys(parameters).length ? parameters : null;
    return { inputs: { text: [values.text], labels }, parameters: more };
  },

  tokens: ({ text }) => ({ texts: [["Text", { text }]] }),

  show: (out, [entities], { text }) =>
    ner.show(out, [entities.map(({ label, ...more }) => ({ entity: label, ...more }))], { text }),
};
