import { el, marked, ofText, percent, plural, slice, table } from "./lib.js";

const STRATEGIES = ["simple", "first", "average", "max", "none"];

export default {
  ...ofText,

  form(form, info) {
    form.text("text", "Text", { rows: 4 });
    const own = info.aggregation_strategy === "none" ? "simple" : info.aggregation_strategy;
    form.select("strategy", "Aggregation strategy", STRATEGIES, own, "How tokens become entities; none shows each token.");
  },

  example({ instances: [given] }) {
    const text = given.text ?? given;
    return typeof text === "string" ? { text } : null;
  },

  body: ({ text, strategy }) => ({
    instances: [text],
    parameters: { output_format: "pipeline", aggregation_strategy: strategy },
  }),

  show(out, [entities], { text }) {
    const shown = el("p.prose", { dir: "auto" });
    let at = 0;
    for (const { start, end, entity, entity_group: group, score } of entities) {
      if (start < at) continue;
      const label = group ?? entity;
      shown.append(slice(text, at, start), marked(slice(text, start, end), `${label} ${percent(score)}`, label));
      at = end;
    }
    shown.append(slice(text, at));
    out.append(shown);
    if (!entities.length) return "No entities.";
    const rows = entities.map(({ start, end, entity, entity_group: group, score }) =>
      [group ?? entity, slice(text, start, end), percent(score), `${start}–${end}`]);
    out.append(table("Entities", ["Label", "Text", "Score", "Offsets"], rows));
    return plural(entities.length, "entity", "entities");
  },
};
