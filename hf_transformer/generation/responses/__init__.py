"""Response templates: reading of reasoning, content and tool calls in generated text. APIs use model.py."""
