"""OpenAI's chat completions: messages in, what the assistant says out, whole or as a stream.

    {"model": "m", "messages": [{"role": "user", "content": "..."}], "max_completion_tokens": null, "n": 1,
     "logprobs": false, "top_logprobs": 0 to 20, "tools": [...], "tool_choice": "auto" | "none", "stream": false, ...}
    -> {"id": "chatcmpl-...", "object": "chat.completion", "created", "model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content", "refusal": null, "tool_calls"},
                     "logprobs": null, "finish_reason": "stop" | "length" | "tool_calls"}],
        "usage": {"prompt_tokens", "completion_tokens", "total_tokens"}}

The model's chat template makes the prompt of messages and tools. See generation.py for the other fields and the stream.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import orjson

from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.errors import expect, renamed
from hf_transformer.api.openai.fields import as_sent, read_request, unused
from hf_transformer.api.openai.generation import DEFAULTS, SHARED, GeneratedAnswer, UsageChunks, logprob, read_stream
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.sampling import read_sampling
from hf_transformer.generation.tools import ToolCallParser
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.protocol.json_text import SMALL, JsonLimits, check_depth, check_size
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

if TYPE_CHECKING:
    pass  # it imports Jinja

OWN = (
    "messages max_tokens max_completion_tokens logprobs top_logprobs response_format tools tool_choice "
    "parallel_tool_calls chat_template_kwargs"
).split()
FIELDS = (*SHARED, *unused("chat/completions"), *OWN)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""The roles of messages, and what a template calls each: templates know the older name of developer."""
STRINGS = ("name", "tool_call_id", "reasoning_content", "reasoning")
"""Fields of a message that are strings; the last two are what a model thought, as vLLM and others hand it out."""
CACHE_CONTROL = "cache_control"
"""Marks of clients of Anthropic's models, on messages, parts and tools; what may be cached is cached anyway."""
IN_MESSAGES = ("role", "content", "tool_calls", "refusal", "annotations", CACHE_CONTROL, *STRINGS)
OURS = ("messages", "tools", "add_generation_prompt", "self")
"""Variables of a template that chat_template_kwargs can't set: the request has them itself, or Jinja does."""
MAX_TOOLS = 128
"""As many as OpenAI takes."""
INLINE_BYTES = 20_000
"""Bodies of more bytes than this are rendered in a thread."""


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a field that is missing, wrong, or can't be honoured."""
    with renamed(as_sent):
        served, given = read_request(service, call, "chat/completions", FIELDS)
        model = generative(served, "chat/completions")
        stream, usage = read_stream(given)
        _check_response_format(given.get("response_format"))
        sampling = read_sampling(
            given,
            DEFAULTS,
            model.task.settings.vocabulary.vocab_size,
            tokens=given.one_of("max_completion_tokens", "max_tokens"),
            logprobs=_read_logprobs(given),
        )
        one_call = not given.flag("parallel_tool_calls", True)
        tools = read_tools(given.get("tools"), call.limits)
        may_call = _read_tool_choice(given.get("tool_choice"), tools)
        render = _prompt(model, given, tools if may_call else [], call.limits)
        loop = asyncio.get_running_loop()
        prompt = render() if len(call.body) <= INLINE_BYTES else await loop.run_in_executor(service.executor, render)
    request = GenerationRequest(prompts=[prompt], sampling=sampling, special_tokens=False, name="messages", single=True)
    answer = ChatAnswer(model, request, call.context, usage, tools=may_call, one_call=one_call)
    return answer if stream else await answer.whole()


def _check_response_format(wanted: Json) -> None:
    """Raises InvalidInput for any format but text."""
    if wanted is None:
        return
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind != "text":
        got = describe(wanted if kind is None else kind, quote=True)
        raise InvalidInput.of(f"response_format: the model gives text alone, expected the type text, got {got}")


def _read_logprobs(given: Parameters) -> tuple[int, str] | None:
    """How many tokens are told beside each, and the field that says so; None where none is told."""
    told = given.flag("logprobs", False)
    if "top_logprobs" not in given:
        return (0, "logprobs") if told else None
    count = given.integer("top_logprobs", 0, 0)
    if told:
        return count, "top_logprobs"
    if count:
        raise InvalidInput.of('parameters.top_logprobs: needs "logprobs": true')
    return None


def _prompt(
    model: GenerativeModel, given: Parameters, tools: list[dict[str, Json]], limits: JsonLimits
) -> Callable[[], str]:
    """A function that renders the prompt, in any thread. Both raise InvalidInput; see also read_messages."""
    template = model.chat_template
    if template is None:
        raise InvalidInput.of(
            f"model: {model.name!r} has no chat template, so it can't be asked in messages; ask it by completions, or "
            "start the service with --chat_template"
        )
    if tools and not template.supports_tools:
        raise InvalidInput.of(f"tools: the chat template of {model.name!r} does not know tools; leave them out")
    messages = read_messages(given.get("messages"), limits)
    more = expect(given.get("chat_template_kwargs"), dict | None, "chat_template_kwargs", "an object")
    more = without_nulls(more or {})
    check_depth("chat_template_kwargs", more, limits)
    for name in more:
        if name in OURS:
            raise InvalidInput.of(f"chat_template_kwargs.{name}: is given by the request itself; leave it out")
    return partial(template.render, messages, tools=tools or None, add_generation_prompt=True, **more)


def without_nulls(given: Mapping[str, Json]) -> dict[str, Json]:
    """The fields without nulls, which clients send for fields that are not set."""
    return {name: value for name, value in given.items() if value is not None}


# Messages and tools


def read_messages(given: Json, limits: JsonLimits) -> list[dict[str, Json]]:
    """The messages as templates want them: contents are strings, and the arguments of tool calls objects.

    ``limits`` are those of a request's JSON: arguments are JSON in a string, which the body's own limits don't count.

    Raises:
        InvalidInput: a message is not what it has to be; the error says where, and never what was written.
        TooLarge: the arguments of all calls together hold more than the limits allow.
    """
    if not isinstance(given, list) or not given:
        found = "nothing" if given is None else "an empty list" if given == [] else describe(given)
        raise InvalidInput.of(f"messages: expected a list of messages, got {found}")
    called: dict[str, dict[str, Json]] = {}
    messages = [_read_message(one, f"messages[{index}]", called) for index, one in enumerate(given)]
    check_depth("messages", [one.get("tool_calls") for one in messages], limits)
    texts = [one["arguments"] for one in called.values() if isinstance(one["arguments"], str)]
    if sum(map(len, texts)) > SMALL:
        # They are parsed in this order: whatever an unclosed quote would hide comes after an error.
        check_size(" ".join(texts).encode(), limits)
    for where, function in called.items():
        arguments, where = function["arguments"], f"{where}.arguments"
        if isinstance(arguments, str):  # OpenAI's are JSON as text; templates write an object as JSON themselves
            try:
                arguments = orjson.loads(arguments or "{}")
            except orjson.JSONDecodeError:
                raise InvalidInput.of(
                    f"{where}: expected an object as JSON text, got a text that is not JSON"
                ) from None
        check_depth(where, arguments, limits)
        function["arguments"] = expect(arguments, dict, where, "an object as JSON text")
    return messages


def _read_message(given: Json, where: str, called: dict[str, dict[str, Json]]) -> dict[str, Json]:
    """A message. The functions that it calls are added to ``called``, by their names in errors, arguments unread."""
    message = without_nulls(expect(given, dict, where, "an object"))
    for name in message:
        if name not in IN_MESSAGES:
            raise InvalidInput.of(
                f"{where}.{name[:40]}: not understood here, expected some of {', '.join(IN_MESSAGES)}"
            )
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        got = "nothing" if role is None else describe(role, quote=True)
        raise InvalidInput.of(f"{where}.role: expected one of {', '.join(ROLES)}, got {got}")
    calls = message.get("tool_calls", [])
    if calls and role != "assistant":
        raise InvalidInput.of(f"{where}.tool_calls: only a message of the assistant has them")
    if message.get("annotations", []) != []:
        got = describe(message["annotations"])
        raise InvalidInput.of(
            f"{where}.annotations: they can't be told to the model, expected an empty list, got {got}"
        )
    if not isinstance(mark := message.get(CACHE_CONTROL, {}), dict) or mark.get("type") not in (None, "ephemeral"):
        raise InvalidInput.of(f'{where}.{CACHE_CONTROL}: expected {{"type": "ephemeral"}}, got {describe(mark)}')
    content = _read_content(message, where)
    if content is None and not calls:
        raise InvalidInput.of(f"{where}.content: expected a string or a list of parts, got nothing")
    text = _text_of("" if content is None else content, f"{where}.content")
    found: dict[str, Json] = {"role": ROLES[role], "content": text}
    for name in STRINGS:
        if name in message:
            found[name] = expect(message[name], str, f"{where}.{name}", "a string")
    if read := _read_calls(calls, f"{where}.tool_calls", called):  # templates may look for the name alone
        found["tool_calls"] = read
    return found


def _read_content(message: Mapping[str, Json], where: str) -> Json:
    """The content; the assistant may have a refusal in its place."""
    content, refusal = message.get("content"), message.get("refusal")
    if refusal is None:
        return content
    expect(refusal, str, f"{where}.refusal", "a string")
    if message["role"] != "assistant":
        raise InvalidInput.of(f"{where}.refusal: only a message of the assistant has one")
    if content in (None, "", []):
        return refusal
    if refusal:
        raise InvalidInput.of(f"{where}.refusal: beside a content, expected one of the two")
    return content


def _text_of(content: Json, where: str) -> str:
    """The text of a message, which may come in parts. Raises InvalidInput for any part that is not text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput.of(f"{where}: expected a string or a list of parts, got {describe(content)}")
    texts = []
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            got = f"one of type {kind[:40]!r}" if isinstance(kind, str) and kind != "text" else describe(part)
            raise InvalidInput.of(
                f'{where}[{number}]: expected a part {{"type": "text", "text": string}}, got {got}; '
                "the model reads text alone"
            )
        texts.append(part["text"])
    return "\n".join(texts)


def _read_calls(given: Json, where: str, called: dict[str, dict[str, Json]]) -> list[Json]:
    calls = []
    for index, call in enumerate(expect(given, list, where, "a list")):
        function = call.get("function") if isinstance(call, dict) else None
        here = f"{where}[{index}].function"
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidInput.of(f"{here}: expected an object with the string name, got {describe(function)}")
        called[here] = {"name": function["name"], "arguments": function.get("arguments")}
        calls.append(without_nulls(call) | {"function": called[here]})
    return calls


def read_tools(given: Json, limits: JsonLimits) -> list[dict[str, Json]]:
    """The tools that the model may call: functions. Templates write all of a tool into the prompt, so what says nothing
    is left out: nulls, but for those within a schema, and ``"strict": false``. Raises InvalidInput or TooLarge."""
    if given is None:
        return []
    if len(expect(given, list, "tools", "a list")) > MAX_TOOLS:
        raise TooLarge.of(f"tools: {len(given)} in a request, at most {MAX_TOOLS} are taken")
    check_depth("tools", given, limits)
    tools = []
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise InvalidInput.of(f'{where}: expected {{"type": "function", "function": ...}}, got {describe(tool)}')
        where, function = f"{where}.function", tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise InvalidInput.of(f"{where}: expected an object with a name, got {describe(function)}")
        if function.get("strict"):
            raise InvalidInput.of(f"{where}.strict: the model can't be held to a schema, expected false")
        expect(function.get("parameters"), dict | None, f"{where}.parameters", "an object")
        said = {name: value for name, value in without_nulls(function).items() if name != "strict"}
        shared = {name: value for name, value in without_nulls(tool).items() if name != CACHE_CONTROL}
        tools.append(shared | {"function": said})
    return tools


def _read_tool_choice(given: Json, tools: list[dict[str, Json]]) -> bool:
    """Whether the model may call one of the tools. Raises InvalidInput for a choice that it can't be held to."""
    if given is None:
        return bool(tools)
    if given == "none":
        return False
    if given != "auto":
        got = describe(given, quote=True)
        raise InvalidInput.of(f"tool_choice: the model can't be made to call a tool, expected none or auto, got {got}")
    if not tools:
        raise InvalidInput.of("tool_choice: there are no tools to choose from, expected them in tools")
    return True


# Answers


class MessageParser:
    """What one message says, in pieces: its content and, with ``tools``, its tool calls.

    With ``one_call`` all of them but the first are left out (parallel_tool_calls).
    """

    __slots__ = ("_one_call", "_parser", "calls")

    def __init__(self, *, tools: bool, one_call: bool) -> None:
        self._parser = ToolCallParser() if tools else None
        self._one_call = one_call
        self.calls = 0

    def add(self, text: str, *, is_last: bool) -> tuple[str, list[Json]]:
        """The content and the calls that are certain now. What may become a call is held back until it is one."""
        if self._parser is None:
            return text, []
        content, found = self._parser.push(text)
        if is_last:
            rest, more = self._parser.flush()
            content, found = content + rest, found + more
        if self._one_call:
            found = found[: 1 - self.calls]
        calls: list[Json] = []
        for one in found:
            function = {"name": one.name, "arguments": one.arguments}
            calls.append(
                {"index": self.calls, "id": f"call_{new_request_id()}", "type": "function", "function": function}
            )
            self.calls += 1
        return content, calls

    def reason(self, finish: str | None) -> str | None:
        """Why the message ended: for its calls, unless it was cut off."""
        return "tool_calls" if self.calls and finish == "stop" else finish


class ChatAnswer(GeneratedAnswer):
    """The answer of chat completions; see Speech for ``tools`` and ``one_call``."""

    __slots__ = ("_open", "_speech")
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: GenerativeModel,
        request: GenerationRequest,
        context: Context,
        usage: UsageChunks,
        *,
        tools: bool,
        one_call: bool,
    ) -> None:
        super().__init__(model, request, context, usage)
        self._speech = partial(MessageParser, tools=tools, one_call=one_call)
        self._open: dict[int, MessageParser] = {}

    def choice(self, index: int, whole: Piece) -> Json:
        speech = self._speech()
        content, calls = speech.add(whole.text, is_last=True)
        for call in calls:
            del call["index"]  # which tells calls of a stream apart
        message: dict[str, Json] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._told(whole.tokens),
            "finish_reason": speech.reason(whole.finish),
        }

    def chunks(self, index: int, piece: Piece) -> Sequence[Json]:
        """The first chunk of a choice has the role, the last one nothing but why it ended."""
        found: list[Json] = []
        speech = self._open.get(index)
        if speech is None:
            speech = self._open[index] = self._speech()
            found.append(_chunk(index, {"role": "assistant", "content": ""}))
        content, calls = speech.add(piece.text, is_last=piece.finish is not None)
        if content or piece.tokens:
            found.append(_chunk(index, {"content": content}, self._told(piece.tokens) if piece.tokens else None))
        found += [_chunk(index, {"tool_calls": [call]}) for call in calls]
        if piece.finish is not None:
            found.append(_chunk(index, {}, finish=speech.reason(piece.finish)))
            del self._open[index]
        return found

    def _told(self, tokens: Sequence[TokenText]) -> Json:
        if self._request.sampling.logprobs is None:
            return None
        content = [{**_token(one), "top_logprobs": [_token(top) for top in one.top]} for one in tokens]
        return {"content": content, "refusal": None}


def _chunk(index: int, delta: Json, logprobs: Json = None, finish: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _token(token: TokenText) -> dict[str, Json]:
    return {"token": token.text, "logprob": logprob(token), "bytes": list(token.bytes)}
