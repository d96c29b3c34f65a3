import { bars, button, el, listed, ofText, percent } from "./lib.js";

export default {
  ...ofText,

  form(form, { mask_token: mask }, page) {
    const text = form.text("text", "Text", { rows: 3, hint: `${mask} stands where a word is missing.` });
    const insert = () => {
      text.setRangeText(mask, text.selectionStart, text.selectionEnd, "end");
      text.focus();
      page.changed();
    };
    form.host.append(button(`Insert ${mask}`, insert));
    form.number("top_k", "Candidates", { value: 5, max: 50 });
    form.line("targets", "Only these words", { hint: "Separated by commas; empty for all words." });
  },

  example({ instances: [given], parameters = {} }) {
    const targets = parameters.targets ? [parameters.targets].flat().join(", ") : "";
    return { text: given.text ?? given, targets };
  },

  body({ text, top_k, targets }) {
    const words = listed(targets);
    return { instances: [text], parameters: { output_format: "pipeline", top_k, ...(words.length && { targets: words }) } };
  },

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
