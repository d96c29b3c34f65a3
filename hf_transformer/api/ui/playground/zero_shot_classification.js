import { percent, scores } from "./lib.js";

const TEMPLATE = "This example is {}.";

export default {
  form(form) {
    form.text("text", "Text", { rows: 3 });
    form.chips("labels", "Labels", "Enter or a comma adds a label.");
    form.toggle("multi_label", "Several labels may fit");
    form.line("template", "Hypothesis", { value: TEMPLATE, hint: "{} stands for a label." });
  },

  example({ instances: [given], parameters = {} }) {
    const labels = given.candidate_labels ?? parameters.candidate_labels;
    return {
      text: given.sequence ?? given.text ?? given,
      labels: Array.isArray(labels) ? labels : labels.split(","),
      multi_label: parameters.multi_label ?? false,
      template: parameters.hypothesis_template ?? TEMPLATE,
    };
  },

  body({ text, labels, multi_label, template }) {
    const more = { ...(multi_label && { multi_label }), ...(template !== TEMPLATE && { hypothesis_template: template }) };
    return { instances: [text], parameters: { candidate_labels: labels, ...more } };
  },

  tensors(values) {
    const { candidate_labels, ...parameters } = this.body(values).parameters;
    const more = Object.keys(parameters).length ? parameters : null;
    return { inputs: { text: [values.text], candidate_labels }, parameters: more };
  },

  tokens: ({ text, labels, template }) => ({
    texts: labels.map((label) => [`With “${label}”`, { text, text_pair: template.replaceAll("{}", label) }]),
  }),

  show(out, [{ labels, scores: found }]) {
    out.append(scores(labels.map((label, at) => [label, found[at]])));
    return `${labels[0]}, ${percent(found[0])}`;
  },
};
