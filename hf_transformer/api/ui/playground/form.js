// The fields of a widget. Each has a name, under which its value stands in `values` and in the page's link.

import { button, el, listed } from "./lib.js";

let count = 0;

export class Form {
  /** `changed` is called whenever a value has changed by hand. */
  constructor(host, changed) {
    this.host = host;
    this.changed = changed;
    this.fields = new Map();
  }

  get values() {
    return Object.fromEntries([...this.fields].map(([name, field]) => [name, field.get()]));
  }

  /** Sets the values that are there; others stay, and so does what has another type than its field. */
  set(values) {
    for (const [name, field] of this.fields) {
      const value = values?.[name];
      if (value === undefined || typeof value !== typeof field.get()) continue;
      if (Array.isArray(value) === Array.isArray(field.get())) field.set(value);
    }
  }

  /** Further fields go into this element, until the next call. */
  into(host) {
    this.host = host;
    return host;
  }

  /** Further fields go into a part that can be folded. */
  fold(label, open = false) {
    const inside = el("div");
    this.host.append(el("details.fold", { open }, el("summary", {}, label), inside));
    this.host = inside;
  }

  /** Adds a control, whose value is the field's unless the caller sets another one. */
  _labelled(name, label, control, hint) {
    const id = `field-${++count}`;
    control.id = id;
    const row = el("div.field", {}, el("label", { htmlFor: id }, label), control);
    if (hint) {
      control.setAttribute("aria-describedby", `${id}-hint`);
      row.append(el("p.hint", { id: `${id}-hint` }, hint));
    }
    this.host.append(row);
    control.addEventListener("input", () => this.changed());
    this.fields.set(name, { get: () => control.value, set: (value) => (control.value = value) });
    return control;
  }

  text(name, label, { rows = 3, hint } = {}) {
    return this._labelled(name, label, el("textarea", { rows, spellcheck: false, dir: "auto" }), hint);
  }

  line(name, label, { hint, value = "", ...more } = {}) {
    return this._labelled(name, label, el("input", { spellcheck: false, autocomplete: "off", value, ...more }), hint);
  }

  /** A whole number, within bounds. */
  number(name, label, { value, min = 1, max = 100, hint }) {
    const control = this._labelled(name, label, el("input", { type: "number", min, max, value }), hint);
    const get = () => Math.min(max, Math.max(min, Math.round(control.valueAsNumber || 0)));
    this.fields.set(name, { get, set: (number) => (control.value = number) });
    return control;
  }

  slider(name, label, { value, min = 0, max = 1, step = 0.05 }) {
    const control = this._labelled(name, label, el("input", { type: "range", min, max, step, value }));
    const shown = el("output", { htmlFor: control.id });
    const show = () => (shown.value = control.value);
    control.before(shown);
    control.addEventListener("input", show);
    show();
    this.fields.set(name, {
      get: () => control.valueAsNumber,
      set: (number) => {
        control.value = number;
        show();
      },
    });
  }

  select(name, label, choices, value = choices[0], hint) {
    const options = choices.map((one) => el("option", { value: one, textContent: one || "none" }));
    const control = this._labelled(name, label, el("select", {}, ...options), hint);
    control.value = value;
    this.fields.set(name, { get: () => control.value, set: (one) => choices.includes(one) && (control.value = one) });
    return control;
  }

  toggle(name, label, value = false) {
    const control = el("input", { type: "checkbox", checked: value, role: "switch" });
    control.addEventListener("input", () => this.changed());
    this.host.append(el("label.toggle", {}, control, el("span", {}, label)));
    this.fields.set(name, { get: () => control.checked, set: (on) => (control.checked = on) });
    return control;
  }

  /** One of a few, side by side. */
  segments(name, label, choices) {
    const group = `segments-${++count}`;
    const inputs = choices.map((value, at) => el("input", { type: "radio", name: group, value, checked: !at }));
    const row = el("fieldset.segments", {}, el("legend.unseen", {}, label),
      ...inputs.map((input) => el("label", {}, input, el("span", {}, input.value))));
    row.addEventListener("input", () => this.changed());
    this.host.append(row);
    this.fields.set(name, {
      get: () => inputs.find((input) => input.checked).value,
      set: (value) => {
        for (const input of inputs) if (input.value === value) input.checked = true;
        row.dispatchEvent(new Event("change"));
      },
    });
    return row;
  }

  /** Short texts as chips: Enter or a comma adds one, Backspace in the empty field takes the last one away. */
  chips(name, label, hint) {
    let items = [];
    const list = el("ul.chips", {});
    const control = this._labelled(name, label, el("input", { autocomplete: "off" }), hint);
    control.before(list);
    const show = () => {
      list.replaceChildren(...items.map((item) => {
        const drop = () => {
          set(items.filter((one) => one !== item));
          this.changed();
          control.focus();
        };
        return el("li", {}, item, button("×", drop, { "aria-label": `Remove ${item}` }));
      }));
    };
    const set = (given) => {
      items = [...new Set(given.map(String))];
      show();
    };
    const all = () => [...new Set([...items, ...listed(control.value)])];
    const add = () => {
      if (control.value.trim()) set(all());
      control.value = "";
      this.changed();
    };
    control.addEventListener("keydown", (event) => {
      if ((event.key === "Enter" && !event.ctrlKey && !event.metaKey && control.value.trim()) || event.key === ",") {
        event.preventDefault();
        add();
      } else if (event.key === "Backspace" && !control.value && items.length) {
        set(items.slice(0, -1));
        this.changed();
      }
    });
    control.addEventListener("blur", add);
    this.fields.set(name, { get: all, set });
  }

  /** Several texts, with a button to add one. */
  list(name, label, one) {
    const rows = el("ol.texts", {});
    const number = () => {
      [...rows.children].forEach((row, at) => {
        row.firstChild.setAttribute("aria-label", `${one} ${at + 1}`);
        row.lastChild.setAttribute("aria-label", `Remove ${one.toLowerCase()} ${at + 1}`);
        row.lastChild.hidden = rows.children.length === 1;
      });
    };
    const append = (value) => {
      const control = el("textarea", { rows: 1, value, spellcheck: false, dir: "auto" });
      const row = el("li", {}, control, button("×", () => {
        (row.nextSibling ?? row.previousSibling)?.firstChild.focus();
        row.remove();
        number();
        this.changed();
      }));
      control.addEventListener("input", () => this.changed());
      rows.append(row);
      number();
      return control;
    };
    this.host.append(el("fieldset.field", {}, el("legend", {}, label), rows,
      button(`Add ${one.toLowerCase()}`, () => append("").focus())));
    this.fields.set(name, {
      get: () => [...rows.children].map((row) => row.firstChild.value).filter((text) => text.trim()),
      set: (texts) => {
        rows.replaceChildren();
        texts.map(String).forEach(append);
        number();
      },
    });
    append("");
  }

  /** A value without a control. `show` shows one before it is set, and may throw. */
  hidden(name, value, show) {
    this.fields.set(name, {
      get: () => value,
      set: (given) => {
        show(given);
        value = given;
      },
    });
  }
}
