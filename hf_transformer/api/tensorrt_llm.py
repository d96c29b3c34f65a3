"""The names that inputs of TensorRT-LLM's models have, where a parameter here has another.

Source: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md
"""

from __future__ import annotations

from typing import Final

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import describe
from hf_transformer.types import Json

SEED: Final = "random_seed"
END: Final = "end_id"
PADDING: Final = "pad_id"
NONE: Final = -1
"""In TensorRT-LLM: no token ends a text."""


def renamed(parameters: dict[str, Json]) -> dict[str, str]:
    """Puts the task's own parameters in the place of TensorRT-LLM's.

    A text then ends at ``end_id`` too, beside the tokens at which it ends anyway. ``pad_id`` says nothing about a text:
    padding is no part of one.

    Returns:
        The names that were sent, by those that now stand there.

    Raises:
        InvalidInput: a value is not one that these inputs have, or a parameter is given under both of its names.
    """
    names: dict[str, str] = {}
    if SEED in parameters:
        _put(parameters, "seed", SEED, parameters.pop(SEED), names)
    if PADDING in parameters:
        _token_id(parameters.pop(PADDING), PADDING)
    if END in parameters:
        end = _token_id(parameters.pop(END), END)
        if end == NONE:
            _put(parameters, "ignore_eos", END, True, names)
        elif "stop_token_ids" not in parameters:
            _put(parameters, "stop_token_ids", END, [end], names)
        elif isinstance(ends := parameters["stop_token_ids"], list):  # the task refuses anything else
            parameters["stop_token_ids"] = [*ends, end]
    return names


def _put(parameters: dict[str, Json], name: str, sent: str, value: Json, names: dict[str, str]) -> None:
    if parameters.setdefault(name, value) != value:
        raise InvalidInput(f"{sent}: given twice, with another value as {name}")
    names[name] = sent


def _token_id(value: Json, name: str) -> int:
    if type(value) is not int or value < NONE:
        shown = value if type(value) is int else describe(value)
        raise InvalidInput(f"{name}: expected a token id, or {NONE} for none, got {shown}")
    return value
