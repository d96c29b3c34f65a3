"""Triton's generate extension: a prompt in, its text out, whole or as server-sent events.

    POST /v2/models/{m}[/versions/{v}]/generate          {"text_input": "...", "parameters": {...}}
                                                         -> {"model_name", "model_version", "text_output": "..."}
    POST /v2/models/{m}[/versions/{v}]/generate_stream   -> data: {"model_name", "model_version", "text_output": "..."}

As in the vLLM backend, generate gives the prompt too (--return_full_text), and generate_stream does not, unless a
request says otherwise. A stream has an event per text at least.

The prompt may be in a list of one. Parameters are V1's, within ``parameters`` or beside ``text_input``. Clients of
Triton's vLLM and TensorRT-LLM backends also send ``exclude_input_in_output``, ``sampling_parameters`` (JSON text with
the fields of vLLM's SamplingParams), booleans that ask for further outputs, and TensorRT-LLM's names (``_rename``). The
tensors of these backends are read like a body (tensors.py).

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md,
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md,
https://github.com/triton-inference-server/vllm_backend/blob/main/src/utils/request.py and
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import orjson

from hf_transformer.api.call import V2_PATHS, Call
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.errors import error_json, expect, renamed
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import STREAM, TextStream, event
from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.protocol.json_text import SMALL
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json, Query

API = "generate"
PROMPT, ANSWER = "text_input", "text_output"
ABOUT = ("id", "model_name", "model_version")
"""Fields of Triton beside inputs and parameters."""
SAMPLING = "sampling_parameters"
EXCLUDE, FULL = "exclude_input_in_output", "return_full_text"
BAD_WORDS = "bad_words"
"""TensorRT-LLM's own examples send it empty."""
FINISH, PROMPT_TOKENS, NEW_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
FURTHER = {name: f"return_{name}" for name in (FINISH, PROMPT_TOKENS, NEW_TOKENS)}
"""Outputs beside the text, each with the boolean that asks for it."""
NUMBERS = frozenset(
    "max_tokens min_tokens temperature top_p top_k min_p seed n presence_penalty frequency_penalty repetition_penalty "
    "best_of length_penalty logprobs prompt_logprobs truncate_prompt_tokens".split()
)
"""Fields of SamplingParams that vLLM's backend takes as text too: its own sample sends them so."""
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
"""Defaults that Triton's clients write out, of fields that can't be honoured here."""
RANDOM_SEED, END_ID, PAD_ID = "random_seed", "end_id", "pad_id"
"""Names of TensorRT-LLM."""
PARAMETERS = frozenset(
    (
        *(SAMPLING, EXCLUDE, BAD_WORDS, RANDOM_SEED, END_ID, PAD_ID, "image", "lora_name"),
        *(*NUMBERS, *ASKS_FOR_NOTHING, *FURTHER.values()),
    )
)
"""Parameters of Triton's vLLM and TensorRT-LLM backends, supported or not."""
NO_TOKEN = -1
"""In TensorRT-LLM: no token ends a text."""

Outputs = dict[str, list[str] | list[int]]
"""The outputs for a prompt, by the names of vLLM's backend; an element per text, or one for the prompt."""


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""

    async def generate(call: Call) -> Response:
        model, asked, head = _read(service, call, "generate")
        if asked.stream:
            raise InvalidInput.of("stream: one answer is given here, expected false; generate_stream gives pieces")
        outputs = await whole(model, asked, call.context)
        return reply(orjson.dumps({**head, **_plain(outputs)}))

    async def generate_stream(call: Call) -> TextStream:
        model, asked, head = _read(service, call, "generate_stream")
        return GenerateStream(model, asked, call.context, head)

    handlers: dict[str, Handle] = {"generate": generate, "generate_stream": generate_stream}
    made = {name: Endpoint(API, handle, error_json, service) for name, handle in handlers.items()}
    return [(f"{path}/{name}", endpoint) for path in V2_PATHS for name, endpoint in made.items()]


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One request. With ``stream`` it wants pieces; ``further`` are the names of outputs beside the text; ``as_sent``
    gives an error's message the client's own names."""

    request: GenerationRequest
    stream: bool
    further: Collection[str]
    as_sent: Callable[[str], str]


def _read(service: Service, call: Call, route: str) -> tuple[GenerativeModel, GenerateRequest, dict[str, Json]]:
    """The model of a call, what it asks for, and how its answers begin. Raises RequestError."""
    model = generative(service.models.find(**call.path), route)
    body = expect(call.json(), dict, "body", f'an object with "{PROMPT}"')
    asked = read_body(model.task, body, streamed=route == "generate_stream")
    head: dict[str, Json] = {"model_name": model.name, "model_version": model.describe().version}
    given = expect(body.get("id"), str | None, "id", "a string")
    return model, asked, {"id": given, **head} if given else head


def read_body(task: TextGeneration, body: Mapping[str, Json], streamed: bool | None = None) -> GenerateRequest:
    """The request in a body, whose names are those of the backends' inputs; ABOUT is the caller's to read.

    ``streamed`` says whether the route gives pieces, without the prompt, unless the body says otherwise; None where
    only the body says so. Raises RequestError for a wrong field.
    """
    prompt = body.get(PROMPT)
    if isinstance(prompt, list) and len(prompt) == 1:  # Triton's tensors of one element are either
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidInput.of(f"{PROMPT}: expected a string, got {'nothing' if prompt is None else describe(prompt)}")
    inside = expect(body.get("parameters"), dict | None, "parameters", "an object")
    beside = _loosened({name: value for name, value in body.items() if name not in (PROMPT, "parameters", *ABOUT)})
    within = _loosened(inside or {}, "parameters.")
    sampling = _take_sampling(beside, within)
    parameters, sent = _merged(beside, within, sampling)
    _rename(parameters, sent)
    drawn = not {"temperature", "top_p", "min_p"}.isdisjoint(sampling)
    if drawn and task.settings.generation.top_k == GenerationSettings().top_k:
        parameters.setdefault("top_k", 0)  # vLLM's default, where neither client nor operator has said one
    as_sent = partial(_as_sent, sent)
    with renamed(as_sent):
        further = [name for name, switch in FURTHER.items() if _take_flag(parameters, switch)]
        stream = parameters.setdefault(STREAM, streamed or False)
        _exclude(parameters, stream is True if streamed is None else streamed)
        request = task.request(Query([prompt], parameters, name=PROMPT))
    return GenerateRequest(replace(request, name=PROMPT, single=True), stream is True, further, as_sent)


def _as_sent(sent: Mapping[str, str], message: str) -> str:
    """``sent`` has what the client calls a parameter, by the task's name."""
    name, _, what = message.removeprefix("parameters.").partition(":")
    return f"{sent[name]}:{what}" if name in sent else message


def _loosened(fields: Mapping[str, Json], where: str = "") -> dict[str, Json]:
    """Fields as vLLM's backend reads them: a number may be text; null and a default ask for nothing."""
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
                raise InvalidInput.of(f"{where}{name}: it can't be asked for here, expected {expected}")
        else:
            found[name] = value
    return found


def _number(text: str) -> Json:
    """The number in a text; a text without one stays, and the task refuses it."""
    try:
        found = orjson.loads(text) if len(text) <= 40 else None
    except orjson.JSONDecodeError:
        return text
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _take_sampling(beside: dict[str, Json], within: dict[str, Json]) -> dict[str, Json]:
    """Takes the fields of ``sampling_parameters`` out, wherever they stand. Raises InvalidInput or TooLarge."""
    where = SAMPLING if SAMPLING in beside else f"parameters.{SAMPLING}"
    given, other = beside.pop(SAMPLING, None), within.pop(SAMPLING, None)
    if given is None:
        given = other
    elif other is not None and other != given:
        raise InvalidInput.of(f"{SAMPLING}: given twice, once in parameters")
    if given is None or given == "":
        return {}
    return _loosened(json_parameters(expect(given, str, where, "JSON text"), where), f"{where}.")


def json_parameters(given: Json, where: str) -> dict[str, Json]:
    """Parameters that may stand as JSON text. Raises InvalidInput or TooLarge, beginning with ``where``."""
    if isinstance(given, str):
        if len(given) > SMALL:
            raise TooLarge.of(f"{where}: {len(given)} characters, at most {SMALL} are taken of parameters as text")
        try:
            given = orjson.loads(given)
        except orjson.JSONDecodeError as error:
            raise InvalidInput.of(f"{where}: not JSON: {error}") from None
    found: dict[str, Json] = expect(given, dict, where, "a JSON object")
    return found


def _merged(
    beside: Mapping[str, Json], within: Mapping[str, Json], sampling: Mapping[str, Json]
) -> tuple[dict[str, Json], dict[str, str]]:
    """All parameters, and what the client calls each: the sample of vLLM's backend sends them twice."""
    found: dict[str, Json] = dict(beside)
    for more, where in ((within, "parameters"), (sampling, SAMPLING)):
        for name, value in more.items():
            if found.setdefault(name, value) != value:
                raise InvalidInput.of(f"{where}.{name[:40]}: given twice, with another value beside it")
    for name in (BAD_WORDS, "stop_words"):
        if found.get(name) in ("", []):
            del found[name]
    if BAD_WORDS in found:
        raise InvalidInput.of(f"{BAD_WORDS}: they can't be kept out of a text here, expected none")
    sent = {name: f"parameters.{name}" for name in within} | {name: name for name in beside}
    return found, sent | {name: f"{SAMPLING}.{name}" for name in sampling}


def _rename(parameters: dict[str, Json], sent: dict[str, str]) -> None:
    """Puts the task's own parameters, and what the client calls them, in the place of TensorRT-LLM's.

    A text then ends at ``end_id`` too. ``pad_id`` says nothing about a text: padding is no part of one.
    """

    def put(name: str, other: str, value: Json) -> None:
        if parameters.setdefault(name, value) != value:
            raise InvalidInput.of(f"{other}: given twice, with another value as {name}")
        sent[name] = sent[other]

    if RANDOM_SEED in parameters:
        put("seed", RANDOM_SEED, parameters.pop(RANDOM_SEED))
    if PAD_ID in parameters:
        _token_id(parameters.pop(PAD_ID), PAD_ID)
    if END_ID in parameters:
        end = _token_id(parameters.pop(END_ID), END_ID)
        if end == NO_TOKEN:
            put("ignore_eos", END_ID, True)
        elif "stop_token_ids" not in parameters:
            put("stop_token_ids", END_ID, [end])
        elif isinstance(ends := parameters["stop_token_ids"], list):  # the task refuses anything else
            parameters["stop_token_ids"] = [*ends, end]


def _token_id(value: Json, name: str) -> int:
    if type(value) is not int or value < NO_TOKEN:
        shown = value if type(value) is int else describe(value)
        raise InvalidInput.of(f"{name}: expected a token id, or {NO_TOKEN} for none, got {shown}")
    return value


def _exclude(parameters: dict[str, Json], streamed: bool) -> None:
    """Puts the task's parameter in the place of ``exclude_input_in_output``."""
    exclude = _take_flag(parameters, EXCLUDE)
    if exclude is not None:
        if parameters.setdefault(FULL, not exclude) is exclude:
            raise InvalidInput.of(f"parameters.{EXCLUDE}: {FULL} says the opposite")
    elif streamed:
        parameters.setdefault(FULL, False)


def _take_flag(parameters: dict[str, Json], name: str) -> bool | None:
    """Takes a boolean out of them; None if there is none."""
    value: bool | None = expect(parameters.pop(name, None), bool | None, f"parameters.{name}", "true or false")
    return value


def _outputs(texts: Sequence[Piece], prompt_tokens: int, further: Collection[str]) -> Outputs:
    """The outputs of some choices; each has as much of its text as is to be told now."""
    found: Outputs = {ANSWER: [one.text for one in texts]}
    if FINISH in further:
        found[FINISH] = [str(one.finish) for one in texts]  # "None" for a text that goes on, as vLLM's backend has it
    if PROMPT_TOKENS in further:
        found[PROMPT_TOKENS] = [prompt_tokens]
    if NEW_TOKENS in further:
        found[NEW_TOKENS] = [one.count for one in texts]
    return found


async def whole(model: GenerativeModel, asked: GenerateRequest, context: Context) -> Outputs:
    """All outputs of a request, once its texts are written. Raises RequestError."""
    with renamed(asked.as_sent):
        generation = await model.generate(asked.request, context)
        async with generation as running:
            [texts] = await running.collect()
            return _outputs(texts, running.prompt_tokens, asked.further)


class NewOutputs:
    """The outputs of a stream: what is new of each choice since it was last taken."""

    __slots__ = ("_further", "_texts")

    def __init__(self, asked: GenerateRequest) -> None:
        self._further = asked.further
        self._texts = [Piece(0, choice, "") for choice in range(asked.request.sampling.n)]

    def add(self, piece: Piece) -> None:
        """Adds a piece of any choice."""
        new = self._texts[piece.choice]
        new.text += piece.text
        new.count += piece.count
        new.finish = piece.finish

    def take(self, prompt_tokens: int, choice: int | None = None) -> Outputs:
        """The outputs of one choice, or of all; each is taken once."""
        texts = self._texts if choice is None else [self._texts[choice]]
        found = _outputs(texts, prompt_tokens, self._further)
        for one in texts:
            one.text, one.count = "", 0
        return found


def _plain(outputs: Outputs) -> dict[str, Json]:
    """Outputs as Triton writes them: an only element stands for itself."""
    return {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}


class GenerateStream(TextStream):
    """An event for each piece with text, and one at least per text; one event with all texts if ``asked`` wants no
    pieces."""

    __slots__ = ("_asked", "_head", "_outputs", "_seen")

    def __init__(
        self, model: GenerativeModel, asked: GenerateRequest, context: Context, head: Mapping[str, Json]
    ) -> None:
        super().__init__(model, asked.request, context)
        self._asked = asked
        self._head = head
        self._outputs = NewOutputs(asked)
        self._seen: set[int] = set()
        """The choices that had an event."""

    def piece(self, piece: Piece) -> bytes:
        self._outputs.add(piece)
        asked, choice = self._asked, piece.choice
        needed = piece.finish is not None and (choice not in self._seen or asked.further)
        if not asked.stream or not (piece.text or needed):
            return b""
        self._seen.add(choice)
        place = {"choice": choice} if asked.request.sampling.n > 1 else {}
        return self._event(place, self._outputs.take(self.running.prompt_tokens, choice))

    def end(self) -> bytes:
        return b"" if self._asked.stream else self._event({}, self._outputs.take(self.running.prompt_tokens))

    def _event(self, place: Mapping[str, int], outputs: Outputs) -> bytes:
        return event(orjson.dumps({**self._head, **place, **_plain(outputs)}))

    def as_sent(self, message: str) -> str:
        return self._asked.as_sent(message)
