"""What Triton's generate extension and the tensors of its backends for language models have in common: one prompt, its
parameters by the names of the vLLM and TensorRT-LLM backends, and what is told beside the text.

Parameters are those of V1. These backends' own are ``exclude_input_in_output``, ``sampling_parameters`` (JSON text,
with the fields of vLLM's SamplingParams) and the booleans that ask for further outputs.

Inputs of TensorRT-LLM's models have other names for some of them (``_renamed``).

Source: https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md,
https://github.com/triton-inference-server/vllm_backend/blob/main/src/utils/request.py and
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import orjson

from hf_transformer.api.base import Model
from hf_transformer.api.generation import STREAM
from hf_transformer.api.tensors import json_parameters
from hf_transformer.errors import InvalidInput, RequestError
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import FinishReason, GenerationRequest, Piece
from hf_transformer.tasks.base import GenerationSettings, describe
from hf_transformer.types import Context, Json, Query

PROMPT, ANSWER = "text_input", "text_output"
ABOUT = ("id", "model_name", "model_version")
"""What Triton takes beside inputs and parameters."""
SAMPLING = "sampling_parameters"
EXCLUDE, FULL = "exclude_input_in_output", "return_full_text"
BAD_WORDS = "bad_words"
"""TensorRT-LLM's own examples send it empty."""
FINISH, PROMPT_TOKENS, NEW_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
FURTHER = {f"return_{name}": name for name in (FINISH, PROMPT_TOKENS, NEW_TOKENS)}
"""What is told beside the text, by the boolean that asks for it."""
NOT_YET = "None"
"""The finish reason of a text that goes on, as vLLM's backend writes it."""

NUMBERS = frozenset(
    "max_tokens min_tokens temperature top_p top_k min_p seed n presence_penalty frequency_penalty repetition_penalty "
    "best_of length_penalty logprobs prompt_logprobs truncate_prompt_tokens".split()
)
"""Fields of SamplingParams that vLLM's backend takes as text too: its own sample sends them so."""
LONGEST_NUMBER = 40
"""Characters of one."""
ASKS_FOR_NOTHING: Mapping[str, Json] = {
    "best_of": 1,
    "beam_width": 1,
    "length_penalty": 1.0,
    "use_beam_search": False,
    "early_stopping": False,
    "include_stop_str_in_output": False,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "return_logprobs": False,
    "return_cumulative_logprob": False,
    "return_log_probs": False,
    "return_context_logits": False,
    "return_generation_logits": False,
}
"""The defaults of what can't be honoured here, which Triton's clients write out."""


RANDOM_SEED = "random_seed"
END_ID = "end_id"
PAD_ID = "pad_id"
NO_TOKEN = -1
"""In TensorRT-LLM: no token ends a text."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where a request's parameters stand: ``beside`` the prompt, or within ``sampling`` parameters. ``others`` are the
    names of those that a client calls otherwise, by the task's own."""

    beside: Collection[str] = ()
    sampling: Collection[str] = ()
    others: Mapping[str, str] = field(default_factory=dict)

    def as_sent(self, message: str) -> str:
        """A task's message, naming the parameter as the client has sent it."""
        name, colon, what = message.removeprefix("parameters.").partition(":")
        sent = self.others.get(name, name)
        if sent in self.sampling:
            return f"{SAMPLING}.{sent}{colon}{what}"
        if sent in self.beside:
            return f"{sent}{colon}{what}"
        return message if sent == name else f"parameters.{sent}{colon}{what}"

    @contextmanager
    def told(self) -> Iterator[None]:
        """Lets errors name parameters as they were sent."""
        try:
            yield
        except RequestError as error:
            message = self.as_sent(str(error))
            if message == str(error):
                raise
            raise type(error)(message) from error


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: with ``stream`` it wants pieces, and ``further`` names outputs beside the text."""

    request: GenerationRequest
    stream: bool
    further: Collection[str]
    names: Names


def read_body(task: TextGeneration, body: Mapping[str, Json], streamed: bool | None = None) -> Asked:
    """What a body asks for whose names are those of inputs; ABOUT is the caller's to read.

    Args:
        streamed: whether the route gives pieces, unless the body says otherwise, and without the prompt; None where
            the body alone says so.

    Raises:
        RequestError: it is not what is expected.
    """
    prompt = body.get(PROMPT)
    if not isinstance(prompt, str):
        raise InvalidInput(f"{PROMPT}: expected a string, got {'nothing' if prompt is None else describe(prompt)}")
    inside = body.get("parameters")
    if not isinstance(inside, dict | None):
        raise InvalidInput(f"parameters: expected an object, got {describe(inside)}")
    beside = loosened({name: value for name, value in body.items() if name not in (PROMPT, "parameters", *ABOUT)})
    within = loosened(inside or {}, "parameters.")
    sampling = _sampling(beside, within)
    parameters = _merged(beside, within, sampling)
    names = Names(beside, sampling, _renamed(parameters))
    with names.told():
        _draw_from_all(task, parameters, sampling)
        further = [name for switch, name in FURTHER.items() if _flag(parameters, switch)]
        given = parameters.get(STREAM)
        stream = parameters[STREAM] = (streamed or False) if given is None else given
        _exclude(parameters, stream is True if streamed is None else streamed)
        request = task.request(Query([prompt], parameters, name=PROMPT))
    return Asked(replace(request, name=PROMPT, single=True), stream is True, further, names)


def loosened(fields: Mapping[str, Json], where: str = "") -> dict[str, Json]:
    """Fields as vLLM's backend reads them: a number may be text, and null or a default asks for nothing.

    ``where`` is what they are within, for messages. Raises InvalidInput for what can't be asked for.
    """
    found: dict[str, Json] = {}
    for name, value in fields.items():
        if name in NUMBERS and isinstance(value, str):
            value = _number(value)
        if value is None:
            continue
        if name in ASKS_FOR_NOTHING:
            usual = ASKS_FOR_NOTHING[name]
            if value != usual or isinstance(value, bool) is not isinstance(usual, bool):
                expected = orjson.dumps(usual).decode()
                raise InvalidInput(f"{where}{name}: it can't be asked for here, expected {expected}")
        else:
            found[name] = value
    return found


def _number(text: str) -> Json:
    """The number in a text; the text where there is none, which the task refuses."""
    try:
        found = orjson.loads(text) if len(text) <= LONGEST_NUMBER else None
    except orjson.JSONDecodeError:
        return text
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _sampling(beside: dict[str, Json], within: dict[str, Json]) -> dict[str, Json]:
    """Takes ``sampling_parameters`` out, wherever they stand. Raises InvalidInput or TooLarge."""
    where = SAMPLING if SAMPLING in beside else f"parameters.{SAMPLING}"
    given, other = beside.pop(SAMPLING, None), within.pop(SAMPLING, None)
    if given is None:
        given = other
    elif other is not None and other != given:
        raise InvalidInput(f"{SAMPLING}: given twice, once in parameters")
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        raise InvalidInput(f"{where}: expected JSON text, got {describe(given)}")
    return loosened(json_parameters(given, where), f"{where}.")


def _merged(beside: Mapping[str, Json], within: Mapping[str, Json], sampling: Mapping[str, Json]) -> dict[str, Json]:
    """Those of the task, wherever they stand: the sample of vLLM's backend sends them twice. Raises InvalidInput for
    two values of one."""
    found = dict(beside)
    for more, where in ((within, "parameters"), (sampling, SAMPLING)):
        for name, value in more.items():
            if found.get(name, value) != value:
                raise InvalidInput(f"{where}.{name[:40]}: given twice, with another value beside it")
            found[name] = value
    for name in (BAD_WORDS, "stop_words"):
        if found.get(name) in ("", []):
            del found[name]
    if BAD_WORDS in found:
        raise InvalidInput(f"{BAD_WORDS}: they can't be kept out of a text here, expected none")
    return found


def _draw_from_all(task: TextGeneration, parameters: dict[str, Json], sampling: Mapping[str, Json]) -> None:
    """Puts vLLM's default in the place of --top_k, where neither the client nor the operator has said one."""
    drawn = not {"temperature", "top_p", "min_p"}.isdisjoint(sampling)
    if drawn and task.settings.generation.top_k == GenerationSettings().top_k:
        parameters.setdefault("top_k", 0)


def _exclude(parameters: dict[str, Json], streamed: bool) -> None:
    """Puts the task's parameter in the place of ``exclude_input_in_output``."""
    exclude = _flag(parameters, EXCLUDE)
    if exclude is not None:
        if parameters.setdefault(FULL, not exclude) is exclude:
            raise InvalidInput(f"parameters.{EXCLUDE}: {FULL} says the opposite")
    elif streamed:
        parameters.setdefault(FULL, False)


def _flag(parameters: dict[str, Json], name: str) -> bool | None:
    """Takes a boolean out of them; None if there is none."""
    value = parameters.pop(name, None)
    if not isinstance(value, bool | None):
        raise InvalidInput(f"parameters.{name}: expected true or false, got {describe(value)}")
    return value


def _renamed(parameters: dict[str, Json]) -> dict[str, str]:
    """Puts the task's own parameters in the place of TensorRT-LLM's.

    A text then ends at ``end_id`` too, beside the tokens at which it ends anyway. ``pad_id`` says nothing about a text:
    padding is no part of one.

    Returns:
        The names that were sent, by those that now stand there.

    Raises:
        InvalidInput: a value is not one that these inputs have, or a parameter is given under both of its names.
    """
    names: dict[str, str] = {}
    if RANDOM_SEED in parameters:
        _put(parameters, "seed", RANDOM_SEED, parameters.pop(RANDOM_SEED), names)
    if PAD_ID in parameters:
        _token_id(parameters.pop(PAD_ID), PAD_ID)
    if END_ID in parameters:
        end = _token_id(parameters.pop(END_ID), END_ID)
        if end == NO_TOKEN:
            _put(parameters, "ignore_eos", END_ID, True, names)
        elif "stop_token_ids" not in parameters:
            _put(parameters, "stop_token_ids", END_ID, [end], names)
        elif isinstance(ends := parameters["stop_token_ids"], list):  # the task refuses anything else
            parameters["stop_token_ids"] = [*ends, end]
    return names


def _put(parameters: dict[str, Json], name: str, sent: str, value: Json, names: dict[str, str]) -> None:
    if parameters.setdefault(name, value) != value:
        raise InvalidInput(f"{sent}: given twice, with another value as {name}")
    names[name] = sent


def _token_id(value: Json, name: str) -> int:
    if type(value) is not int or value < NO_TOKEN:
        shown = value if type(value) is int else describe(value)
        raise InvalidInput(f"{name}: expected a token id, or {NO_TOKEN} for none, got {shown}")
    return value


Outputs = dict[str, list[str] | list[int]]
"""What is told of a prompt's texts, by the names of vLLM's backend; an element per choice, or one for the prompt."""


class Told:
    """The texts of one prompt, one per choice, and what is known of them since the last ``take``."""

    __slots__ = ("_counts", "_finishes", "_texts")

    def __init__(self, choices: int) -> None:
        self._texts = [""] * choices
        self._counts = [0] * choices
        self._finishes: list[FinishReason | None] = [None] * choices

    def add(self, piece: Piece, choice: int) -> None:
        self._texts[choice] += piece.text
        self._counts[choice] += piece.count
        self._finishes[choice] = piece.finish

    def take(self, further: Collection[str], prompt_tokens: int) -> Outputs:
        """The outputs by name, ANSWER first: an element per choice. What was told is not told again."""
        choices = len(self._texts)
        found: Outputs = {ANSWER: self._texts}
        if FINISH in further:
            found[FINISH] = [one or NOT_YET for one in self._finishes]
        if PROMPT_TOKENS in further:
            found[PROMPT_TOKENS] = [prompt_tokens]
        if NEW_TOKENS in further:
            found[NEW_TOKENS] = self._counts
        self._texts, self._counts = [""] * choices, [0] * choices
        return found


async def whole(model: Model, asked: Asked, context: Context) -> Outputs:
    """All that a request asks for, once its texts are written. Raises RequestError."""
    request = asked.request
    told = Told(request.sampling.n)
    with asked.names.told():
        async with await model.generate(request, context) as running:
            async for piece in running:
                told.add(piece, piece.choice)
            return told.take(asked.further, running.prompt_tokens)
