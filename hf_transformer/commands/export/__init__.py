"""``hf-transformer export``: a model's weights as a folder that Triton serves, with the tokenizer beside them.

Only the command imports this package. checkpoint, graph and model_file need torch, from the extra ``export``.
"""
