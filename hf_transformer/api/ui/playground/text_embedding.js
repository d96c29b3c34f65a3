import { cosine, dot, drawn, el, plural, scroll, short, vars } from "./lib.js";

const usable = ({ texts }) => texts.filter((one) => one.trim());
const options = ({ prompt }) => (prompt ? { prompt_name: prompt } : null);

export default {
  form(form, { prompts, default_prompt_name: usual }) {
    form.list("texts", "Texts", "Text");
    const names = Object.keys(prompts);
    const said = names.map((name) => `${name}: “${prompts[name]}”`).join(", ");
    if (names.length) form.select("prompt", "Prompt", usual ? names : ["", ...names], usual ?? "", `In front of every text. ${said}`);
  },

  example({ instances, parameters = {} }) {
    const texts = instances.map((one) => one.text ?? one).filter((one) => typeof one === "string");
    return parameters.dimensions || !texts.length ? null : { texts };
  },

  body(values) {
    const parameters = options(values);
    return { instances: usable(values), ...(parameters && { parameters }) };
  },

  openai: (values, { name }) => ({
    method: "embeddings.create",
    known: { model: name, input: usable(values) },
    extra: options(values),
    print: "[len(one.embedding) for one in answer.data]",
  }),

  tensors: (values) => ({ inputs: { text: usable(values) }, parameters: options(values) }),

  tokens: (values) => ({
    texts: usable(values).map((text) => [text, text]),
    parameters: options(values),
  }),

  show(out, vectors, values) {
    const texts = usable(values);
    const alike = vectors.map((one) => vectors.map((other) => cosine(one, other)));
    out.append(el("div.maps", {}, matrix(texts, alike), texts.length > 2 ? map(texts, alike) : null));
    let best = [0, 1];
    alike.forEach((row, first) => row.forEach((value, second) => {
      if (second > first && value > alike[best[0]][best[1]]) best = [first, second];
    }));
    const size = `${plural(vectors.length, "vector")} of ${plural(vectors[0].length, "number")}`;
    if (texts.length < 2) return size;
    return `${size}; ${best[0] + 1} and ${best[1] + 1} are the most alike, ${alike[best[0]][best[1]].toFixed(2)}`;
  },
};

function matrix(texts, alike) {
  const cells = (row) => row.map((value) => vars(el("td", {}, value.toFixed(2)), { heat: Math.max(0, value) }));
  return scroll("Similarities", el("table.matrix", {},
    el("caption", {}, "Cosine similarity"),
    el("thead", {}, el("tr", {}, el("td"), ...texts.map((_, at) => el("th", { scope: "col" }, `${at + 1}`)))),
    el("tbody", {}, ...alike.map((row, at) => el("tr", {},
      el("th", { scope: "row", title: texts[at] }, el("b", {}, `${at + 1} `), short(texts[at], 36)), ...cells(row))))));
}

/** The texts as points: the first two principal axes of their similarities (classical scaling). */
function map(texts, alike) {
  const count = alike.length;
  const means = alike.map((row) => row.reduce((sum, value) => sum + value, 0) / count);
  const mean = means.reduce((sum, value) => sum + value, 0) / count;
  let centred = alike.map((row, i) => row.map((value, j) => value - means[i] - means[j] + mean));
  const axes = [0, 1].map((axis) => {
    let vector = means.map((_, at) => Math.cos(at * (axis + 1) + 1));
    let length = 0;
    for (let turn = 0; turn < 200; turn++) {
      const next = centred.map((row) => dot(row, vector));
      length = Math.hypot(...next);
      if (length < 1e-9) break;
      vector = next.map((value) => value / length);
    }
    centred = centred.map((row, i) => row.map((value, j) => value - length * vector[i] * vector[j]));
    return vector.map((value) => value * Math.sqrt(length));
  });
  const most = Math.max(1e-6, ...axes.flat().map(Math.abs));
  const svg = drawn("svg", { viewBox: "-120 -60 240 120", role: "img", "aria-label": `Map of ${plural(count, "text")}` });
  const draw = (...part) => svg.appendChild(drawn(...part));
  draw("path", { d: "M-116 0H116M0-56V56" });
  const points = axes[0].map((x, at) => [(x / most) * 100, (axes[1][at] / most) * 48]);
  const radius = Math.min(7.5, 55 / Math.sqrt(count)); // of labels that together cover a third of the map
  const places = labels(points, radius);
  points.forEach(([x, y], at) => {
    draw("path", { class: "lead", d: `M${x} ${y}L${places[at]}` });
    draw("circle", { class: "point", cx: x, cy: y, r: 1.5 });
  });
  places.forEach(([x, y], at) => {
    draw("circle", { cx: x, cy: y, r: radius }, drawn("title", {}, texts[at]));
    vars(draw("text", { x, y: y + radius * 0.42 }, `${at + 1}`), { size: `${radius * 1.2}px` });
  });
  return el("figure", {}, el("figcaption", {}, "Map: texts that are alike are near each other"), svg);
}

/** A place for the label of each point: on it, or if that hides another point, in the nearest free cell of a grid. */
function labels(points, radius) {
  const near = ([x, y], [a, b], most) => Math.hypot(a - x, b - y) < most;
  const alone = points.map((point, at) => !points.some((other, place) => place !== at && near(point, other, 2 * radius + 1)));
  const fixed = points.filter((_, at) => alone[at]);
  const cells = [];
  for (let x = radius - 118; x <= 118 - radius; x += 2 * radius + 1) {
    for (let y = radius - 58; y <= 58 - radius; y += 2 * radius + 1) {
      if (fixed.every((point) => !near(point, [x, y], 2 * radius + 1))) cells.push([x, y, points.some((point) => near(point, [x, y], radius + 2))]);
    }
  }
  return points.map(([x, y], at) => {
    if (alone[at] || !cells.length) return [x, y];
    const cost = ([a, b, hides]) => Math.hypot(a - x, b - y) + (hides ? 40 : 0);
    const best = cells.reduce((least, cell, place) => (cost(cell) < cost(cells[least]) ? place : least), 0);
    return cells.splice(best, 1)[0].slice(0, 2);
  });
}
