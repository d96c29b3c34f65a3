"""``hf-transformer export``: writes a Hugging Face model as a folder that Triton serves, tokenizer included.

Only the command imports this package. checkpoint, graph and model_file need torch, from the extra ``export``.
"""
