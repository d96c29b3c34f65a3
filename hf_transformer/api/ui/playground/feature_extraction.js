import { cosine, el, hint, listbox, ofText, plural, readable, tokenize, vars } from "./lib.js";

export default {
  ...ofText,

  form(form) {
    form.text("text", "Text", { rows: 4 });
  },

  example: ({ instances: [given] }) => ({ text: given.text ?? given }),

  body: ({ text }) => ({ instances: [text] }),

  async show(out, [[vectors]], { text }, { info }) {
    const [{ tokens: raw, special_tokens_mask: isSpecial }] = await tokenize(info.name, { instances: [text] });
    const tokens = readable(raw, isSpecial, [text]);
    // A text that was cut off keeps its last token, which is a special one.
    const names = tokens.length > vectors.length ? [...tokens.slice(0, vectors.length - 1), tokens.at(-1)] : tokens;
    const cells = names.map((name) => el("span", {}, el("code", {}, name), el("small")));
    const host = el("div.heatmap", {}, ...cells);
    const note = hint();
    out.append(note, host);
    const choose = listbox(host, "Tokens: choose one to compare the others with", cells, (chosen) => {
      note.textContent = `Similarity of every token to “${names[chosen]}”. Choose another one by a click or the arrow keys.`;
      cells.forEach((cell, at) => {
        const value = cosine(vectors[chosen], vectors[at]);
        vars(cell, { heat: Math.max(0, value) });
        cell.lastChild.textContent = value.toFixed(2);
      });
    });
    const inner = names.slice(1, -1);
    choose(1 + inner.findIndex((name) => name.length === Math.max(...inner.map((one) => one.length))), false);
    return `${plural(vectors.length, "token")}, ${plural(vectors[0].length, "number")} each`;
  },
};
