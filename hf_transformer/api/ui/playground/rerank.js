import { el, fixed, plural, short, track } from "./lib.js";

const usable = ({ documents }) => documents.filter((one) => one.trim());

export default {
  form(form) {
    form.text("query", "Query", { rows: 2 });
    form.list("documents", "Documents", "Document");
  },

  example: ({ instances: [given] }) => ({ query: given.query, documents: given.texts ?? given.documents }),

  body: (values) => ({ instances: [{ query: values.query, texts: usable(values) }] }),

  openai(values, { name, protocols }) {
    const body = { model: name, query: values.query, documents: usable(values) };
    const path = protocols.openai[0].replace(/^.*\/v1/, "");
    return { method: "post", known: { path, body, cast_to: Symbol("object") }, print: "answer" };
  },

  tensors: (values) => ({ inputs: { query: [values.query], texts: [usable(values)] } }),

  tokens: (values) => ({ texts: usable(values).map((text) => [text, { text: values.query, text_pair: text }]) }),

  show(out, [ranked], values) {
    const texts = usable(values);
    // Sigmoids are from 0 to 1; raw logits are not, and are shown against the largest.
    const most = Math.max(1, ...ranked.map(({ score }) => Math.abs(score)));
    out.append(el("ol.ranking", {}, ...ranked.map(({ index, score }, place) => {
      const moved = index - place;
      const note = moved ? `${moved > 0 ? "↑" : "↓"} was ${index + 1}` : "";
      return el("li", {}, el("p", { dir: "auto" }, texts[index]), track(score / most), el("b", {}, fixed(score, 3)), el("small", {}, note));
    })));
    return `Best of ${plural(ranked.length, "document")}: ${short(texts[ranked[0].index])}`;
  },
};
