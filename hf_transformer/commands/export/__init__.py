"""``hf-transformer export``: a model's weights as a folder that Triton serves, with the tokenizer beside them.

    command.py       the flags, and the steps
    checkpoint.py    a hub's id or a folder -> the torch model, the tokenizer, the files
    graph.py         the model of a task as a function of tensors, perhaps with the task's reduction
    model_file.py    the graph -> model.onnx or model.pt; sample texts give the same through it as through the model
    repository.py    the model's folder, whole or not at all: config_pbtxt.py, python_model.py, the tokenizer's files
    serving.py       how to start Triton and the service with it

Only the command imports this package. checkpoint, graph and model_file need torch, from the extra ``export``.
"""
