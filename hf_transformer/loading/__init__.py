"""From a folder or the hub to config.json and a tokenizer; needed once, at the start."""
