"""Rendered prompts of all APIs: bodies for vLLM's /inference/v1/generate, with the fields that they repeat.

A route for each API renders them. ``sampling_params`` have only the values that differ from vLLM's defaults.

Source: vllm/entrypoints/scale_out/render and token_in_token_out/protocol.py of https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Struct, field, to_builtins

from hf_transformer.api.bodies import OpenModelBody, Prompts, choose_model
from hf_transformer.api.call import Call
from hf_transformer.api.chat_tools import Tools
from hf_transformer.api.chats import (
    Documents,
    FinalMessage,
    GenerationPrompt,
    Messages,
    OwnTemplate,
    ReasoningEffort,
    TemplateVariables,
)
from hf_transformer.api.errors import expect
from hf_transformer.api.images import ChatImages, ImageFeatures
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Models, Service, generative
from hf_transformer.api.tokenize import check_ids, off_loop
from hf_transformer.errors import ContextLengthExceeded, InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.types.fields import NO_EFFECT, Body, about
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds, Tokenization

TRUNCATE_PROMPT_TOKENS: Final = "truncate_prompt_tokens"
Number: TypeAlias = Annotated[int | float, about(expected="a number")]

REPEATED: Final = about("Repeated by the answer.")
SAMPLED: Final = about("As in vLLM's SamplingParams.")
CHOICE: Final = about("none leaves the tools out of the prompt of a model with a predictor.")


class PassedFields(OpenModelBody):
    """Fields of a body that the answer repeats, with vLLM's defaults."""

    return_token_ids: Annotated[bool | None, REPEATED] = None
    stream: Annotated[bool, REPEATED] = False
    stream_options: Annotated[dict[str, Json] | None, REPEATED] = None
    cache_salt: Annotated[str | None, REPEATED] = None
    priority: Annotated[int, REPEATED] = 0
    kv_transfer_params: Annotated[dict[str, Json] | None, REPEATED] = None
    ec_transfer_params: Annotated[dict[str, Json] | None, REPEATED] = None


class SamplingParamsFields(PassedFields):
    """Fields of a body that are fields of vLLM's SamplingParams, with their defaults there."""

    n: Annotated[int, SAMPLED] = 1
    presence_penalty: Annotated[Number, SAMPLED] = 0.0
    frequency_penalty: Annotated[Number, SAMPLED] = 0.0
    min_p: Annotated[Number, SAMPLED] = 0.0
    repetition_penalty: Annotated[Number, SAMPLED] = 1.0
    temperature: Annotated[Number, SAMPLED] = 1.0
    top_p: Annotated[Number, SAMPLED] = 1.0
    top_k: Annotated[int, SAMPLED] = 0
    seed: Annotated[int | None, SAMPLED] = None
    stop: Annotated[str | list[Json], SAMPLED, about(expected="a string or a list of strings")] = field(
        default_factory=list
    )
    stop_token_ids: Annotated[list[Json], SAMPLED] = field(default_factory=list)
    ignore_eos: Annotated[bool, SAMPLED] = False
    min_tokens: Annotated[int, SAMPLED] = 0
    prompt_logprobs: Annotated[int | None, SAMPLED] = None
    logprob_token_ids: Annotated[list[Json], SAMPLED] = field(default_factory=list)
    skip_special_tokens: Annotated[bool, SAMPLED] = True
    spaces_between_special_tokens: Annotated[bool, SAMPLED] = True
    include_stop_str_in_output: Annotated[bool, SAMPLED] = False
    structured_outputs: Annotated[dict[str, Json] | None, SAMPLED] = None
    logit_bias: Annotated[dict[str, Json] | None, SAMPLED] = None
    bad_words: Annotated[list[Json], SAMPLED] = field(default_factory=list)
    allowed_token_ids: Annotated[list[Json] | None, SAMPLED] = None
    thinking_token_budget: Annotated[int | None, SAMPLED] = None
    repetition_detection: Annotated[dict[str, Json] | None, SAMPLED] = None


PASSED: Final = [name for name in PassedFields.__struct_fields__ if name not in OpenModelBody.__struct_fields__]
DEFAULTS: Final = SamplingParamsFields()
SAMPLING: Final = {
    name: getattr(DEFAULTS, name) for name in DEFAULTS.__struct_fields__ if name not in PassedFields.__struct_fields__
}
"""The fields of SamplingParams with their defaults."""


class RenderBody(SamplingParamsFields):
    """Further fields of both routes."""

    request_id: Annotated[str | None, about("Name of the request, unless X-Request-Id has it.")] = None
    response_format: Annotated[dict[str, Json] | None, about("Form of the text.")] = None
    max_tokens: Annotated[int | None, about("Maximum number of new tokens of a text.")] = None
    echo: Annotated[bool, about("Whether the answer includes the prompt.")] = False
    user: Annotated[Json, NO_EFFECT] = None
    truncate_prompt_tokens: Annotated[int | None, about("Maximum length of a prompt; -1 for the model's.")] = None
    truncation_side: Annotated[Literal["left", "right"] | None, about("The side of a prompt that is cut.")] = None
    add_special_tokens: Annotated[bool | None, about("Whether the tokenizer adds special tokens.")] = None
    return_token_offsets: Annotated[bool, about("Whether the answer has the tokens' offsets in the text.")] = False


class RenderCompletionRequest(RenderBody, kw_only=True):
    """A body of completions."""

    prompt: Prompts
    logprobs: Annotated[int | None, about("Likeliest tokens beside each token.")] = None


class RenderChatRequest(RenderBody, kw_only=True):
    """A body of chat completions."""

    messages: Messages
    tools: Tools = None
    documents: Documents = None
    chat_template: OwnTemplate = None
    chat_template_kwargs: TemplateVariables = None
    add_generation_prompt: GenerationPrompt = True
    continue_final_message: FinalMessage = False
    reasoning_effort: ReasoningEffort = None
    max_completion_tokens: Annotated[int | None, about("The same as max_tokens, which it precedes.")] = None
    logprobs: Annotated[bool, about("Whether tokens have log probabilities.")] = False
    top_logprobs: Annotated[int, about("Likeliest tokens beside each token.")] = 0
    tool_choice: Annotated[Json, CHOICE] = None
    parallel_tool_calls: Annotated[Json, NO_EFFECT] = None
    include_reasoning: Annotated[Json, NO_EFFECT] = None


FINAL_ONLY, DELTA = 2, 1
"""Values of vLLM's RequestOutputKind."""


def choose_served(service: Service, call: Call, name: str | None) -> GenerativeModel:
    """Returns the model of this name or id on the hub. Raises RequestError."""
    name = _served_name(service.models, name)
    return generative(choose_model(service, call, name, GENERATIVE), "render")


def _served_name(models: Models, name: str | None) -> str | None:
    """Returns the served name for the id of a model on the hub, ORG/NAME: that of --model_id, else NAME."""
    if name is None or "/" not in name or name in models.names:
        return name
    short = name.rpartition("/")[2]
    by_id = (model.name for model in models.served if model.identity.model_id == name)
    return next(by_id, short if short in models.names else name)


def request_id_of(call: Call, body: RenderBody) -> str:
    """Returns the id in the header X-Request-Id, else in the body, else the service's own."""
    own = body.request_id
    return call.context.request_id if own is None or b"x-request-id" in call.headers else own


# Tokens


async def encode_prompts(
    service: Service,
    model: GenerativeModel,
    call: Call,
    body: RenderBody,
    prompts: Sequence[TextInput],
    special: bool | None,
    name: str,
) -> list[Encoding]:
    """Tokenizes prompts, and truncates them to ``truncate_prompt_tokens``. ``name`` is the field of the prompts."""
    tokenizer = model.tokenizer
    length = _truncation(body.truncate_prompt_tokens, tokenizer.max_length)
    detail = length is not None or body.return_token_offsets
    call.context.field_names = TOP_LEVEL.then({("instances",): (name,), ("instances", EACH): (name,)})
    options = Tokenization(detail, whole=True, special_tokens=special, token_values=3 if detail else 1)
    # The details of an encoding look up each id, so the ids have to be checked before.
    ids = [prompt for prompt in prompts if isinstance(prompt, TokenIds)]
    await off_loop(service.executor, sum(len(prompt.ids) for prompt in ids), lambda: check_ids(ids, name, tokenizer))
    encodings = [windows[0] for windows in await model.encode(prompts, options, call.context)]
    call.context.instances, call.context.tokens = len(prompts), sum(map(len, encodings))
    if length is None:
        return encodings
    return [_truncate(encoding, length, body.truncation_side) for encoding in encodings]


def _truncation(count: int | None, maximum: int) -> int | None:
    """Returns the number of tokens to keep, or None. -1 leaves room for a new token. Raises InvalidInput."""
    if count is None:
        return None
    if not -1 <= count <= maximum or count == 0:
        expected = f"a number of tokens up to {maximum}, or -1 for the model's length"
        raise InvalidInput(TRUNCATE_PROMPT_TOKENS, expected, str(count))
    return maximum - 1 if count == -1 else count


def _truncate(encoding: Encoding, length: int, side: str | None) -> Encoding:
    """Keeps ``length`` tokens: all of one side, or else the special tokens that the tokenizer added and the last ones,
    as vLLM's tokenizers do."""
    excess, count = len(encoding) - length, len(encoding)
    if excess <= 0:
        return encoding
    cut = set(range(excess)) if side != "right" else set(range(length, count))
    if not side and encoding.special_mask is not None:
        cut = set([index for index, special in enumerate(encoding.special_mask) if not special][:excess])
    kept, offsets = [index for index in range(count) if index not in cut], encoding.offsets
    return Encoding(
        [encoding.ids[index] for index in kept],
        [],
        truncated=True,
        offsets=None if offsets is None else [offsets[index] for index in kept],
    )


# Answers


def sampling_params(
    model: GenerativeModel, body: RenderBody, encoding: Encoding, limit: int | None, logprobs: Json, name: str
) -> dict[str, Json]:
    """Returns vLLM's SamplingParams of a request, without defaults. Raises InvalidInput, and TooLarge for a prompt that
    leaves no room for a new token."""
    maximum = model.tokenizer.max_length
    if limit == 0 and body.echo:
        limit = 1  # the model's server needs a token to answer with the prompt
    if limit is not None and limit < 1:
        raise InvalidInput("max_tokens", "1 or more", str(limit))
    room = maximum - (len(encoding) if model.task.knows_full_text else 0)
    if not encoding.ids:
        raise InvalidInput(name, "a prompt of at least one token", "none")
    if room < 1 or len(encoding) > maximum:
        hint = f"the model's {maximum} tokens include the new ones"
        expected = f"a prompt of at most {maximum - 1} tokens"
        raise ContextLengthExceeded(name, expected, str(len(encoding)), hint, limit=maximum)
    values = {field: getattr(body, field) for field in SAMPLING}
    sampling: dict[str, Json] = {field: value for field, value in values.items() if value != SAMPLING[field]}
    if body.echo:
        sampling.setdefault("prompt_logprobs", logprobs)
    sampling["logprobs"] = None if "logprob_token_ids" in sampling else logprobs
    sampling["max_tokens"] = room if limit is None else min(room, limit)
    sampling["output_kind"] = DELTA if body.stream else FINAL_ONLY
    if "structured_outputs" not in sampling and (form := _form(body.response_format or {})):
        sampling["structured_outputs"] = form
    return {field: value for field, value in sampling.items() if value is not None}


def _form(form: Mapping[str, Json]) -> Json:
    """Returns ``response_format`` in the form of ``structured_outputs``; None for free text."""
    if form.get("type") == "json_object":
        return {"json_object": True}
    if form.get("type") == "json_schema":
        schema = expect(form.get("json_schema"), dict, ("response_format", "json_schema"), "an object")
        return {"json": schema.get("schema")}
    return None


def generate_request(
    body: RenderBody, request_id: str, encoding: Encoding, sampling: Mapping[str, Json]
) -> dict[str, Any]:
    """Returns a body for vLLM's /inference/v1/generate."""
    passed = {name: getattr(body, name) for name in PASSED}
    if not passed["stream"]:
        passed["stream_options"] = None
    offsets = encoding.offsets if body.return_token_offsets else None
    nothing = dict.fromkeys(
        ("features", "content_parts", "reasoning_ended", "reasoning_parser_kwargs", "parse_context")
    )
    return {
        "request_id": request_id,
        "token_ids": encoding.ids,
        "token_offsets": offsets,
        **nothing,
        "sampling_params": sampling,
        "model": body.model,
        "output_mode": "tokens",
        **passed,
    }


class RenderedRequest(Body):
    """A body for vLLM's /inference/v1/generate."""

    request_id: str
    token_ids: list[int]
    token_offsets: Annotated[
        list[list[int]] | None, about("Starts and ends of tokens in the text, if the request asks for them.")
    ]
    sampling_params: Annotated[dict[str, Json], about("vLLM's SamplingParams, without its defaults.")]
    model: str | None
    output_mode: Literal["tokens"]
    return_token_ids: bool | None
    stream: bool
    stream_options: dict[str, Json] | None
    cache_salt: str | None
    priority: int
    kv_transfer_params: dict[str, Json] | None
    ec_transfer_params: dict[str, Json] | None
    features: ImageFeatures | None
    content_parts: None
    reasoning_ended: None
    reasoning_parser_kwargs: None
    parse_context: None


async def reply_rendered(
    service: Service,
    call: Call,
    model: GenerativeModel,
    body: RenderBody,
    prompt: str,
    *,
    request_id: str,
    limit: int | None,
    logprobs: int | None,
    name: str = "messages",
    special: bool = False,
    images: ChatImages | None = None,
) -> Response:
    """Answers with the request for a chat. ``name`` is the field of the chat, ``limit`` the number of new tokens,
    ``images`` has the chat's.

    ``special`` is whether the tokenizer adds special tokens, unless the body says it.
    """
    special = special if body.add_special_tokens is None else body.add_special_tokens
    if images and body.truncate_prompt_tokens is not None:
        raise InvalidInput(TRUNCATE_PROMPT_TOKENS, "no value beside images", str(body.truncate_prompt_tokens))
    [encoding] = await encode_prompts(service, model, call, body, [prompt], special, name)
    features = None
    if images:
        encoding, features = images.expand(encoding)
    sampling = sampling_params(model, body, encoding, limit, logprobs, name)
    answer = generate_request(body, request_id, encoding, sampling)
    if features is not None:
        answer["features"] = to_builtins(features)
    return await reply_arrays(answer, call.context, service.executor)


# Numbers of tokens


class TokenizeResponse(Struct):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


async def reply_tokens(
    service: Service,
    call: Call,
    model: Model,
    prompt: str,
    name: str,
    *,
    special: bool = False,
    strings: bool = False,
    images: ChatImages | None = None,
) -> Response:
    """Answers with the tokens of a prompt, as vLLM's /tokenize. ``name`` is the field of the prompt.

    ``special`` adds the tokenizer's special tokens, ``strings`` the names of tokens; ``images`` has the prompt's.
    """
    options = Tokenization(strings, whole=True, special_tokens=special, token_values=2)
    call.context.field_names = TOP_LEVEL.then({("instances",): (name,), ("instances", 0): (name,)})
    [[encoding]] = await model.encode([prompt], options, call.context)
    if images:
        if strings:
            raise InvalidInput("return_token_strs", "false beside images", "true")
        encoding, _ = images.expand(encoding)
    call.context.values = 2 * len(encoding)
    answer = {
        "count": len(encoding),
        "max_model_len": model.tokenizer.max_length,
        "tokens": encoding.ids,
        "token_strs": encoding.tokens if strings else None,
    }
    return await reply_arrays(answer, call.context, service.executor)
