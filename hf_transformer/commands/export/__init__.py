"""``hf-transformer export``: writes a Hugging Face model as a folder that Triton serves, tokenizer included.

Only the command line imports this package. The modules checkpoint, graph and model_file need torch (extra ``export``).
"""
