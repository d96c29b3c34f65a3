"""vLLM's render routes: the token ids of the prompts that a model gets, as ``vllm launch render`` answers them.

    POST /v1/completions/render         {"prompt"}, a body of /v1/completions            -> [{"token_ids", ...}]
    POST /v1/chat/completions/render    {"messages"}, a body of /v1/chat/completions     -> {"token_ids", ...}

Routers send the bodies of their clients, which the model's server answers later. So all of vLLM's fields are accepted,
unknown ones without effect. An answer is a body for vLLM's /inference/v1/generate. Its ``sampling_params`` have only
the values that differ from vLLM's defaults.

Source: vllm/entrypoints/scale_out/render and token_in_token_out/protocol.py of https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final

import orjson

from hf_transformer.api.bodies import choose_model, read_texts
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import DialectRoute
from hf_transformer.api.error_forms import render_error
from hf_transformer.api.errors import expect
from hf_transformer.api.openai.chat import render_prompt, require_template
from hf_transformer.api.openai.tools import read_tools
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Models, Service, generative
from hf_transformer.api.tokenize import check_ids, off_loop
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, Path, TooLarge, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.protocol.server_codec import note_unknown
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.paths import EACH, TOP_LEVEL
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds, Tokenization

TRUNCATE_PROMPT_TOKENS = "truncate_prompt_tokens"
Kind = tuple[type | UnionType, str]
NUMBER: Final[Kind] = (int | float, "a number")
COUNT: Final[Kind] = (int, "a whole number")
FLAG: Final[Kind] = (bool, "true or false")
LIST: Final[Kind] = (list, "a list")
OBJECT: Final[Kind] = (dict, "an object")
TEXT: Final[Kind] = (str, "a string")
TEXTS: Final[Kind] = (str | list, "a string or a list of strings")

SAMPLING: Mapping[str, tuple[Kind, Json]] = {
    "n": (COUNT, 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_p"), (NUMBER, 0.0)),
    **dict.fromkeys(("repetition_penalty", "temperature", "top_p"), (NUMBER, 1.0)),
    "top_k": (COUNT, 0),
    "seed": (COUNT, None),
    "stop": (TEXTS, []),
    "stop_token_ids": (LIST, []),
    "ignore_eos": (FLAG, False),
    "min_tokens": (COUNT, 0),
    "prompt_logprobs": (COUNT, None),
    "logprob_token_ids": (LIST, []),
    "skip_special_tokens": (FLAG, True),
    "spaces_between_special_tokens": (FLAG, True),
    "include_stop_str_in_output": (FLAG, False),
    "structured_outputs": (OBJECT, None),
    "logit_bias": (OBJECT, None),
    "bad_words": (LIST, []),
    "allowed_token_ids": (LIST, None),
    "thinking_token_budget": (COUNT, None),
    "repetition_detection": (OBJECT, None),
}
"""Fields of a body that are fields of vLLM's SamplingParams, with their types and defaults there."""
PASSED: Mapping[str, tuple[Kind, Json]] = {
    "return_token_ids": (FLAG, None),
    "stream": (FLAG, False),
    "stream_options": (OBJECT, None),
    "cache_salt": (TEXT, None),
    "priority": (COUNT, 0),
    "kv_transfer_params": (OBJECT, None),
    "ec_transfer_params": (OBJECT, None),
}
"""Fields of a body that the answer repeats."""
LENGTH = (TRUNCATE_PROMPT_TOKENS, "truncation_side", "add_special_tokens", "return_token_offsets")
COMMON = ("model", "request_id", "response_format", "logprobs", "max_tokens", "echo", "user", *LENGTH)
COMPLETIONS = ("prompt", *COMMON, *SAMPLING, *PASSED)
CHAT_FIELDS = (
    *("messages", "tools", "documents", "chat_template", "chat_template_kwargs", "add_generation_prompt"),
    *("continue_final_message", "reasoning_effort"),
)
"""Fields of a body that render its chat."""
CHAT = (
    *CHAT_FIELDS,
    *("max_completion_tokens", "top_logprobs", "tool_choice", "parallel_tool_calls", "include_reasoning"),
)
FINAL_ONLY, DELTA = 2, 1
"""Values of vLLM's RequestOutputKind."""


def _read(
    service: Service, call: Call, payload: Mapping[str, Json], known: Sequence[str]
) -> tuple[GenerativeModel, Parameters]:
    """Returns the model and the known fields of a body. Raises RequestError."""
    call.context.field_names = TOP_LEVEL
    present = {name: value for name, value in payload.items() if value is not None}
    note_unknown(present, known, call.context.ignored)
    parameters = Parameters({name: value for name, value in present.items() if name in known}, known)
    name = _served_name(service.models, parameters.string("model"))
    return generative(choose_model(service, call, name, GENERATIVE), "render"), parameters


def _served_name(models: Models, name: str | None) -> str | None:
    """Returns the served name for the id of a model on the hub, ORG/NAME: that of --model_id, else NAME."""
    if name is None or "/" not in name or name in models.names:
        return name
    short = name.rpartition("/")[2]
    by_id = (model.name for model in models.served if model.identity.model_id == name)
    return next(by_id, short if short in models.names else name)


async def completions(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns one request per prompt, in a list."""
    model, parameters = _read(service, call, payload, COMPLETIONS)

    def read_ids(ids: list[Json], path: Path) -> TokenIds:
        return TokenIds(tuple(ids))

    prompts, _ = read_texts(("prompt",), parameters.get("prompt"), call.budget, read_ids)
    if prompts == [""]:
        raise InvalidInput("prompt", "a prompt", "an empty one")
    special = parameters.flag("add_special_tokens", True) if "add_special_tokens" in parameters else None
    encodings = await _encode(service, model, call, parameters, prompts, special, "prompt")
    logprobs = _value(parameters, "logprobs", COUNT, None)
    limit = _value(parameters, "max_tokens", COUNT, 16)
    name = f"cmpl-{_request_id(call, parameters)}"
    answers = []
    for index, encoding in enumerate(encodings):
        sampling = _sampling(model, parameters, encoding, limit, logprobs, "prompt")
        request_id = name if len(encodings) == 1 else f"{name}-{index}"
        answers.append(_request(parameters, request_id, encoding, sampling))
    # Each answer repeats the fields of the body, which are as large as its client makes them.
    repeated = len(orjson.dumps({**answers[0], "token_ids": None, "token_offsets": None})) * len(answers)
    if len(answers) > 1 and repeated > service.max_bytes:
        expected = f"other fields that take at most {service.max_bytes} bytes for all prompts (--max_request_bytes)"
        raise TooLarge("prompt", expected, str(repeated))
    call.budget.hold(repeated, "prompt")
    call.context.values = call.context.tokens
    return await reply_arrays(answers, call.context, service.executor)


async def chat(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the request for a chat."""
    model, parameters = _read(service, call, payload, (*COMPLETIONS[1:], *CHAT))
    prompt = await render_chat(service, call, model, parameters)
    special = parameters.flag("add_special_tokens", False)
    [encoding] = await _encode(service, model, call, parameters, [prompt], special, "messages")
    enabled, top = parameters.flag("logprobs", False), _value(parameters, "top_logprobs", COUNT, 0)
    limit = _value(parameters, "max_completion_tokens", COUNT, _value(parameters, "max_tokens", COUNT, None))
    sampling = _sampling(model, parameters, encoding, limit, top if enabled else None, "messages")
    request_id = f"chatcmpl-{_request_id(call, parameters)}"
    return await reply_arrays(_request(parameters, request_id, encoding, sampling), call.context, service.executor)


async def render_chat(service: Service, call: Call, model: GenerativeModel, parameters: Parameters) -> str:
    """Renders ``messages`` as vLLM does, as a prompt that contains its special tokens. Raises InvalidInput or
    TooLarge."""
    template = require_template(model)
    if "chat_template" in parameters:
        raise InvalidInput("chat_template", "no template", hint="the service renders only templates of its operator")
    if parameters.flag("continue_final_message", False) and parameters.flag("add_generation_prompt", True):
        raise InvalidInput("continue_final_message", "false", "true", 'or send "add_generation_prompt": false')
    tools = read_tools(parameters.get("tools"), call.limits)
    shown = tools if template.supports_tools else []
    return await render_prompt(call, template, parameters, shown, tool_form=_as_vllm, **_variables(parameters))


def _as_vllm(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Returns a tool with the fields, order and nulls with which vLLM gives it to a template, its schema as sent."""
    function = tool["function"]
    names = ("name", "description", "parameters", *(("strict",) if "strict" in function else ()))
    return {"type": "function", "function": {name: function.get(name) for name in names}}


def _variables(parameters: Parameters) -> dict[str, Json]:
    """Returns the template's variables from fields of their own. A reasoning effort also enables thinking."""
    variables: dict[str, Json] = {}
    if "documents" in parameters:
        variables["documents"] = documents = _value(parameters, "documents", LIST, None)
        for index, document in enumerate(documents):
            expect(document, dict, ("documents", index), "an object")
    if (effort := parameters.string("reasoning_effort")) is not None:
        variables["reasoning_effort"] = effort
        if "enable_thinking" not in (parameters.get("chat_template_kwargs") or {}):
            variables["enable_thinking"] = effort != "none"
    return variables


def _request_id(call: Call, parameters: Parameters) -> str:
    """Returns the id in the header X-Request-Id, else in the body, else the service's own."""
    own = parameters.string("request_id")
    return call.context.request_id if own is None or b"x-request-id" in call.headers else own


# Tokens


async def _encode(
    service: Service,
    model: GenerativeModel,
    call: Call,
    parameters: Parameters,
    prompts: Sequence[TextInput],
    special: bool | None,
    name: str,
) -> list[Encoding]:
    """Tokenizes prompts, and truncates them to ``truncate_prompt_tokens``. ``name`` is the field of the prompts."""
    tokenizer = model.tokenizer
    length, side = _truncation(parameters, tokenizer.max_length), parameters.choice("truncation_side", "", SIDES)
    detail = length is not None or parameters.flag("return_token_offsets", False)
    call.context.field_names = TOP_LEVEL.then({("instances",): (name,), ("instances", EACH): (name,)})
    options = Tokenization(detail, whole=True, special_tokens=special, token_values=3 if detail else 1)
    # The details of an encoding look up each id, so the ids have to be checked before.
    ids = [prompt for prompt in prompts if isinstance(prompt, TokenIds)]
    await off_loop(service.executor, sum(len(prompt.ids) for prompt in ids), lambda: check_ids(ids, name, tokenizer))
    encodings = [windows[0] for windows in await model.encode(prompts, options, call.context)]
    call.context.instances, call.context.tokens = len(prompts), sum(map(len, encodings))
    if length is None:
        return encodings
    return [_truncate(encoding, length, side) for encoding in encodings]


SIDES = ("", "left", "right")


def _truncation(parameters: Parameters, maximum: int) -> int | None:
    """Returns the number of tokens to keep, or None. -1 leaves room for a new token. Raises InvalidInput."""
    if TRUNCATE_PROMPT_TOKENS not in parameters:
        return None
    count = parameters.integer(TRUNCATE_PROMPT_TOKENS, -1, -1)
    if not -1 <= count <= maximum or count == 0:
        expected = f"a number of tokens up to {maximum}, or -1 for the model's length"
        raise InvalidInput(TRUNCATE_PROMPT_TOKENS, expected, str(count))
    return maximum - 1 if count == -1 else count


def _truncate(encoding: Encoding, length: int, side: str) -> Encoding:
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


def _value(parameters: Parameters, name: str, kind: Kind, default: Json) -> Json:
    """Returns the value of a field. Raises InvalidInput for another type."""
    value = parameters.get(name)
    if value is None:
        return default
    if isinstance(value, bool) is not (kind is FLAG):
        raise InvalidInput(name, kind[1], describe(value))
    return expect(value, kind[0], name, kind[1])


def _sampling(
    model: GenerativeModel, parameters: Parameters, encoding: Encoding, limit: int | None, logprobs: Json, name: str
) -> dict[str, Json]:
    """Returns vLLM's SamplingParams of a request, without defaults. Raises InvalidInput, and TooLarge for a prompt that
    leaves no room for a new token."""
    maximum = model.tokenizer.max_length
    if limit == 0 and parameters.flag("echo", False):
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
    values = {field: _value(parameters, field, kind, default) for field, (kind, default) in SAMPLING.items()}
    sampling = {field: value for field, value in values.items() if value != SAMPLING[field][1]}
    if parameters.flag("echo", False):
        sampling.setdefault("prompt_logprobs", logprobs)
    sampling["logprobs"] = None if "logprob_token_ids" in sampling else logprobs
    sampling["max_tokens"] = room if limit is None else min(room, limit)
    sampling["output_kind"] = DELTA if parameters.flag("stream", False) else FINAL_ONLY
    if "structured_outputs" not in sampling and (form := _form(parameters)):
        sampling["structured_outputs"] = form
    return {field: value for field, value in sampling.items() if value is not None}


def _form(parameters: Parameters) -> Json:
    """Returns ``response_format`` in the form of ``structured_outputs``; None for free text."""
    form = _value(parameters, "response_format", OBJECT, {})
    if form.get("type") == "json_object":
        return {"json_object": True}
    if form.get("type") == "json_schema":
        schema = expect(form.get("json_schema"), dict, ("response_format", "json_schema"), "an object")
        return {"json": schema.get("schema")}
    return None


def _request(
    parameters: Parameters, request_id: str, encoding: Encoding, sampling: Mapping[str, Json]
) -> dict[str, Any]:
    """Returns a body for vLLM's /inference/v1/generate."""
    passed = {name: _value(parameters, name, kind, default) for name, (kind, default) in PASSED.items()}
    if not passed["stream"]:
        passed["stream_options"] = None
    offsets = encoding.offsets if parameters.flag("return_token_offsets", False) else None
    nothing = dict.fromkeys(
        ("features", "content_parts", "reasoning_ended", "reasoning_parser_kwargs", "parse_context")
    )
    return {
        "request_id": request_id,
        "token_ids": encoding.ids,
        "token_offsets": offsets,
        **nothing,
        "sampling_params": sampling,
        "model": parameters.get("model"),
        "output_mode": "tokens",
        **passed,
    }


ROUTES = tuple(
    DialectRoute(path=f"/v1/{path}/render", dialect="vllm", handle=handle, render_error=render_error)
    for path, handle in (("completions", completions), ("chat/completions", chat))
)
