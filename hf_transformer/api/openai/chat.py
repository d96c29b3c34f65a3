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

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

import orjson

from hf_transformer.api.bodies import choose_model, read_declared
from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.chat_tools import Tools, read_tools
from hf_transformer.api.chats import Messages, TemplateVariables, render_prompt, require_template
from hf_transformer.api.openai.generation import (
    DEFAULTS,
    ChoicesBody,
    GeneratedAnswer,
    UsageChunks,
    logprob,
    prompt_logprobs,
    read_stream,
)
from hf_transformer.api.openai.structured import ResponseFormat, ToolChoice, read_form
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import NewTokens, TopTokens
from hf_transformer.generation.sampling import Named, read_sampling
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.generation.tools import ForcedCallParser, ToolCallParser
from hf_transformer.generation.types import GenerationRequest, Piece, TokenText
from hf_transformer.types.fields import Form, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json

Delta = tuple[dict[str, Json], Json, str | None]
"""A change of the message, its log probabilities, and the finish reason."""
_CONTENT = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}'
Answer = TypeVar("Answer", bound="ChatAnswer")


class ChatRequest(ChoicesBody, kw_only=True):
    """A request for a chat completion."""

    messages: Messages
    max_tokens: Annotated[NewTokens, about(also=("max_completion_tokens",))] = None
    logprobs: Annotated[bool | None, about("Whether tokens have log probabilities.", schema={"default": False})] = None
    top_logprobs: TopTokens = None
    response_format: ResponseFormat = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether a message may have several calls.", schema={"default": True})
    ] = None
    chat_template_kwargs: TemplateVariables = None
    modalities: Annotated[Json, only(["text"], because="the model generates text only")] = None
    verbosity: Annotated[Json, only("medium", because="the model has no such setting")] = None
    reasoning_effort: Annotated[
        Json, only("none", because="a chat template with such a setting takes it in chat_template_kwargs")
    ] = None
    add_generation_prompt: Annotated[Json, only(True, because="the answer is a new message")] = None
    continue_final_message: Annotated[Json, only(False, because="the answer is a new message")] = None
    add_special_tokens: Annotated[Json, only(False, because="the chat template adds them")] = None
    echo: Annotated[Json, only(False, because="a chat has no prompt to echo")] = None


FORM: Final = Form(ChatRequest)


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    body = read_declared(call, FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "chat/completions")
    answer, stream = await prepare(call, model, body, FORM.aliases(call.json()), ChatAnswer)
    return answer if stream else await answer.whole()


async def prepare(
    call: Call, model: GenerativeModel, body: ChatRequest, names: Mapping[str, str], kind: type[Answer]
) -> tuple[Answer, bool]:
    """Returns an answer that has not started, and whether the request asks for a stream. ``names`` are the client's
    names of fields, where these differ. Raises RequestError.

    A chat that the model can't answer is refused before its template is rendered.
    """
    stream, usage = read_stream(body)
    one_call = body.parallel_tool_calls is False
    tools = read_tools(body.tools, call.limits)
    max_bytes = model.task.settings.generation.max_schema_bytes
    form = read_form(body, body.response_format, body.tool_choice, tools, max_bytes, single=one_call)
    sampling = read_sampling(
        body,
        DEFAULTS,
        model.task.settings.vocabulary.vocab_size,
        names=names,
        n=body.n,
        logprobs=_read_logprobs(body),
        prompt_logprobs=prompt_logprobs(body),
        constraint=form.constraint,
        max_schema_bytes=max_bytes,
    )
    template = require_template(model)
    if form.may_call and not template.supports_tools:
        hint = f"the chat template of {model.name!r} does not support them; leave them out"
        raise InvalidInput("tools", "no tools", hint=hint)
    model.check(sampling)
    shown, variables = tools if form.may_call else [], body.chat_template_kwargs
    prompt = await render_prompt(call, template, body.messages, tools=shown, variables=variables)
    request = GenerationRequest(prompts=[prompt], sampling=sampling, special_tokens=False, name="messages", single=True)
    made = kind(model, request, call.context, usage, tools=form.may_call, one_call=one_call, forced=form.forced)
    return made, stream


def _read_logprobs(body: ChatRequest) -> Named[int] | None:
    """Returns the number of top alternatives per token and the field that sets it; None without log probabilities."""
    count = body.top_logprobs
    if count is None:
        return (0, "logprobs") if body.logprobs else None
    if body.logprobs:
        return count, "top_logprobs"
    if count:
        raise InvalidInput("top_logprobs", "0 without logprobs", str(count), 'add "logprobs": true')
    return None


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
