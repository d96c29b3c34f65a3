"""Bodies of Anthropic's Messages API, and the blocks of their messages.

Unknown fields are noted, not refused: clients send fields of new betas before a server knows them.

Sources: https://docs.anthropic.com/en/api/messages, .../messages-count-tokens, and the types of the package anthropic
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from hf_transformer.api.bodies import OpenModelBody
from hf_transformer.api.chat_tools import FunctionName
from hf_transformer.api.chats import TEXT_ONLY, TemplateVariables
from hf_transformer.api.images import ImageBlock
from hf_transformer.generation.parameters import MAX_TEMPERATURE, MIN_POSITIVE, StopText
from hf_transformer.types.fields import NO_EFFECT, Form, Natural, OpenBody, about, only
from hf_transformer.types.request import Json

NO_SERVER_TOOLS: Final = "the service runs no tools; declare a tool with a name and an input_schema"

# Blocks


class TextBlock(OpenBody, kw_only=True, tag_field="type", tag="text"):
    """A text."""

    text: str
    cache_control: Annotated[Json, NO_EFFECT] = None
    citations: Annotated[Json, NO_EFFECT] = None


class ThinkingBlock(OpenBody, kw_only=True, tag_field="type", tag="thinking"):
    """Reasoning of the assistant, which the chat template may show."""

    thinking: str
    signature: Annotated[Json, NO_EFFECT] = None


class RedactedThinkingBlock(OpenBody, kw_only=True, tag_field="type", tag="redacted_thinking"):
    """Encrypted reasoning, which is left out."""

    data: Annotated[Json, NO_EFFECT] = None


class ToolUseBlock(OpenBody, kw_only=True, tag_field="type", tag="tool_use"):
    """The call of a tool by the assistant."""

    id: str
    name: str
    input: Annotated[dict[str, Json], about("The arguments.")]
    cache_control: Annotated[Json, NO_EFFECT] = None
    caller: Annotated[Json, NO_EFFECT] = None


class ToolResultBlock(OpenBody, kw_only=True, tag_field="type", tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: Annotated[
        str | list[Json] | None,
        about(expected="a string or a list of blocks", shown=(str, list[TextBlock | ImageBlock])),
    ] = None
    is_error: Annotated[bool | None, about('Whether the tool failed; the model then reads "Error: " first.')] = None
    cache_control: Annotated[Json, NO_EFFECT] = None


Block: TypeAlias = TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
BLOCKS: Mapping[str, type[Block]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "thinking": ThinkingBlock,
    "redacted_thinking": RedactedThinkingBlock,
    "tool_use": ToolUseBlock,
    "tool_result": ToolResultBlock,
}
BLOCKS_OF: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
"""Types of blocks by the role of the message, without images."""
UNREAD: Mapping[str, str] = {
    **dict.fromkeys(("image", "document", "search_result", "container_upload"), TEXT_ONLY),
    **dict.fromkeys(("tool_addition", "tool_removal", "tool_reference"), "the tools are those of the field tools"),
}
"""Reasons why other blocks are refused. The rest are those of server tools."""


class Turn(OpenBody):
    """A message of the conversation."""

    role: Annotated[Literal["user", "assistant", "system"], about("Author of the message.")]
    content: Annotated[
        str | list[Json],
        about(expected="a string or a list of blocks", shown=(str, list[Block])),
    ]


TURN: Final = Form(Turn)


# Tools


class ClientTool(OpenBody, kw_only=True):
    """A tool that the client runs."""

    type: Annotated[Literal["custom"] | None, about(hint=NO_SERVER_TOOLS)] = None
    name: FunctionName
    description: Annotated[str | None, about("Purpose of the tool.")] = None
    input_schema: Annotated[dict[str, Json], about("JSON schema of the input.")]
    strict: Annotated[bool | None, about("Whether the input is held to the schema.")] = None
    cache_control: Annotated[Json, NO_EFFECT] = None
    defer_loading: Annotated[Json, NO_EFFECT] = None
    eager_input_streaming: Annotated[Json, NO_EFFECT] = None
    allowed_callers: Annotated[Json, NO_EFFECT] = None
    input_examples: Annotated[Json, NO_EFFECT] = None


CLIENT_TOOL: Final = Form(ClientTool)


class ToolSelection(OpenBody):
    """Whether the model may or must call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: Annotated[str | None, about("The tool to call, for the type tool.")] = None
    disable_parallel_tool_use: Annotated[bool | None, about("Whether an answer has at most one call.")] = None


# Reasoning and form


class Thinking(OpenBody):
    """Whether the model reasons before it answers: the variable enable_thinking of its chat template."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive", "between_tools"], about("All but disabled mean the same.")
    ]
    budget_tokens: Annotated[Natural | None, NO_EFFECT] = None
    display: Annotated[
        Literal["summarized", "omitted", "updates"] | None, about("omitted leaves the text of the reasoning out.")
    ] = None


class OutputFormat(OpenBody):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema: Annotated[dict[str, Json], about("The JSON schema.", expected="a JSON schema, an object")]


class OutputConfig(OpenBody):
    """Form and effort of the answer."""

    effort: Annotated[
        Literal["low", "medium", "high", "xhigh", "max"] | None,
        about("Variable reasoning_effort of the chat template."),
    ] = None
    format: Annotated[OutputFormat | None, about("Form of the text.")] = None
    task_budget: Annotated[Json, NO_EFFECT] = None


# Bodies


class ConversationBody(OpenModelBody, kw_only=True):
    """Fields of both routes."""

    messages: Annotated[
        Annotated[list[Json], Meta(min_length=1)],
        about(
            "The conversation. A last message of the assistant is continued.",
            expected="a list of messages",
            shown=(Annotated[list[Turn], Meta(min_length=1)],),
        ),
    ]
    system: Annotated[
        str | list[Json] | None,
        about("The system prompt.", expected="a string or a list of text blocks", shown=(str, list[TextBlock])),
    ] = None
    tools: Annotated[
        Annotated[list[Json], Meta(max_length=128)] | None,
        about(
            "Tools that the model may call.",
            shown=(Annotated[list[ClientTool], Meta(max_length=128)],),
            limits="tools",
        ),
    ] = None
    tool_choice: Annotated[ToolSelection | None, about("auto if the request has tools.")] = None
    thinking: Annotated[Thinking | None, about("By default the chat template decides.")] = None
    output_config: Annotated[OutputConfig | None, about("Form and effort of the answer.")] = None
    output_format: Annotated[OutputFormat | None, about("Older name of output_config.format.")] = None
    chat_template_kwargs: TemplateVariables = None
    cache_control: Annotated[Json, NO_EFFECT] = None
    context_management: Annotated[Json, NO_EFFECT] = None
    mcp_servers: Annotated[Json, only([], because="the service connects to no MCP servers")] = None
    container: Annotated[Json, only(because=NO_SERVER_TOOLS)] = None


class CountTokensRequest(ConversationBody):
    """A request for the number of tokens of a conversation."""


class MessagesRequest(ConversationBody, kw_only=True):
    """A request for the assistant's next message."""

    max_tokens: Annotated[Natural, about("Maximum number of new tokens.")]
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=16)] | None,
        about("Texts that end the message, which excludes them.", limits="strings"),
    ] = None
    stream: Annotated[bool | None, about("Whether to answer in pieces.", schema={"default": False})] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None,
        about("Divisor of the logits; 0 selects the likeliest token.", schema={"default": 1.0}),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        about("Number of likeliest tokens to choose from; 0 and -1 mean all."),
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(ge=MIN_POSITIVE, le=1)] | None,
        about("Total probability of the likeliest tokens to choose from."),
    ] = None
    metadata: Annotated[dict[str, Json] | None, NO_EFFECT] = None
    service_tier: Annotated[Literal["auto", "standard_only"] | None, NO_EFFECT] = None
    speed: Annotated[Json, NO_EFFECT] = None
    inference_geo: Annotated[Json, NO_EFFECT] = None
    diagnostics: Annotated[Json, NO_EFFECT] = None
    user_profile_id: Annotated[Json, NO_EFFECT] = None
    workspace_id: Annotated[Json, NO_EFFECT] = None


MESSAGES_FORM, COUNT_FORM = Form(MessagesRequest), Form(CountTokensRequest)
