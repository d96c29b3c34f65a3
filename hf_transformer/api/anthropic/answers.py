"""Types of the answers of Anthropic's Messages API, for /openapi.json and tests.

The service builds answers as dicts, which is faster.

Sources: https://docs.anthropic.com/en/api/messages and .../messages-streaming
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from hf_transformer.types.fields import Body, about
from hf_transformer.types.request import Json


class AnswerText(Body, tag_field="type", tag="text"):
    """A text of the message."""

    text: str


class AnswerThinking(Body, tag_field="type", tag="thinking"):
    """The model's reasoning."""

    thinking: str
    signature: Annotated[str, about("A constant.")]


class AnswerToolUse(Body, tag_field="type", tag="tool_use"):
    """The call of a tool."""

    id: str
    name: str
    input: Annotated[dict[str, Json], about("The arguments; of a call that is cut off, those that are complete.")]


AnswerBlock: TypeAlias = AnswerText | AnswerThinking | AnswerToolUse
StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class ThinkingDetails(Body):
    """Parts of the output's tokens."""

    thinking_tokens: int


class MessagesUsage(Body):
    """The numbers of tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessagesResponse(Body):
    """The assistant's message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: Annotated[str | None, about("The stop sequence that ended the message.")]
    usage: MessagesUsage


class TokenCount(Body):
    """The number of tokens of a conversation."""

    input_tokens: int


# Events


class MessageStart(Body):
    """The first event, with an empty message."""

    type: Literal["message_start"]
    message: MessagesResponse


class BlockStart(Body):
    """The beginning of a block."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class TextChange(Body, tag_field="type", tag="text_delta"):
    """New text."""

    text: str


class ThinkingChange(Body, tag_field="type", tag="thinking_delta"):
    """New reasoning."""

    thinking: str


class SignatureChange(Body, tag_field="type", tag="signature_delta"):
    """The signature at the end of the reasoning."""

    signature: str


class InputChange(Body, tag_field="type", tag="input_json_delta"):
    """New text of the input of a call."""

    partial_json: str


class BlockDelta(Body):
    """A change of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextChange | ThinkingChange | SignatureChange | InputChange


class BlockStop(Body):
    """The end of a block."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(Body):
    """The reason of the message's end."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Body):
    """The end of the message, with the usage of all of it."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessagesUsage


class MessageStop(Body):
    """The last event."""

    type: Literal["message_stop"]


class Ping(Body):
    """An event without meaning, after the begin of the first block and in silences of ten seconds."""

    type: Literal["ping"]


class AnthropicErrorDetails(Body):
    """The kind of an error, and its message."""

    type: Literal[
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "timeout_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "overloaded_error",
    ]
    message: str


class AnthropicErrorAnswer(Body):
    """An error, also as the last event of a stream."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


MESSAGE_EVENTS = (
    *(MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, Ping),
    AnthropicErrorAnswer,
)
"""The data of a stream's events. The event's name is the data's type."""
