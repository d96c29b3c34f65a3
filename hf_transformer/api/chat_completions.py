"""OpenAI's chat completions API: generates the assistant's next message, complete or streamed.

The model's chat template renders messages and tools as the prompt. See generated_answers.py for other fields, and
streaming. Responses and Anthropic's Messages are chats with other names.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import orjson

from hf_transformer.api.bodies import choose_model, read_declared
from hf_transformer.api.call import Call, new_request_id
from hf_transformer.api.chat_tools import Tools, read_tools
from hf_transformer.api.chats import (
    Messages,
    ReasoningEffort,
    TemplateVariables,
    reasoning_variables,
    render_prompt,
    require_template,
)
from hf_transformer.api.generated_answers import (
    DEFAULTS,
    ChoicesBody,
    GeneratedAnswer,
    UsageChunks,
    logprob,
    prompt_logprobs,
    read_stream,
)
from hf_transformer.api.images import ChatImages
from hf_transformer.api.message_form import ResponseFormat, ToolChoice, read_form
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream, event
from hf_transformer.errors import InvalidInput
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import NewTokens, TopTokens
from hf_transformer.generation.responses.events import CallDelta
from hf_transformer.generation.sampling import Named, read_sampling
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.generation.tools import FormReader, MessageReader, ReadDelta, TextReader
from hf_transformer.generation.types import GenerationRequest, Piece, Sampling, TokenText
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import Form, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json
from hf_transformer.types.tokenization import Tokenization

if TYPE_CHECKING:
    from hf_transformer.generation.responses.counting import ReasoningCounter

Delta = tuple[dict[str, Json], Json, str | None]
"""A change of the message, its log probabilities, and the finish reason."""
_CONTENT = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":null}'
_REASONING = b'{"index":%d,"delta":{"reasoning_content":%b,"reasoning":%b},"logprobs":null,"finish_reason":null}'
INLINE_REASONING: Final = 5_000
"""Maximum characters of texts whose reasoning is counted on the event loop, some milliseconds."""
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
    reasoning_effort: ReasoningEffort = None
    include_reasoning: Annotated[
        bool | None,
        about("Whether the answer has the reasoning. The model writes it anyway.", schema={"default": True}),
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
    form = read_form(
        body,
        body.response_format,
        body.tool_choice,
        tools,
        max_bytes,
        single=one_call,
        calls=None if model.responses is None else model.responses.strict_form,
        shown_tokens=() if model.responses is None else model.responses.shown_tokens,
        ignored=call.context.ignored,
    )
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
    callable_tools = tools if form.may_call else []
    _check_template(model, callable_tools)
    model.check(sampling)
    images = ChatImages(model, call.budget)
    prompt = await render(call, model, body, callable_tools, images)
    sampling, read = _reader(model, sampling, form.forced, prompt, callable_tools)
    request = GenerationRequest(
        prompts=[prompt],
        sampling=sampling,
        special_tokens=False,
        name="messages",
        single=True,
        images=images.loaded,
        question=images.question,
    )

    def make_reader() -> MessageReader:
        return MessageReader(None if read is None else read(), forced=form.forced, one_call=one_call)

    made = kind(model, request, call.context, usage, make_reader)
    made.shows_reasoning = body.include_reasoning is not False
    return made, stream


def _check_template(model: GenerativeModel, tools: Sequence[Json]) -> None:
    """Raises InvalidInput for a model without chats, or for tools that its chats do not show."""
    if not require_template(model).supports_tools and tools:
        hint = f"the chat template of {model.name!r} does not support them; leave them out"
        raise InvalidInput("tools", "no tools", hint=hint)


async def render(
    call: Call, model: GenerativeModel, body: ChatRequest, tools: Sequence[Json], images: ChatImages
) -> str:
    """Returns the prompt of a chat. ``tools`` are those that the model may call; ``images`` gets the chat's. Raises
    InvalidInput or TooLarge."""
    template = require_template(model)
    effort = reasoning_variables(body.reasoning_effort, body.chat_template_kwargs)
    if effort and template.names.isdisjoint(effort):
        note_ignored("reasoning_effort", call.context.ignored)
    return await render_prompt(
        call,
        template,
        body.messages,
        tools=tools,
        variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message is True,
        images=images,
        **effort,
    )


async def count_prompt(call: Call, model: GenerativeModel, body: ChatRequest) -> int:
    """Returns the number of tokens of the prompt that ``prepare`` would make. Raises InvalidInput or TooLarge."""
    tools = [] if body.tool_choice == "none" else read_tools(body.tools, call.limits)
    _check_template(model, tools)
    options = Tokenization(whole=True, special_tokens=False, token_values=1)
    images = ChatImages(model, call.budget, renders=model.image_tokens is not None)
    prompt = await render(call, model, body, tools, images)
    [[encoding]] = await model.encode([prompt], options, call.context)
    if images and model.image_tokens is not None:
        encoding, _ = images.expand(encoding)
    return len(encoding)


def _reader(
    model: GenerativeModel, sampling: Sampling, forced: str | None, prompt: str, tools: Sequence[Json]
) -> tuple[Sampling, Callable[[], TextReader] | None]:
    """Chooses what reads the answers to a prompt, None to show them as they are. Returns it with the sampling that it
    needs.

    A text with a constraint has no other delimiters than those of the reasoning before it.
    """
    responses, constraint = model.responses, sampling.constraint
    if responses is not None and responses.has_reasoning and constraint is not None and model.reasons_first:
        sampling = replace(sampling, reasoning=partial(responses.prefix, prompt))
    if forced is not None or (constraint is not None and constraint.kind != "tool"):
        make = sampling.reasoning
        if make is not None and responses is not None:
            sampling = replace(sampling, shown_tokens=responses.shown_tokens)
        elif forced is None:
            return sampling, None
        return sampling, lambda: FormReader(None if make is None else make(), forced)
    if responses is None or not responses.reads(tools):
        return sampling, None
    return replace(sampling, shown_tokens=responses.shown_tokens), partial(responses.parser, prompt, tools)


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


def joined(deltas: Sequence[ReadDelta]) -> tuple[str, str, list[Json]]:
    """The content, the reasoning and the calls, or parts of calls, of deltas."""
    content = reasoning = ""
    calls: list[Json] = []
    for delta in deltas:
        if isinstance(delta, CallDelta):
            calls.append(call_delta(delta))
        elif delta.role == "reasoning":
            reasoning += delta.text
        else:
            content += delta.text
    return content, reasoning, calls


def whole_message(deltas: Sequence[ReadDelta], *, shows_reasoning: bool) -> tuple[dict[str, Json], str]:
    """The message of all its deltas, and its reasoning."""
    content, reasoning, pieces = joined(deltas)
    calls = whole_calls(pieces)
    message: dict[str, Json] = {"role": "assistant", "content": content or (None if calls or reasoning else "")}
    if reasoning and shows_reasoning:
        message |= reasoning_fields(reasoning)
    return message | ({"tool_calls": calls} if calls else {}), reasoning


def call_delta(part: CallDelta, call_id: str = "") -> Json:
    """A call with its id and name, or a further piece of its arguments. ``call_id`` replaces the call's own id."""
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": call_id or new_call_id(part), "type": "function", "function": function}


def new_call_id(part: CallDelta) -> str:
    """The model's own name of a call, else a new one."""
    return part.id or f"call_{new_request_id()}"


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
    """A chat completions response. ``make_reader`` makes the reader of one choice.

    Attributes:
        shows_reasoning: ``include_reasoning``.
    """

    __slots__ = ("_counters", "_make_reader", "_readers", "shows_reasoning")
    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"
    has_one_prompt = True

    def __init__(
        self,
        model: GenerativeModel,
        request: GenerationRequest,
        context: Context,
        usage: UsageChunks,
        make_reader: Callable[[], MessageReader],
    ) -> None:
        super().__init__(model, request, context, usage)
        self._make_reader = make_reader
        self._readers: dict[int, MessageReader] = {}  # for each unfinished choice of a stream
        self._counters: dict[int, ReasoningCounter] = {}  # for each choice with reasoning
        self.shows_reasoning = True

    def choice(self, index: int, whole: Piece) -> Json:
        reader = self._make_reader()
        deltas = reader.read(whole.text, is_last=True)
        message, reasoning = whole_message(deltas, shows_reasoning=self.shows_reasoning)
        self._count(reader)
        if reasoning:
            self._count_reasoning(index, reasoning)
        return {
            "index": index,
            "message": {**message, "refusal": None},
            "logprobs": self._logprobs(whole.tokens),
            "finish_reason": reader.reason(whole.finish),
        }

    def choices(self, index: int, piece: Piece) -> Sequence[bytes]:
        return [_choice(index, *delta) for delta in self.deltas(index, piece)]

    def deltas(self, index: int, piece: Piece) -> Sequence[Delta]:
        """Converts a piece. A choice's first delta has the role; its last one has only the finish reason."""
        deltas: list[Delta] = []
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._make_reader()
            deltas.append(({"role": "assistant", "content": ""}, None, None))
        parts = self._split(reader.read(piece.text, is_last=piece.finish is not None))
        for content, reasoning, calls in parts:
            if reasoning:
                if self._counts_reasoning:
                    self._count_reasoning(index, reasoning)
                if self.shows_reasoning:
                    deltas.append((reasoning_fields(reasoning), None, None))
            is_whole = len(parts) == 1 and not reasoning and not calls
            tokens = self._tokens_of(piece, content, is_whole=is_whole)
            if content or (tokens and (self.shows_reasoning or not reasoning)):
                deltas.append(({"content": content}, self._logprobs(tokens) if tokens else None, None))
            deltas += [({"tool_calls": [call]}, None, None) for call in calls]
        if piece.finish is not None:
            deltas.append(({}, None, reader.reason(piece.finish)))
            self._count(reader)
            del self._readers[index]
        return deltas

    def _split(self, deltas: Sequence[ReadDelta]) -> Sequence[tuple[str, str, list[Json]]]:
        """New content, new reasoning, and new calls. In chats these have no order."""
        return [joined(deltas)]

    def _tokens_of(self, piece: Piece, content: str, *, is_whole: bool) -> Sequence[TokenText]:
        """The tokens whose log probabilities come with content. ``is_whole``: the piece has nothing else."""
        return piece.tokens

    @property
    def _shows_logprobs(self) -> bool:
        """As in vLLM, an answer without its reasoning has no log probabilities: they would show it."""
        return self.shows_reasoning or not self._has_reasoning

    def _is_short(self, texts: Sequence[Piece]) -> bool:
        if self._has_reasoning and sum(len(text.text) for text in texts) > INLINE_REASONING:
            return False
        return super()._is_short(texts)

    @property
    def _has_reasoning(self) -> bool:
        responses = self._model.responses
        return responses is not None and responses.has_reasoning

    @property
    def _counts_reasoning(self) -> bool:
        """Whether a stream ends with the usage."""
        return self._usage != "none"

    def with_details(self, tokens: dict[str, Json]) -> dict[str, Json]:
        if not self._has_reasoning:
            return tokens
        return {**tokens, "completion_tokens_details": {"reasoning_tokens": self._reasoning_tokens(tokens)}}

    def _reasoning_tokens(self, tokens: Mapping[str, Json]) -> int:
        """Number of tokens of the reasoning of all choices."""
        count = sum(counter.count for counter in self._counters.values())
        most: int = tokens["completion_tokens"]
        return min(count, most)

    def _count_reasoning(self, index: int, text: str) -> None:
        if (counter := self._counters.get(index)) is None and self._model.responses is not None:
            counter = self._counters[index] = self._model.reasoning_counter()
        if counter is not None:
            counter.add(text)

    def _count(self, reader: MessageReader) -> None:
        self._model.count_unreadable(reader.unreadable)

    def _logprobs(self, tokens: Sequence[TokenText]) -> Json:
        if self._request.sampling.logprobs is None or not self._shows_logprobs:
            return None
        content = [{**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in tokens]
        return {"content": content, "refusal": None}


class EventsAnswer(ChatAnswer):
    """A chat's answer in an API with named events. A whole answer is built as its stream is, from one piece."""

    __slots__ = ("_data",)
    _data: bytes

    @abstractmethod
    def finished(self) -> bytes:
        """Returns the whole answer after its last piece, as JSON."""

    async def whole(self) -> Response:
        async with await self.start() as running:
            [[text]] = await running.collect()
        if self._is_short([text]):
            return reply(self._whole(text))
        return reply(await asyncio.get_running_loop().run_in_executor(running.executor, self._whole, text))

    def _whole(self, text: Piece) -> bytes:
        self.piece(text)  # its events are not sent
        return self.finished()

    def _add_event(self, kind: str, **fields: Json) -> None:
        """Adds an event. Serializes it at once, since its fields change later."""
        self._data += b"event: " + kind.encode() + b"\n" + event(orjson.dumps({"type": kind, **fields}))

    def _taken(self) -> bytes:
        data, self._data = self._data, b""
        return data


def reasoning_fields(text: str) -> dict[str, Json]:
    """Reasoning in the fields of vLLM: clients read the older or the newer one."""
    return {"reasoning_content": text, "reasoning": text}


def _choice(index: int, delta: dict[str, Json], logprobs: Json, finish: str | None) -> bytes:
    """Serializes the choice of a chunk. One with text alone is a template with only what changes."""
    if len(delta) == 1 and "content" in delta:
        return _CONTENT % (index, orjson.dumps(delta["content"]), orjson.dumps(logprobs))
    if "reasoning" in delta:
        text = orjson.dumps(delta["reasoning"])
        return _REASONING % (index, text, text)
    return orjson.dumps({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})


def _token(token: TokenText) -> dict[str, Json]:
    return {"token": token.text, "logprob": logprob(token), "bytes": list(token.bytes)}
