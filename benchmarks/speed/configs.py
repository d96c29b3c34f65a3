"""Triton's configurations of the synthetic models and of the ensembles, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.speed.cases import DIMENSIONS, Model

MAX_BATCH_SIZE: Final = 64
Tensor = tuple[str, str, Sequence[int]]
"""Name, datatype without TYPE_, dims without the batch."""

TOKENS: Final[tuple[Tensor, ...]] = (("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,)))
SEGMENTED: Final[tuple[Tensor, ...]] = (*TOKENS, ("token_type_ids", "INT64", (-1,)))
TEXT: Final[Tensor] = ("text", "STRING", (1,))
TOKENIZER: Final = "tokenize"


def model_output(model: Model) -> Tensor:
    """What a synthetic model gives."""
    return (model.output, "FP32", (-1, model.width) if model.per_token else (model.width,))


def answer_of(model: Model) -> Tensor:
    """What an ensemble gives."""
    kinds: dict[str, tuple[str, int]] = {
        "fill_mask": ("STRING", 1),
        "sequence_classification": ("INT64", 1),
        "text_embedding": ("FP32", DIMENSIONS),
    }
    datatype, size = kinds[model.task]
    return ("answer", datatype, (size,))


def python_model(
    name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Mapping[str, str] | None = None
) -> str:
    """One instance on the CPU, and Triton's own batching, as in the project's other configurations."""
    more = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in (parameters or {}).items()
    ]
    lines = [
        *_head(name, 'backend: "python"'),
        *_tensors("input", inputs),
        *_tensors("output", outputs),
        "dynamic_batching { }",
        "instance_group [ { count: 1, kind: KIND_CPU } ]",
        *more,
    ]
    return "\n".join(lines) + "\n"


def decoder(model: Model) -> str:
    """The last step of an ensemble."""
    _, datatype, dims = model_output(model)
    return python_model(
        decoder_name(model), (*TOKENS, ("logits", datatype, dims)), (answer_of(model),), {"task": model.task}
    )


def decoder_name(model: Model) -> str:
    return f"{model.name}_decode"


def ensemble_name(model: Model) -> str:
    return f"{model.name}_ensemble"


def ensemble(model: Model) -> str:
    """Tokenizing, the model and decoding as one model."""
    tokens = {name: name for name, _, _ in TOKENS}
    steps = [
        _step(TOKENIZER, {"text": "text"}, tokens),
        _step(model.name, tokens, {model.output: "logits"}),
        _step(decoder_name(model), {**tokens, "logits": "logits"}, {"answer": "answer"}),
    ]
    lines = [
        *_head(ensemble_name(model), 'platform: "ensemble"'),
        *_tensors("input", (TEXT,)),
        *_tensors("output", (answer_of(model),)),
        "ensemble_scheduling { step [",
        ",\n".join(steps),
        "] }",
    ]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str) -> list[str]:
    return [f'name: "{name}"', kind, f"max_batch_size: {MAX_BATCH_SIZE}"]


def _tensors(role: str, tensors: Sequence[Tensor]) -> list[str]:
    return [
        f'{role} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }}'
        for name, datatype, dims in tensors
    ]


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'
