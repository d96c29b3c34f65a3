"""Types of the answers of completions, chat completions and responses, for /openapi.json and tests.

The service builds answers as dicts, which is faster.

Sources: https://platform.openai.com/docs/api-reference/completions/object, .../chat/object, .../chat/streaming,
.../responses/object and .../responses-streaming
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from hf_transformer.types.fields import Body, about
from hf_transformer.types.request import Json


class CompletionDetails(Body):
    reasoning_tokens: int


class GenerationUsage(Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatUsage(GenerationUsage):
    """The numbers of tokens of a chat."""

    completion_tokens_details: Annotated[
        CompletionDetails | UnsetType, about("Of a model with reasoning, in the last usage of a stream.")
    ] = UNSET


class PromptLogprob(Body):
    logprob: float
    rank: Annotated[int, about("1 for the likeliest token.")]
    decoded_token: str


PromptLogprobs: TypeAlias = Annotated[
    list[dict[str, PromptLogprob] | None] | UnsetType,
    about("As in vLLM, if the request has the field: null for the first token, then an object by token id."),
]


class GeneratedHead(Body, kw_only=True):
    """The first fields of answers and chunks."""

    id: str
    created: Annotated[int, about("Seconds since 1970.")]
    model: str


# Completions


class CompletionLogprobs(Body):
    tokens: Annotated[list[str], about(r"Texts of tokens; a part of a character is bytes:\xe2\x80.")]
    token_logprobs: list[float | None]
    text_offset: Annotated[list[int], about("Starts of tokens in the text, in characters.")]
    top_logprobs: Annotated[list[dict[str, float] | None] | UnsetType, about("The likeliest tokens.")] = UNSET


class CompletionChoice(Body):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    prompt_logprobs: PromptLogprobs = UNSET


class CompletionResponse(GeneratedHead):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: GenerationUsage


class CompletionChunk(GeneratedHead):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: GenerationUsage | UnsetType | None = UNSET


# Chat completions


class TopLogprob(Body):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Body):
    content: list[TokenLogprob]
    refusal: None


class FunctionCall(Body):
    name: str
    arguments: Annotated[str, about("An object as JSON text.")]


class MessageCall(Body):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: Annotated[str | UnsetType, about("The model's reasoning, if its answers have any.")] = UNSET
    reasoning_content: Annotated[str | UnsetType, about("The same, as older versions of vLLM name it.")] = UNSET
    tool_calls: list[MessageCall] | UnsetType = UNSET


class ChatChoice(Body):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatResponse(GeneratedHead):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: ChatUsage
    prompt_logprobs: PromptLogprobs = UNSET


class FunctionPiece(Body):
    """New arguments of a call; the first piece has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class CallChunk(Body):
    """A piece of a call; the first one has the id."""

    index: int
    function: FunctionPiece
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Body):
    """The change of a message. The first one has the role."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[CallChunk] | UnsetType = UNSET


class ChatChunkChoice(Body):
    """A change of a message; the last one has the reason of its end."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"] | None


class ChatChunk(GeneratedHead):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: ChatUsage | UnsetType | None = UNSET


# Responses

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(Body, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Json]
    logprobs: list[TokenLogprob]


class OutputMessage(Body, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class OutputCall(Body, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: Annotated[str, about("An object as JSON text.")]
    status: ItemStatus


class ReasoningText(Body, tag_field="type", tag="reasoning_text"):
    """A text of the reasoning."""

    text: str


class OutputReasoning(Body, tag_field="type", tag="reasoning"):
    """The model's reasoning."""

    id: str
    status: ItemStatus
    summary: Annotated[list[Json], about("Always empty.")]
    content: list[ReasoningText]


OutputItem: TypeAlias = OutputMessage | OutputCall | OutputReasoning


class InputDetails(Body):
    """Parts of the input's tokens; the service has no such parts."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Body):
    """Parts of the output's tokens."""

    reasoning_tokens: int


class ResponseUsage(Body):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Body):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    param: str | None


class IncompleteDetails(Body):
    reason: Literal["max_output_tokens"]


class ResponsesAnswer(Body):
    """A response, which repeats fields of its request."""

    id: str
    object: Literal["response"]
    created_at: Annotated[int, about("Seconds since 1970.")]
    model: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    output: Annotated[list[OutputItem], about("Reasoning, messages and calls.")]
    usage: ResponseUsage | None
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: None
    user: str | None
    prompt_cache_key: str | None
    background: bool
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, Json]
    service_tier: Literal["auto", "default"]
    store: bool
    temperature: float
    text: dict[str, Json]
    tool_choice: Annotated[Any, about("As sent, or auto.")]
    tools: list[dict[str, Json]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]


class NumberedEvent(Body):
    """An event of a response's stream, in order of its number."""

    sequence_number: int


class ResponseChange(NumberedEvent):
    """An event about the whole response."""

    type: Literal[
        "response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed"
    ]
    response: ResponsesAnswer


class ItemChange(NumberedEvent):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class PartEvent(NumberedEvent):
    """An event about a part of a message or of the reasoning."""

    item_id: str
    output_index: int
    content_index: int


class PartChange(PartEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class OutputTextDelta(PartEvent):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class TextDone(PartEvent):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ReasoningDelta(PartEvent):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(PartEvent):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDelta(NumberedEvent):
    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(NumberedEvent):
    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str


RESPONSE_EVENTS: tuple[type[NumberedEvent], ...] = (
    ResponseChange,
    ItemChange,
    PartChange,
    OutputTextDelta,
    TextDone,
    ReasoningDelta,
    ReasoningDone,
    ArgumentsDelta,
    ArgumentsDone,
)
"""The data of a stream's events. The event's name is the data's type."""
