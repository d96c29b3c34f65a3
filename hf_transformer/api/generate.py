"""Triton's generate extension: text generation in one response or as server-sent events.

As in the vLLM backend, generate returns the prompt with the text (--return_full_text), and generate_stream only new
text. A request can override both defaults. A stream has at least one event per text.

``text_input`` may be a list with one prompt. V1's parameters may be in ``parameters`` or at the top level. Clients of
Triton's vLLM and TensorRT-LLM backends also send ``exclude_input_in_output``, ``sampling_parameters`` (vLLM's
SamplingParams as JSON text), booleans for extra outputs, and TensorRT-LLM's names (``_convert``).

Sources: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_generate.md,
https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md,
https://github.com/triton-inference-server/vllm_backend/blob/main/src/utils/request.py and
https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

import orjson
from msgspec import UNSET, Meta, UnsetType

from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint, Handle
from hf_transformer.api.errors import error_json, expect
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, event, not_streamed
from hf_transformer.errors import InvalidInput, Path, TooLarge
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import PROMPT_LOGPROBS, Seed, TextGenerationParameters
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.protocol.json_text import SMALL_BYTES, check_nesting
from hf_transformer.tasks.base import GenerationSettings
from hf_transformer.types.fields import NO_EFFECT, Body, Form, about, only, unknown_fields
from hf_transformer.types.http import Response
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Context, Json

API = "generate"
PROMPT, ANSWER = "text_input", "text_output"
SAMPLING = "sampling_parameters"
STOP_WORDS, BAD_WORDS = "stop_words", "bad_words"
FINISH, PROMPT_TOKENS, NEW_TOKENS = "finish_reason", "num_input_tokens", "num_output_tokens"
EXTRA_OUTPUTS = {name: f"return_{name}" for name in (FINISH, PROMPT_TOKENS, NEW_TOKENS)}
"""The boolean parameter that requests each extra output."""
NUMBERS = frozenset(
    "max_tokens min_tokens temperature top_p top_k min_p seed n presence_penalty frequency_penalty repetition_penalty "
    "best_of length_penalty".split()
)
"""Numeric fields of SamplingParams. As in vLLM's backend, clients may also send these numbers as strings."""
NO_TOKEN = -1
"""TensorRT-LLM's value of ``end_id`` that disables the end token."""
Unsupported: TypeAlias = Annotated[Json, only(False, because="the service does not support other values")]
Standard: TypeAlias = Annotated[Json, only(True, because="the service does not support other values")]
Single: TypeAlias = Annotated[Json, only(1, because="the service does not support other values")]
TokenId: TypeAlias = Annotated[Annotated[int, Meta(ge=NO_TOKEN)] | None, about(expected="a token id, or -1 for none")]


class BackendParameters(TextGenerationParameters):
    """Parameters of Triton's vLLM and TensorRT-LLM backends: those of text generation, and further ones.

    Triton clients send the defaults of unsupported ones.
    """

    random_seed: Annotated[Seed, about("Another name of seed.")] = None
    end_id: Annotated[TokenId, about("A token that ends the text; -1 for none at all.")] = None
    pad_id: Annotated[TokenId, about("Without effect, since texts have no padding.")] = None
    exclude_input_in_output: Annotated[bool | None, about("The opposite of return_full_text.")] = None
    return_finish_reason: Annotated[bool | None, about("Whether the answer has finish_reason.")] = None
    return_num_input_tokens: Annotated[bool | None, about("Whether the answer has num_input_tokens.")] = None
    return_num_output_tokens: Annotated[bool | None, about("Whether the answer has num_output_tokens.")] = None
    bad_words: Annotated[Json, only("", [], because="the service can't exclude words from a text")] = None
    best_of: Single = None
    beam_width: Single = None
    length_penalty: Single = None
    use_beam_search: Unsupported = None
    early_stopping: Unsupported = None
    include_stop_str_in_output: Unsupported = None
    detokenize: Standard = None
    skip_special_tokens: Standard = None
    spaces_between_special_tokens: Standard = None
    return_logprobs: Unsupported = None
    return_cumulative_logprob: Unsupported = None
    return_log_probs: Unsupported = None
    return_context_logits: Unsupported = None
    return_generation_logits: Unsupported = None


class GenerateBody(BackendParameters, kw_only=True):
    """A request for text. Parameters may be fields of the body, or of ``parameters``."""

    text_input: Annotated[
        str,
        about(
            "The prompt, also as a list of one.", shown=(str, Annotated[list[str], Meta(min_length=1, max_length=1)])
        ),
    ]
    id: Annotated[str | None, about("Name of the request, which the answer repeats.")] = None
    model_name: Annotated[Json, NO_EFFECT] = None
    model_version: Annotated[Json, NO_EFFECT] = None
    parameters: Annotated[dict[str, Json] | None, about("Parameters.", shown=(BackendParameters,))] = None
    sampling_parameters: Annotated[str | None, about("JSON text with the fields of vLLM's SamplingParams.")] = None


FORM: Final = Form(GenerateBody)
REFUSED: Final = ("logprobs", PROMPT_LOGPROBS, "truncate_prompt_tokens", "image", "lora_name")
PARAMETERS: Final = frozenset((*Form(BackendParameters).names, SAMPLING, *REFUSED))
"""Parameters of Triton's vLLM and TensorRT-LLM backends, which are refused if the service lacks them."""
ABOUT: Final = ("id", "model_name", "model_version")
ENVELOPE: Final = frozenset(GenerateBody.__struct_fields__) - frozenset(BackendParameters.__struct_fields__)
"""Fields of the body alone."""

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
    """A generation request. ``stream`` requests a stream, ``extra`` lists the extra outputs, and ``id`` is the client's
    name of the request."""

    request: GenerationRequest
    stream: bool
    extra: Collection[str]
    id: str | None = None


def _read(service: Service, call: Call, route: str) -> tuple[GenerativeModel, GenerateRequest, dict[str, Json]]:
    """Parses the model, the request and the first fields of each response. Raises RequestError."""
    chosen = service.models.choose(call.path["model"], call.context, call.path.get("version", ""))
    model = generative(chosen, route)
    payload = expect(call.json(), dict, "body", f'an object with "{PROMPT}"')
    asked = read_body(model.task, payload, call.context, streamed=route == "generate_stream")
    head: dict[str, Json] = {"model_name": call.context.model_name, "model_version": model.describe().version}
    return model, asked, {"id": asked.id, **head} if asked.id else head


def read_body(
    task: TextGeneration, payload: Mapping[str, Json], context: Context, streamed: bool | None = None
) -> GenerateRequest:
    """Reads a body, or tensors by name. Sets ``context.field_names``.

    ``streamed`` is true for generate_stream, false for generate, and None for requests with tensors. Raises
    RequestError for an invalid field.
    """
    merged, client_paths, sampled = _merge(payload)
    context.field_names = Names(client_paths)
    body = FORM.read(merged, path=("parameters",))
    names = FORM.aliases(merged)
    if sampled and task.settings.generation.top_k == GenerationSettings().top_k and body.top_k is None:
        body.top_k = 0  # vLLM's default, unless the client or operator sets top_k
    _convert(body, names)
    stream = (streamed or False) if body.stream is None else body.stream
    _set_full_text(body, stream if streamed is None else streamed)
    request = task.convert(body, names)
    request = replace(request, prompts=[body.text_input], name=PROMPT, single=True)
    extra = [name for name, switch in EXTRA_OUTPUTS.items() if getattr(body, switch)]
    return GenerateRequest(request, stream, extra, body.id)


def _normalize(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Parses numbers in strings, as vLLM's backend does, and removes nulls and empty lists of words."""
    return {
        name: _number(value) if name in NUMBERS and isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None and not (name == STOP_WORDS and value in ("", []))
    }


def _number(text: str) -> Json:
    """Parses a number. Returns other text unchanged, and the task rejects this text later."""
    try:
        value = orjson.loads(text) if len(text) <= 40 else None
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


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


def _merge(payload: Mapping[str, Json]) -> tuple[dict[str, Json], dict[Path, Path], bool]:
    """Merges the parameters of a body, of its ``parameters`` and of ``sampling_parameters``. Equal values may repeat.

    Returns the body, the client's path of each field, and whether ``sampling_parameters`` enable sampling. Raises
    InvalidInput or TooLarge.
    """
    merged = _normalize(payload)
    prompt = merged.get(PROMPT)
    if isinstance(prompt, list) and len(prompt) == 1:  # a tensor of one element may be a list or a string
        merged[PROMPT] = prompt[0]
    inner = expect(merged.pop("parameters", None), dict | None, "parameters", "an object")
    nested = _normalize(inner or {})
    paths: dict[Path, Path] = {("parameters", name): (name,) for name in (PROMPT, *merged)}
    source: Path = (SAMPLING,) if SAMPLING in merged else ("parameters", SAMPLING)
    texts = [one.pop(SAMPLING) for one in (merged, nested) if SAMPLING in one]
    if len(texts) == 2:
        _check_equal((SAMPLING,), texts[0], texts[1], "another one in parameters")
    sampling: dict[str, Json] = {}
    if texts and texts[0] != "":
        sampling = _normalize(json_parameters(expect(texts[0], str, source, "JSON text"), source))
    for fields, parent in ((nested, ("parameters",)), (sampling, source)):
        if misplaced := fields.keys() & ENVELOPE:
            raise unknown_fields(sorted(misplaced), sorted(PARAMETERS), parent)
        for name, value in fields.items():
            _check_equal((*parent, name[:40]), value, merged.setdefault(name, value), "two in the request")
    paths |= {("parameters", name): (*source, name) for name in sampling}
    return merged, paths, not {"temperature", "top_p", "min_p"}.isdisjoint(sampling)


def _check_equal(path: Path, value: Json, other: Json, got: str) -> None:
    """Raises InvalidInput for a field whose value is also in another field, and differs there."""
    if other is not None and other != value:
        raise InvalidInput(path, "one value", got)


def _convert(body: BackendParameters, names: dict[str, str]) -> None:
    """Converts TensorRT-LLM's parameters to the task's. Adds the client's names of these. Raises InvalidInput."""
    if body.random_seed is not None:
        _check_equal(("parameters", "random_seed"), body.random_seed, body.seed, "another one in seed")
        body.seed, names["seed"] = body.random_seed, "random_seed"
    if body.end_id == NO_TOKEN:
        _check_equal(("parameters", "end_id"), True, body.ignore_eos, "another one in ignore_eos")
        body.ignore_eos, names["ignore_eos"] = True, "end_id"
    elif body.end_id is not None:
        if body.stop_token_ids is None:
            names |= {"stop_token_ids": "end_id"}
        body.stop_token_ids = [*(body.stop_token_ids or ()), body.end_id]


def _set_full_text(body: BackendParameters, streamed: bool) -> None:
    """Converts ``exclude_input_in_output`` to ``return_full_text``. A stream omits the prompt by default."""
    exclude = body.exclude_input_in_output
    if exclude is not None:
        path = ("parameters", "exclude_input_in_output")
        _check_equal(path, not exclude, body.return_full_text, "another one in return_full_text")
        body.return_full_text = not exclude
    elif streamed and body.return_full_text is None:
        body.return_full_text = False


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


class GenerateResponse(Body):
    """An answer, or an event of a stream. With several texts of the prompt, the fields of each are lists."""

    model_name: str
    model_version: str
    text_output: str | list[str]
    id: str | UnsetType = UNSET
    choice: Annotated[int | UnsetType, about("Index of the text in a stream of several.")] = UNSET
    finish_reason: str | list[str] | UnsetType = UNSET
    num_input_tokens: int | UnsetType = UNSET
    num_output_tokens: int | list[int] | UnsetType = UNSET
