"""``hf-transformer export``: a model's weights as a folder that Triton serves, with the tokenizer beside them.

    checkpoint.py   a hub's id or a folder -> the torch model, the tokenizer, the files
    building.py     the model of a task as a graph (graph.py, heads.py), perhaps with its reduction (reductions.py)
    samples.py      sample texts, and what the model gives for them
    writers.py      the graph -> model.onnx or model.pt
    verifying.py    what was written gives what the model gives
    repository.py   what lies beside it: config.pbtxt (config_pbtxt.py), model.py (python_models/), tokenizer files
    folder.py       all of that whole or not at all
    serving.py      how the pair is started

Nothing but the command imports this package. checkpoint, building, heads, reductions, samples, writers and verifying
need torch, from the extra ``export``.
"""
