"""OpenAI's chat completions: messages in, what the assistant says out, whole or as a stream.

    {"model": "m", "messages": [{"role": "user", "content": "..."}], "max_completion_tokens": null, "n": 1,
     "logprobs": false, "top_logprobs": 0 to 20, "tools": [...], "tool_choice": "auto" | "none", "stream": false, ...}
    -> {"id": "chatcmpl-...", "object": "chat.completion", "created", "model", "system_fingerprint": null,
        "choices": [{"index": 0, "message": {"role": "assistant", "content", "tool_calls", "function_call": null},
                     "logprobs": null, "finish_reason": "stop" | "length" | "tool_calls"}],
        "usage": {"prompt_tokens", "completion_tokens", "total_tokens"}}

The messages become a prompt by the model's chat template. See openai_generation.py for the other fields and the stream,
openai_messages.py for messages and tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from hf_transformer.api.base import Call, Model, Service
from hf_transformer.api.openai.bodies import find_model, named_as_sent, read_fields
from hf_transformer.api.openai.chat_form import ChatForm
from hf_transformer.api.openai.generation import (
    SHARED,
    Generating,
    generating_task,
    read_sampling,
    read_stream,
)
from hf_transformer.api.openai.messages import read_messages, read_tool_choice, read_tools
from hf_transformer.api.openai.unused import OF_CHATS, check_unused
from hf_transformer.api.streaming import StreamForm
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.protocol.json_text import JsonLimits
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Json, Response

FIELDS = (
    *SHARED,
    *OF_CHATS,
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
)
INLINE_BYTES = 20_000
"""Bodies of more bytes than this are rendered in a thread."""
OURS = ("messages", "tools", "add_generation_prompt", "self")
"""Variables of a template that a request can't set beside: it has them itself, or Jinja does."""


async def create(service: Service, call: Call) -> Response | StreamForm:
    """Answers one request.

    Raises:
        RequestError: a field is missing, not of its type, out of range, or can't be honoured.
    """
    with named_as_sent():
        fields = read_fields(call, FIELDS)
        check_unused(fields)
        model = find_model(service.models, fields, "chat/completions")
        given = Parameters(fields, FIELDS)
        stream, usage = read_stream(given)
        _check_response_format(given)
        sampling = read_sampling(
            given,
            generating_task(model),
            tokens=given.one_of("max_completion_tokens", "max_tokens"),
            logprobs=_read_logprobs(given),
        )
        one_call = not given.flag("parallel_tool_calls", True)
        tools = read_tools(given.get("tools"))
        may_call = read_tool_choice(given.get("tool_choice"), tools)
        render = _prompt(model, given, tools if may_call else [], call.limits)
        loop = asyncio.get_running_loop()
        prompt = render() if len(call.body) <= INLINE_BYTES else await loop.run_in_executor(service.executor, render)
    request = GenerationRequest(prompts=[prompt], sampling=sampling, special_tokens=False, name="messages", single=True)
    form = ChatForm(sampling.logprobs is not None, tools=may_call, one_call=one_call)
    answer = Generating(model, request, call.context, form, usage, "chatcmpl")
    return answer if stream else await answer.whole()


def _check_response_format(given: Parameters) -> None:
    """It changes nothing, so it has to ask for what is done anyway."""
    wanted = given.get("response_format")
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind != "text":
        shown = repr(kind[:40]) if isinstance(kind, str) else describe(wanted)
        raise InvalidInput(f"response_format: the model gives text alone, expected the type text, got {shown}")


def _read_logprobs(given: Parameters) -> tuple[int, str] | None:
    """How many tokens are told beside each, and the field that says so; None where none is told."""
    told = given.flag("logprobs", False)
    if "top_logprobs" not in given:
        return (0, "logprobs") if told else None
    count = given.integer("top_logprobs", 0, 0)
    if told:
        return count, "top_logprobs"
    if count:
        raise InvalidInput('parameters.top_logprobs: needs "logprobs": true')
    return None


def _prompt(model: Model, given: Parameters, tools: list[dict[str, Json]], limits: JsonLimits) -> Callable[[], str]:
    """What renders the prompt, in any thread; that raises InvalidInput where the template can't make one of this chat.

    Raises:
        InvalidInput: the model does not chat, or something is not what it has to be.
        TooLarge: the arguments of tool calls hold more than is taken.
    """
    template = model.chat_template
    if template is None:
        raise InvalidInput(
            f"model: {model.name!r} has no chat template, so it can't be asked in messages; ask it by completions, or "
            "start the service with --chat_template"
        )
    if tools and not template.supports_tools:
        raise InvalidInput(f"tools: the chat template of {model.name!r} does not know tools; leave them out")
    messages = read_messages(given.get("messages"), limits)
    more = given.get("chat_template_kwargs")
    if not isinstance(more, dict | None):
        raise InvalidInput(f"chat_template_kwargs: expected an object, got {describe(more)}")
    for name in more or ():
        if name in OURS:
            raise InvalidInput(f"chat_template_kwargs.{name}: is given by the request itself; leave it out")
    return partial(template.render, messages, tools=tools or None, add_generation_prompt=True, **(more or {}))
