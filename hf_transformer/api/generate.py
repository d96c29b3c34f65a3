"""Triton's generate extension: text generation in one response or as server-sent events.

    POST /v2/models/{m}[/versions/{v}]/generate          {"text_input": "...", "parameters": {...}}
                                                         -> {"model_name", "model_version", "text_output": "..."}
    POST /v2/models/{m}[/versions/{v}]/generate_stream   -> data: {"model_name", "model_version", "text_output": "..."}

As in the vLLM backend, generate returns the prompt with the text (--return_full_text), and generate_stream only new
text. A request can override both defaults. A stream has at least one event per text.

``text_input`` may be a list with one prompt. V1's parameters may be in ``parameters`` or at the top level. Clients of
Triton's vLLM and TensorRT-LLM backends also send ``exclude_input_in_output``, ``sampling_parameters`` (vLLM's
SamplingParams as JSON text), booleans for extra outputs, and TensorRT-LLM's names (``_rename``).

Sources: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md,
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md,
https://github.com/triton-inference-server/vllm_backend/blob/main/src/utils/request.py and
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.errors import error_json, expect
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import STREAM, TextStream, event, not_streamed
from hf_transformer.errors import InvalidInput, Path, TooLarge, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.protocol.json_text import SMALL_BYTES, check_nesting
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.http import Response
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Context, Json, Query

API = "generate"
PROMPT, ANSWER = "text_input", "text_output"
ABOUT = ("id", "model_name", "model_version")
"""Triton's fields that are neither inputs nor parameters."""
SAMPLING = "sampling_parameters"
EXCLUDE, FULL = "exclude_input_in_output", "return_full_text"
BAD_WORDS = "bad_words"
"""An unsupported parameter. TensorRT-LLM's example clients send an empty value."""
FINISH, PROMPT_TOKENS, NEW_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
EXTRA_OUTPUTS = {name: f"return_{name}" for name in (FINISH, PROMPT_TOKENS, NEW_TOKENS)}
"""The boolean parameter that requests each extra output."""
NUMBERS = frozenset(
    "max_tokens min_tokens temperature top_p top_k min_p seed n presence_penalty frequency_penalty repetition_penalty "
    "best_of length_penalty logprobs prompt_logprobs truncate_prompt_tokens".split()
)
"""Numeric fields of SamplingParams. As in vLLM's backend, clients may also send these numbers as strings."""
IGNORED_DEFAULTS: Mapping[str, Json] = {
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
"""Unsupported fields with their defaults. Triton clients send the defaults; other values are invalid."""
RANDOM_SEED, END_ID, PAD_ID = "random_seed", "end_id", "pad_id"
"""TensorRT-LLM's names for the seed, a stop token and the padding token."""
PARAMETERS = frozenset(
    (
        *(SAMPLING, EXCLUDE, BAD_WORDS, RANDOM_SEED, END_ID, PAD_ID, "image", "lora_name"),
        *(*NUMBERS, *IGNORED_DEFAULTS, *EXTRA_OUTPUTS.values()),
    )
)
"""Parameters of Triton's vLLM and TensorRT-LLM backends, including unsupported parameters."""
NO_TOKEN = -1
"""TensorRT-LLM's value of ``end_id`` that disables the end token."""

Outputs = dict[str, list[str] | list[int]]
"""The outputs for a prompt by vLLM's names. A list has one element per text, or one element for the prompt."""


def endpoints(service: Service) -> dict[str, Endpoint]:

    async def generate(call: Call) -> Response:
        model, asked, head = _read(service, call, "generate")
        if asked.stream:
            raise not_streamed()
        outputs = await whole(model, asked, call.context)
        return reply(orjson.dumps({**head, **_unwrap(outputs)}))

    async def generate_stream(call: Call) -> TextStream:
        model, asked, head = _read(service, call, "generate_stream")
        return GenerateStream(model, asked, call.context, head)

    handlers: dict[str, Handle] = {"generate": generate, "generateStream": generate_stream}
    return {name: Endpoint(API, handle, error_json, service) for name, handle in handlers.items()}


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A generation request. ``stream`` requests a stream, and ``extra`` lists the extra outputs."""

    request: GenerationRequest
    stream: bool
    extra: Collection[str]


def _read(service: Service, call: Call, route: str) -> tuple[GenerativeModel, GenerateRequest, dict[str, Json]]:
    """Parses the model, the request and the first fields of each response. Raises RequestError."""
    chosen = service.models.choose(call.path["model"], call.context, call.path.get("version", ""))
    model = generative(chosen, route)
    body = expect(call.json(), dict, "body", f'an object with "{PROMPT}"')
    asked = read_body(model.task, body, call.context, streamed=route == "generate_stream")
    head: dict[str, Json] = {"model_name": call.context.model_name, "model_version": model.describe().version}
    request_id = expect(body.get("id"), str | None, "id", "a string")
    return model, asked, {"id": request_id, **head} if request_id else head


def read_body(
    task: TextGeneration, body: Mapping[str, Json], context: Context, streamed: bool | None = None
) -> GenerateRequest:
    """Parses the fields of a body, or tensors by name, except ABOUT. Sets ``context.field_names``.

    ``streamed`` is true for generate_stream, false for generate, and None for requests with tensors. Raises
    RequestError for an invalid field.
    """
    prompt = body.get(PROMPT)
    if isinstance(prompt, list) and len(prompt) == 1:  # a tensor of one element may be a list or a string
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidInput(PROMPT, "a string", "nothing" if prompt is None else describe(prompt))
    nested = expect(body.get("parameters"), dict | None, "parameters", "an object")
    top_level = _normalize({name: value for name, value in body.items() if name not in (PROMPT, "parameters", *ABOUT)})
    nested = _normalize(nested or {}, ("parameters",))
    sampling = _take_sampling(top_level, nested)
    parameters, client_paths = _merge(top_level, nested, sampling)

    context.field_names = Names(client_paths)
    _rename(parameters, client_paths)
    draws = not {"temperature", "top_p", "min_p"}.isdisjoint(sampling)
    if draws and task.settings.generation.top_k == GenerationSettings().top_k:
        parameters.setdefault("top_k", 0)  # vLLM's default, unless the client or operator sets top_k
    extra = [name for name, switch in EXTRA_OUTPUTS.items() if _take_flag(parameters, switch)]
    stream = parameters.setdefault(STREAM, streamed or False)
    _set_full_text(parameters, stream is True if streamed is None else streamed)
    request = task.request(Query([prompt], parameters, name=PROMPT))
    return GenerateRequest(replace(request, name=PROMPT, single=True), stream is True, extra)


def _normalize(fields: Mapping[str, Json], parent: Path = ()) -> dict[str, Json]:
    """Parses numbers in strings, as vLLM's backend does, and removes nulls and IGNORED_DEFAULTS."""
    normalized: dict[str, Json] = {}
    for name, value in fields.items():
        if name in NUMBERS and isinstance(value, str):
            value = _number(value)
        if value is None:
            continue
        if name in IGNORED_DEFAULTS:
            default = IGNORED_DEFAULTS[name]
            if value != default or isinstance(value, bool) is not isinstance(default, bool):
                hint = "the service does not support other values"
                raise InvalidInput((*parent, name), orjson.dumps(default).decode(), describe(value, quote=True), hint)
        else:
            normalized[name] = value
    return normalized


def _number(text: str) -> Json:
    """Parses a number. Returns other text unchanged, and the task rejects this text later."""
    try:
        value = orjson.loads(text) if len(text) <= 40 else None
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


def _take_sampling(top_level: dict[str, Json], nested: dict[str, Json]) -> dict[str, Json]:
    """Removes ``sampling_parameters`` from both levels and returns its fields. Raises InvalidInput or TooLarge."""
    path: Path = (SAMPLING,) if SAMPLING in top_level else ("parameters", SAMPLING)
    value, duplicate = top_level.pop(SAMPLING, None), nested.pop(SAMPLING, None)
    if value is None:
        value = duplicate
    elif duplicate is not None and duplicate != value:
        raise InvalidInput(SAMPLING, "one value", "another one in parameters")
    if value is None or value == "":
        return {}
    return _normalize(json_parameters(expect(value, str, path, "JSON text"), path), path)


def json_parameters(value: Json, path: Path | str) -> dict[str, Json]:
    """Reads parameters from an object or JSON text. Raises InvalidInput or TooLarge for the field ``path``."""
    if isinstance(value, str):
        if len(value) > SMALL_BYTES:
            raise TooLarge(path, f"at most {SMALL_BYTES} characters of JSON text", str(len(value)))
        check_nesting(value.encode(), path)
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidInput(path, "JSON text", hint=str(error)) from None
    parameters: dict[str, Json] = expect(value, dict, path, "a JSON object")
    return parameters


def _merge(
    top_level: Mapping[str, Json], nested: Mapping[str, Json], sampling: Mapping[str, Json]
) -> tuple[dict[str, Json], dict[Path, Path]]:
    """Merges the parameters, and maps each name to the client's path. Duplicate parameters must have equal values."""
    parameters = dict(top_level)
    client_paths: dict[Path, Path] = {("parameters", name): (name,) for name in top_level}
    for fields, parent in ((nested, "parameters"), (sampling, SAMPLING)):
        for name, value in fields.items():
            if parameters.setdefault(name, value) != value:
                raise InvalidInput((parent, name[:40]), "one value", "two", "the request has another value of it")
    client_paths |= {("parameters", name): (SAMPLING, name) for name in sampling}
    for name in (BAD_WORDS, "stop_words"):
        if parameters.get(name) in ("", []):
            del parameters[name]
    if BAD_WORDS in parameters:
        path, hint = Names(client_paths)(("parameters", BAD_WORDS)), "the service can't exclude words from a text"
        raise InvalidInput(path, "no words", hint=hint)
    return parameters, client_paths


def _rename(parameters: dict[str, Json], client_paths: dict[Path, Path]) -> None:
    """Converts TensorRT-LLM's parameters to the task's, and updates the client's paths.

    ``end_id`` becomes a stop token. ``pad_id`` has no effect, since texts have no padding.
    """

    def put(name: str, alias: str, value: Json) -> None:
        if parameters.setdefault(name, value) != value:
            raise InvalidInput(("parameters", alias), "one value", f"another one in {name}")
        client_paths["parameters", name] = Names(client_paths)(("parameters", alias))

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
        elif isinstance(ends := parameters["stop_token_ids"], list):  # the task rejects other types
            parameters["stop_token_ids"] = [*ends, end]


def _token_id(value: Json, name: str) -> int:
    if type(value) is not int or value < NO_TOKEN:
        got = str(value) if type(value) is int else describe(value)
        raise InvalidInput(("parameters", name), f"a token id, or {NO_TOKEN} for none", got)
    return value


def _set_full_text(parameters: dict[str, Json], streamed: bool) -> None:
    """Converts ``exclude_input_in_output`` to ``return_full_text``. A stream omits the prompt by default."""
    exclude = _take_flag(parameters, EXCLUDE)
    if exclude is not None:
        if parameters.setdefault(FULL, not exclude) is exclude:
            raise InvalidInput(("parameters", EXCLUDE), f"the opposite of {FULL}", describe(exclude, quote=True))
    elif streamed:
        parameters.setdefault(FULL, False)


def _take_flag(parameters: dict[str, Json], name: str) -> bool | None:
    """Removes a boolean parameter and returns its value, or None for a missing parameter."""
    value: bool | None = expect(parameters.pop(name, None), bool | None, ("parameters", name), "true or false")
    return value


def _outputs(texts: Sequence[Piece], prompt_tokens: int, extra: Collection[str]) -> Outputs:
    outputs: Outputs = {ANSWER: [text.text for text in texts]}
    if FINISH in extra:
        outputs[FINISH] = [str(text.finish) for text in texts]  # "None" for an unfinished text, as in vLLM's backend
    if PROMPT_TOKENS in extra:
        outputs[PROMPT_TOKENS] = [prompt_tokens]
    if NEW_TOKENS in extra:
        outputs[NEW_TOKENS] = [text.count for text in texts]
    return outputs


async def whole(model: GenerativeModel, asked: GenerateRequest, context: Context) -> Outputs:
    """Generates the complete outputs of a request. Raises RequestError."""
    generation = await model.generate(asked.request, context)
    async with generation as running:
        [texts] = await running.collect()
        return _outputs(texts, running.prompt_tokens, asked.extra)


class NewOutputs:
    """The unsent outputs of a stream, for each choice."""

    __slots__ = ("_extra", "_texts")

    def __init__(self, asked: GenerateRequest) -> None:
        self._extra = asked.extra
        self._texts = [Piece(0, choice, "") for choice in range(asked.request.sampling.n)]

    def add(self, piece: Piece) -> None:
        new = self._texts[piece.choice]
        new.text += piece.text
        new.count += piece.count
        new.finish = piece.finish

    def take(self, prompt_tokens: int, choice: int | None = None) -> Outputs:
        """Removes and returns the unsent outputs of one choice, or of all choices."""
        texts = self._texts if choice is None else [self._texts[choice]]
        outputs = _outputs(texts, prompt_tokens, self._extra)
        for text in texts:
            text.text, text.count = "", 0
        return outputs


def _unwrap(outputs: Outputs) -> dict[str, Json]:
    """Replaces a list of one element by the element, as in Triton's responses."""
    return {name: values[0] if len(values) == 1 else values for name, values in outputs.items()}


class GenerateStream(TextStream):
    """A stream with one or more events per text. If ``asked.stream`` is false, one event contains all texts."""

    __slots__ = ("_asked", "_head", "_outputs", "_seen")

    def __init__(
        self, model: GenerativeModel, asked: GenerateRequest, context: Context, head: Mapping[str, Json]
    ) -> None:
        super().__init__(model, asked.request, context)
        self._asked = asked
        self._head = head
        self._outputs = NewOutputs(asked)
        self._seen: set[int] = set()  # choices that have an event

    def piece(self, piece: Piece) -> bytes:
        self._outputs.add(piece)
        asked, choice = self._asked, piece.choice
        needed = piece.finish is not None and (choice not in self._seen or asked.extra)
        if not asked.stream or not (piece.text or needed):
            return b""
        self._seen.add(choice)
        number = {"choice": choice} if asked.request.sampling.n > 1 else {}
        return self._event(number, self._outputs.take(self.running.prompt_tokens, choice))

    def end(self) -> bytes:
        return b"" if self._asked.stream else self._event({}, self._outputs.take(self.running.prompt_tokens))

    def _event(self, number: Mapping[str, int], outputs: Outputs) -> bytes:
        return event(orjson.dumps({**self._head, **number, **_unwrap(outputs)}))
