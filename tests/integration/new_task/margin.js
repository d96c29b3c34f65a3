import { ofText } from "./lib.js";

export default {
  ...ofText,
  form: (form) => form.text("text", "Text"),
  body: ({ text }) => ({ instances: [text] }),
  show: (out, [{ margin }]) => `${margin}`,
};
