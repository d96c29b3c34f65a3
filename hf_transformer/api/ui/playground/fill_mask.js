import { bars, el, percent } from "./lib.js";

export default {
  form(form, { mask_token: mask }, page) {
    const text = form.text("text", "Text", { rows: 3, hint: `${mask} stands where a word is missing.` });
    const insert = () => {
      text.setRangeText(mask, text.selectionStart, text.selectionEnd, "end");
      text.focus();
      page.changed();
    };
    form.host.append(el("button", { type: "button", className: "quiet", onclick: insert }, `Insert ${mask}`));
    form.number("top_k", "Candidates", { value: 5, max: 50 });
    form.line("targets", "Only these words", { hint: "Separated by commas; empty for all words." });
  },

  example({ instances: [given], parameters = {} }) {
    const targets = parameters.targets ? [parameters.targets].flat().join(", ") : "";
    return { text: given.text ?? given, targets };
  },

  body({ text, top_k, targets }) {
    const words = targets.split(",").map((word) => word.trim()).filter(Boolean);
    const only = words.length ? { targets: words } : {};
    return { instances: [text], parameters: { output_format: "pipeline", top_k, ...only } };
  },

  tensors(values) {
    return { inputs: { text: [values.text] }, parameters: this.body(values).parameters };
  },

  tokens: ({ text }) => ({ texts: [["Text", text]] }),

  show(out, [found], { text }, page) {
    const masks = Array.isArray(found[0]) ? found : [found];
    const { mask_token: mask } = page.info;
    masks.forEach((candidates, number) => {
      if (masks.length > 1) out.append(el("h3", {}, `Mask ${number + 1}`));
      const put = (word) => {
        const parts = text.split(mask);
        const before = parts.slice(0, number + 1).join(mask);
        const after = parts.slice(number + 1).join(mask);
        page.set({ text: `${before}${word}${after}` });
        if (masks.length > 1) page.run();
        else page.say(`“${word}” is in the text now.`);
      };
      out.append(bars(candidates.map(({ token_str: token, score }) => {
        const word = token.trim() || token;
        return { name: word, share: score, value: percent(score), say: `Put ${word} into the text` };
      }), put));
    });
    const [best] = masks[0];
    return `${best.token_str.trim()}, ${percent(best.score)}`;
  },
};
