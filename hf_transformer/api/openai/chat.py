"""OpenAI's chat completions API: generates the assistant's next message, complete or streamed.

    {"model": "m", "messages": [{"role": "user", "content": "..."}], "max_completion_tokens": null, "n": 1,
     "logprobs": false, "top_logprobs": 0 to 20, "tools": [...], "stream": false,
     "tool_choice": "auto" | "none" | "required" | {"type": "function", "function": {"name"}}, "response_format", ...}
    -> {"id": "chatcmpl-...", "object": "chat.completion", "created", "model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content", "refusal": null, "tool_calls"},
                     "logprobs": null, "finish_reason": "stop" | "length" | "tool_calls"}],
        "usage": {"prompt_tokens", "completion_tokens", "total_tokens"}}

The model's chat template renders messages and tools as the prompt. See generation.py for other fields and streaming.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import orjson

from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.errors import expect, expect_items
from hf_transformer.api.openai.fields import ignored_fields, read_request
from hf_transformer.api.openai.generation import DEFAULTS, SHARED, GeneratedAnswer, UsageChunks, logprob, read_stream
from hf_transformer.api.openai.structured import read_form
from hf_transformer.api.openai.tools import CACHE_CONTROL, CALL, for_template, in_order, read_tools, without_nulls
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.sampling import read_sampling
from hf_transformer.generation.tools import ForcedCallParser, ToolCallParser
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.protocol.json_text import SMALL_BYTES, JsonLimits, check_depth, check_size
from hf_transformer.protocol.server_codec import note_ignored, note_unknown
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

if TYPE_CHECKING:
    from hf_transformer.generation.chat import ChatTemplate  # imports Jinja

CHAT_FIELDS = (
    "messages max_tokens max_completion_tokens logprobs top_logprobs response_format tools tool_choice "
    "parallel_tool_calls chat_template_kwargs"
).split()
FIELDS = (*SHARED, *ignored_fields("chat/completions"), *CHAT_FIELDS)
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Message roles with their names in chat templates. ``system`` is the older name of ``developer``."""
STRINGS = ("name", "tool_call_id", "reasoning_content", "reasoning")
"""String fields of a message. vLLM and other servers return a model's reasoning in the last two."""
MESSAGE_FIELDS = ("role", "content", "tool_calls", "refusal", "annotations", CACHE_CONTROL, *STRINGS)
THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of parts in an assistant's content that the model does not read."""
THOUGHT_FIELDS = frozenset(("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"))
"""Fields of an assistant's message without content, whose tokens were all thoughts."""
RESERVED_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "self")
"""Template variables that the request or Jinja sets. chat_template_kwargs can't override them."""
Delta = tuple[dict[str, Json], Json, str | None]
"""A change of the message, its log probabilities, and the finish reason."""
_CONTENT = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}'
Answer = TypeVar("Answer", bound="ChatAnswer")


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    served, parameters = read_request(service, call, "chat/completions", FIELDS)
    answer, stream = await prepare(service, call, generative(served, "chat/completions"), parameters, ChatAnswer)
    return answer if stream else await answer.whole()


async def prepare(
    service: Service, call: Call, model: GenerativeModel, parameters: Parameters, kind: type[Answer]
) -> tuple[Answer, bool]:
    """Returns an answer that has not started, and whether the request asks for a stream. Raises RequestError."""
    stream, usage = read_stream(parameters)
    one_call = not parameters.flag("parallel_tool_calls", True)
    tools = read_tools(parameters.get("tools"), call.limits)
    max_bytes = model.task.settings.generation.max_schema_bytes
    form = read_form(parameters, tools, max_bytes, single=one_call)
    sampling = read_sampling(
        parameters,
        DEFAULTS,
        model.task.settings.vocabulary.vocab_size,
        tokens=parameters.one_of("max_completion_tokens", "max_tokens", "max_output_tokens"),
        logprobs=_read_logprobs(parameters),
        constraint=form.constraint,
        max_schema_bytes=max_bytes,
    )
    template = require_template(model)
    if form.may_call and not template.supports_tools:
        hint = f"the chat template of {model.name!r} does not support them; leave them out"
        raise InvalidInput("tools", "no tools", hint=hint)
    prompt = await render_prompt(call, template, parameters, tools if form.may_call else [])
    request = GenerationRequest(prompts=[prompt], sampling=sampling, special_tokens=False, name="messages", single=True)
    made = kind(model, request, call.context, usage, tools=form.may_call, one_call=one_call, forced=form.forced)
    return made, stream


def _read_logprobs(parameters: Parameters) -> tuple[int, str] | None:
    """Returns the number of top alternatives per token and the field that sets it; None without log probabilities."""
    enabled = parameters.flag("logprobs", False)
    if "top_logprobs" not in parameters:
        return (0, "logprobs") if enabled else None
    count = parameters.integer("top_logprobs", 0, 0)
    if enabled:
        return count, "top_logprobs"
    if count:
        raise InvalidInput("top_logprobs", "0 without logprobs", str(count), 'add "logprobs": true')
    return None


def require_template(model: GenerativeModel) -> ChatTemplate:
    """Returns the chat template of a model. Raises InvalidInput if it has none."""
    if model.chat_template is None:
        hint = "use completions, or start the service with --chat_template"
        raise InvalidInput("model", "a model with a chat template", repr(model.name), hint)
    return model.chat_template


async def render_prompt(
    call: Call,
    template: ChatTemplate,
    parameters: Parameters,
    tools: Sequence[Json],
    tool_form: Callable[[Json], Json] = for_template,
    **given: Json,
) -> str:
    """Renders the chat of a request as a prompt that contains its special tokens.

    Args:
        tools: valid tools, see read_tools.
        tool_form: converts a tool to its form in the prompt.
        given: further variables.

    Raises:
        InvalidInput: a field is invalid, or the template rejects the messages.
        TooLarge: the chat exceeds a limit.
    """
    messages = read_messages(parameters.get("messages"), call.limits, call.context.ignored)
    variables = expect(parameters.get("chat_template_kwargs"), dict | None, "chat_template_kwargs", "an object")
    variables = without_nulls(variables or {})
    check_depth("chat_template_kwargs", variables, call.limits)
    for name in variables:
        if name in RESERVED_VARIABLES:
            raise InvalidInput(("chat_template_kwargs", name), "no such variable", hint="the request itself sets it")
    return await template.render_off_loop(
        call.size,
        messages,
        tools=[tool_form(tool) for tool in tools] or None,
        add_generation_prompt=parameters.flag("add_generation_prompt", True),
        continue_final_message=parameters.flag("continue_final_message", False),
        **{**variables, **given},
    )


# Messages


def read_messages(value: Json, limits: JsonLimits, ignored: list[str]) -> list[dict[str, Json]]:
    """Converts messages to the form that templates expect: text contents, and objects as arguments of tool calls.

    Arguments are JSON in a string, so ``limits`` apply to them separately from the body. An assistant's message may
    have fields of the server or library that made it, such as ``parsed``; they have no effect, and ``ignored`` gets
    their names.

    Raises:
        InvalidInput: a message has a missing, unknown or invalid field.
        TooLarge: the arguments of all calls together exceed the limits.
    """
    items = expect_items(value, "messages", "a list of messages")
    functions: dict[Path, dict[str, Json]] = {}
    messages = [_read_message(message, ("messages", index), functions, ignored) for index, message in enumerate(items)]
    check_depth("messages", [message.get("tool_calls") for message in messages], limits)
    texts = [function["arguments"] for function in functions.values() if isinstance(function["arguments"], str)]
    if sum(map(len, texts)) > SMALL_BYTES:
        # Parsing follows the same order: an unclosed quote hides only text after the syntax error.
        check_size(" ".join(texts).encode(), limits)
    for path, function in functions.items():
        arguments, path = function["arguments"], (*path, "arguments")
        if isinstance(arguments, str):  # OpenAI sends JSON as text; templates serialize objects themselves
            try:
                arguments = orjson.loads(arguments or "{}")
            except orjson.JSONDecodeError:
                raise InvalidInput(path, "an object as JSON text", "invalid JSON") from None
        check_depth(path, arguments, limits)
        function["arguments"] = expect(arguments, dict, path, "an object as JSON text")
    return messages


def _read_message(
    value: Json, path: Path, functions: dict[Path, dict[str, Json]], ignored: list[str]
) -> dict[str, Json]:
    """Reads a message. Adds each called function to ``functions`` by its path, with unparsed arguments."""
    message = without_nulls(expect(value, dict, path, "an object"))
    role = message.get("role")
    for name in message:
        if name in MESSAGE_FIELDS:
            continue
        if role != "assistant" or name == "function_call":  # the older form of a call has a meaning
            hint = "calls are in tool_calls" if name == "function_call" else ""
            raise InvalidInput((*path, name[:40]), f"one of {', '.join(MESSAGE_FIELDS)}", "an unknown name", hint)
        note_ignored(f"messages.{name}", ignored)
    if not isinstance(role, str) or role not in ROLES:
        got = "nothing" if role is None else describe(role, quote=True)
        raise InvalidInput((*path, "role"), f"one of {', '.join(ROLES)}", got)
    calls = message.get("tool_calls", [])
    if calls and role != "assistant":
        raise InvalidInput((*path, "tool_calls"), "no calls", describe(calls), "only the assistant calls tools")
    annotations = message.get("annotations", [])
    if annotations != []:
        if role != "assistant":
            hint = "the model can't read them"
            raise InvalidInput((*path, "annotations"), "an empty list", describe(annotations), hint)
        note_ignored("messages.annotations", ignored)
    if not isinstance(mark := message.get(CACHE_CONTROL, {}), dict) or mark.get("type") not in (None, "ephemeral"):
        raise InvalidInput((*path, CACHE_CONTROL), '{"type": "ephemeral"}', describe(mark))
    text = _read_content(message, path, ignored)
    if text is None:
        if not calls and not (role == "assistant" and message.keys() & THOUGHT_FIELDS):
            raise InvalidInput((*path, "content"), "a string or a list of parts", "nothing")
        text = ""
    rendered: dict[str, Json] = {"role": ROLES[role], "content": text}
    for name in STRINGS:
        if name in message:
            rendered[name] = expect(message[name], str, (*path, name), "a string")
    tool_calls = _read_calls(calls, (*path, "tool_calls"), functions, ignored)
    if tool_calls:  # some templates only test for the key
        rendered["tool_calls"] = tool_calls
    return rendered


def _read_content(message: Mapping[str, Json], path: Path, ignored: list[str]) -> str | None:
    """Returns the content of a message as text, None without one. An assistant's refusal may replace the content."""
    content, refusal, is_assistant = message.get("content"), message.get("refusal"), message["role"] == "assistant"
    text = None if content is None else _read_text(content, (*path, "content"), ignored if is_assistant else None)
    if refusal is None:
        return text
    expect(refusal, str, (*path, "refusal"), "a string")
    if not is_assistant:
        raise InvalidInput((*path, "refusal"), "no refusal", "a string", "only the assistant refuses")
    if text and refusal:
        raise InvalidInput((*path, "refusal"), "a content or a refusal", "both")
    return text or refusal


def _read_text(content: Json, path: Path, ignored: list[str] | None) -> str:
    """Returns a content as text, with its parts on separate lines.

    ``ignored`` is given for an assistant's content, which may have refusals, and thoughts, which have no effect; it
    gets their types. Raises InvalidInput for a part that is not text.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(path, "a string or a list of parts", describe(content))
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if ignored is not None and kind in THOUGHTS:
            note_ignored(f"messages.content.{kind}", ignored)
            continue
        field = "refusal" if ignored is not None and kind == "refusal" else "text"
        if not isinstance(part, dict) or kind != field or not isinstance(part.get(field), str):
            got = f"the type {kind[:40]!r}" if isinstance(kind, str) and kind != field else describe(part)
            expected = 'a part {"type": "text", "text": string}'
            raise InvalidInput((*path, index), expected, got, "the model reads text only")
        texts.append(part[field])
    return "\n".join(texts)


def _read_calls(value: Json, path: Path, functions: dict[Path, dict[str, Json]], ignored: list[str]) -> list[Json]:
    """Reads the tool calls of a message; see _read_message for ``functions``. Templates may render all fields of a
    call, so the result excludes others than OpenAI's."""
    calls = []
    for index, call in enumerate(expect(value, list, path, "a list")):
        function = call.get("function") if isinstance(call, dict) else None
        key = (*path, index, "function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidInput(key, "an object with the string name", describe(function))
        functions[key] = {"name": function["name"], "arguments": function.get("arguments")}
        known = {name: member for name, member in without_nulls(call).items() if name in CALL}
        calls.append(in_order(known | {"function": functions[key]}, CALL))
        note_unknown((f"messages.tool_calls.{name}" for name in call if name not in CALL), (), ignored)
        more = (f"tool_calls.function.{name}" for name in function if name not in functions[key])
        note_unknown(more, (), ignored)
    return calls


# Answers


class MessageParser:
    """Splits a generated message into content and, with ``tools``, tool calls. ``one_call`` drops further calls.

    ``forced`` is MessageForm.forced: such calls are returned in pieces, as they are written.
    """

    __slots__ = ("_forced", "_one_call", "_parser", "calls")

    def __init__(self, *, tools: bool, one_call: bool, forced: str | None = None) -> None:
        self._forced = forced
        self._parser: ToolCallParser | ForcedCallParser | None = None
        if forced is not None:
            self._parser = ForcedCallParser(forced)
        elif tools:
            self._parser = ToolCallParser()
        self._one_call = one_call
        self.calls = 0

    def add(self, text: str, *, is_last: bool) -> tuple[str, list[Json]]:
        """Adds text. Returns new content and new calls or pieces of calls. Buffers text that may begin a call."""
        if self._parser is None:
            return text, []
        content, parsed = self._parser.push(text)
        if is_last:
            rest, more = self._parser.flush()
            content, parsed = content + rest, [*parsed, *more]
        calls: list[Json] = []
        for piece in parsed:
            self.calls += piece.name is not None
            if self._one_call and self.calls > 1:
                self.calls = 1
                break
            function = {"arguments": piece.arguments}
            call: dict[str, Json] = {"index": self.calls - 1, "function": function}
            if piece.name is not None:
                function = {"name": piece.name, **function}
                call = {"index": self.calls - 1, "id": f"call_{new_request_id()}", "type": "function"}
                call["function"] = function
            calls.append(call)
        return content, calls

    def reason(self, finish: str | None) -> str | None:
        """Returns the message's finish reason: ``tool_calls`` replaces ``stop`` if the message contains calls, except,
        as in OpenAI's API, for the call of the tool that ``tool_choice`` names."""
        return "tool_calls" if self.calls and finish == "stop" and not self._forced else finish


def whole_calls(pieces: Sequence[Json]) -> list[Json]:
    """Joins the pieces of calls. A call outside a stream has no index."""
    calls: list[Json] = []
    for piece in pieces:
        if "id" in piece:
            calls.append({name: value for name, value in piece.items() if name != "index"})
        else:
            calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return calls


class ChatAnswer(GeneratedAnswer):
    """A chat completions response. MessageParser describes ``tools``, ``one_call`` and ``forced``."""

    __slots__ = ("_make_parser", "_parsers")
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    has_one_prompt = True

    def __init__(
        self,
        model: GenerativeModel,
        request: GenerationRequest,
        context: Context,
        usage: UsageChunks,
        *,
        tools: bool,
        one_call: bool,
        forced: str | None = None,
    ) -> None:
        super().__init__(model, request, context, usage)
        self._make_parser = partial(MessageParser, tools=tools, one_call=one_call, forced=forced)
        self._parsers: dict[int, MessageParser] = {}  # for each unfinished choice of a stream

    def choice(self, index: int, whole: Piece) -> Json:
        parser = self._make_parser()
        content, pieces = parser.add(whole.text, is_last=True)
        calls = whole_calls(pieces)
        message: dict[str, Json] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(whole.tokens),
            "finish_reason": parser.reason(whole.finish),
        }

    def choices(self, index: int, piece: Piece) -> Sequence[bytes]:
        return [_choice(index, *delta) for delta in self.deltas(index, piece)]

    def deltas(self, index: int, piece: Piece) -> Sequence[Delta]:
        """Converts a piece. A choice's first delta has the role; its last one has only the finish reason."""
        deltas: list[Delta] = []
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._make_parser()
            deltas.append(({"role": "assistant", "content": ""}, None, None))
        content, calls = parser.add(piece.text, is_last=piece.finish is not None)
        if content or piece.tokens:
            deltas.append(({"content": content}, self._logprobs(piece.tokens) if piece.tokens else None, None))
        deltas += [({"tool_calls": [call]}, None, None) for call in calls]
        if piece.finish is not None:
            deltas.append(({}, None, parser.reason(piece.finish)))
            del self._parsers[index]
        return deltas

    def _logprobs(self, tokens: Sequence[TokenText]) -> Json:
        if self._request.sampling.logprobs is None:
            return None
        content = [{**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in tokens]
        return {"content": content, "refusal": None}


def _choice(index: int, delta: dict[str, Json], logprobs: Json, finish: str | None) -> bytes:
    """Serializes the choice of a chunk. One with text alone is a template with only what changes."""
    if len(delta) == 1 and "content" in delta:
        return _CONTENT % (index, orjson.dumps(delta["content"]), orjson.dumps(logprobs))
    return orjson.dumps({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})


def _token(token: TokenText) -> dict[str, Json]:
    return {"token": token.text, "logprob": logprob(token), "bytes": list(token.bytes)}
