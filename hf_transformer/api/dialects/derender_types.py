"""Bodies and answers of vLLM's derender routes, see derender.py.

Source: vllm/entrypoints/scale_out/token_in_token_out/protocol.py of https://github.com/vllm-project/vllm, version 0.33
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, field

from hf_transformer.api.bodies import OpenModelBody
from hf_transformer.api.message_form import ToolChoice
from hf_transformer.api.rendered import RenderChatRequest, RenderCompletionRequest
from hf_transformer.types.fields import NO_EFFECT, Body, Form, Natural, OpenBody, Positive, about
from hf_transformer.types.request import Json

MAX_CANDIDATES: Final = 21
"""Candidates of a position: OpenAI's maximum of 20, and the token itself."""
MAX_WINDOW, MAX_CONTEXT = 1024, 4
"""vLLM's limits of a stream's state."""


# Generated tokens


class TokenCandidate(OpenBody):
    """A token with its log probability."""

    token_id: Natural
    logprob: float
    rank: int | None = None


class TokenPosition(TokenCandidate):
    """The token at a position, with the likeliest ones there, itself first."""

    top_logprobs: Annotated[list[TokenCandidate], Meta(max_length=MAX_CANDIDATES), about(limits="candidates")] = field(
        default_factory=list
    )


class TokenLogprobs(OpenBody):
    """The log probabilities of a text's tokens."""

    content: list[TokenPosition] | None = None


class GeneratedChoice(OpenBody, kw_only=True):
    """The tokens of a text, or in a stream its next tokens."""

    index: int
    finish_reason: Annotated[str | None, about("Reason of the end.")] = None
    stop_reason: Annotated[int | str | None, about("The token or string that ended the text.")] = None
    token_ids: list[Natural] | None = None
    logprobs: TokenLogprobs | None = None


class FinishedChoice(GeneratedChoice):
    """The tokens of a whole text."""

    finish_reason: Annotated[str | None, about("Reason of the end.")] = "stop"


class TokenUsage(OpenBody):
    """The numbers of tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: Annotated[Json, NO_EFFECT] = None


class GeneratedChunk(OpenBody, kw_only=True):
    """The answer of vLLM's /inference/v1/generate, or a part of its stream."""

    request_id: Annotated[str | None, about("The answer's id.")] = None
    output_mode: Annotated[Literal["tokens"] | None, about(hint="other answers have their text already")] = None
    choices: Annotated[list[Json], about("The texts.", shown=(list[GeneratedChoice],))]
    usage: TokenUsage | None = None
    prompt_token_ids: list[Natural] | None = None
    metrics: Annotated[dict[str, Json] | None, about("Repeated by the answer.")] = None


class GeneratedIds(GeneratedChunk, kw_only=True):
    """The whole answer of vLLM's /inference/v1/generate."""

    choices: Annotated[list[Json], about("The texts.", shown=(list[FinishedChoice],))]
    prompt_logprobs: Annotated[list[dict[str, Json] | None] | None, about("Repeated by the answer.")] = None
    kv_transfer_params: Annotated[dict[str, Json] | None, about("Repeated by the answer.")] = None


class StreamState(Body, kw_only=True):
    """The state of a stream between two parts, which the client sends with the next part."""

    prev_tokens: Annotated[
        Annotated[list[str], Meta(max_length=MAX_WINDOW)], about("The last tokens.", limits="tokens")
    ] = field(default_factory=list)
    prefix_offset: Natural = 0
    read_offset: Natural = 0
    role_sent: bool = False
    logprob_context_token_ids: Annotated[
        Annotated[list[Natural], Meta(max_length=MAX_CONTEXT)],
        about("Tokens that may begin a character.", limits="tokens"),
    ] = field(default_factory=list)
    logprob_text_offset: Natural = 0
    output_token_ids: Annotated[list[Natural], about("All tokens so far, if the model's answers are read.")] = field(
        default_factory=list
    )
    output_chunk_lens: Annotated[list[Positive], about("The number of tokens in each part so far.")] = field(
        default_factory=list
    )
    tools_streamed: bool = False
    last_tool_call_ids: Annotated[list[str], about("The ids of the calls so far.")] = field(default_factory=list)


# Bodies

Ids: TypeAlias = Annotated[list[Natural] | None, about("The prompt's token ids, whose last ones the text continues.")]
PromptTokens: TypeAlias = Annotated[Natural | None, about("Number of the prompt's tokens, for the usage.")]


class DerenderedChat(RenderChatRequest, kw_only=True):
    """The chat's request, as it was rendered."""

    messages: Annotated[list[dict[str, Json]], about("The chat, which is read if prompt_token_ids are absent.")]
    tool_choice: ToolChoice = None
    parallel_tool_calls: Annotated[bool | None, about("Whether a message may have several calls.")] = None
    include_reasoning: Annotated[bool, about("Whether the message includes the reasoning.")] = True


class DerenderedCompletion(RenderCompletionRequest):
    """The completion's request, as it was rendered."""

    prompt: Annotated[Json, NO_EFFECT] = None


CHAT_REQUEST = about("The chat's request.", shown=(DerenderedChat,), is_body=True)
COMPLETION_REQUEST = about("The completion's request.", shown=(DerenderedCompletion,), is_body=True)
WHOLE = about("False: the answer is whole.")
STREAMED = about("True: the answer is a part of a stream.", expected="true for a part of a stream")
STATE = about("The state after the part before; none for the first part.", shown=(StreamState,))
CHUNK = about("A part of the stream of vLLM's /inference/v1/generate.", shown=(GeneratedChunk,))


class DerenderChatRequest(OpenModelBody, kw_only=True):
    """The tokens of a chat's answer."""

    stream: Annotated[Literal[False], WHOLE, about(expected="false for a whole answer")] = False
    generate_response: Annotated[dict[str, Json], about("The tokens.", shown=(GeneratedIds,))]
    prompt_tokens: PromptTokens = None
    prompt_token_ids: Ids = None
    chat_request: Annotated[dict[str, Json] | None, CHAT_REQUEST] = None


class DerenderCompletionRequest(OpenModelBody, kw_only=True):
    """The tokens of completions, an answer for each prompt."""

    stream: Annotated[Literal[False], WHOLE, about(expected="false for whole answers")] = False
    generate_responses: Annotated[
        Annotated[list[Json], Meta(min_length=1)], about("The tokens.", shown=(list[GeneratedIds],))
    ]
    prompt_tokens: Annotated[list[Natural] | None, about("Number of each prompt's tokens, for the usage.")] = None
    prompt_token_ids: Annotated[list[list[Natural] | None] | None, about("Token ids of each prompt.")] = None
    completion_request: Annotated[dict[str, Json] | None, COMPLETION_REQUEST] = None


class DerenderChunkRequest(OpenModelBody, kw_only=True):
    """A part of a stream."""

    stream: Annotated[Literal[True], STREAMED]
    generate_chunk: Annotated[dict[str, Json], CHUNK]
    stream_state: Annotated[dict[str, Json] | None, STATE] = None
    prompt_tokens: PromptTokens = None
    prompt_token_ids: Ids = None


class DerenderChatChunkRequest(DerenderChunkRequest, kw_only=True):
    """A part of a chat's stream."""

    chat_request: Annotated[dict[str, Json] | None, CHAT_REQUEST] = None


class DerenderCompletionChunkRequest(DerenderChunkRequest, kw_only=True):
    """A part of a completion's stream."""

    completion_request: Annotated[dict[str, Json] | None, COMPLETION_REQUEST] = None


FORMS: Final[dict[str, Form[Any]]] = {
    "chat": Form(DerenderChatRequest),
    "completion": Form(DerenderCompletionRequest),
    "chat chunk": Form(DerenderChatChunkRequest),
    "completion chunk": Form(DerenderCompletionChunkRequest),
}
ANSWER, PART = Form(GeneratedIds), Form(GeneratedChunk)
FINISHED_CHOICE, CHOICE_PART = Form(FinishedChoice), Form(GeneratedChoice)
CHAT, COMPLETION = Form(DerenderedChat), Form(DerenderedCompletion)


# Answers


class DerenderedUsage(Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CandidateText(Body):
    token: str
    logprob: float
    bytes: list[int] | None


class PositionText(CandidateText):
    top_logprobs: list[CandidateText]


class LogprobTexts(Body):
    content: list[PositionText] | None


class CompletionLogprobTexts(Body):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class DerenderedFunction(Body):
    name: str
    arguments: str


class DerenderedCall(Body):
    id: str
    type: Literal["function"]
    function: DerenderedFunction


class DerenderedMessage(Body, omit_defaults=True):
    role: Literal["assistant"]
    content: str | None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DerenderedCall] | None = None


class DerenderedChoice(Body):
    index: int
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class DerenderedChatChoice(DerenderedChoice):
    message: DerenderedMessage
    logprobs: LogprobTexts | None


class DerenderedTextChoice(DerenderedChoice):
    text: str
    logprobs: CompletionLogprobTexts | None
    prompt_token_ids: list[int] | None


class DerenderedHead(Body):
    id: str
    created: int
    model: str
    usage: DerenderedUsage | None
    metrics: dict[str, Json] | None


class DerenderedChatAnswer(DerenderedHead):
    """The answer to a chat, as vLLM's chat completions have it."""

    object: Literal["chat.completion"]
    choices: list[DerenderedChatChoice]
    prompt_logprobs: list[dict[str, Json] | None] | None
    prompt_token_ids: list[int] | None
    kv_transfer_params: dict[str, Json] | None


class DerenderedCompletionAnswer(DerenderedHead):
    """The texts, as vLLM's completions have them."""

    object: Literal["text_completion"]
    choices: list[DerenderedTextChoice]
    kv_transfer_params: dict[str, Json] | None


class DerenderedFunctionPart(Body, omit_defaults=True):
    arguments: str
    name: str | None = None


class DerenderedCallPart(Body, omit_defaults=True):
    index: int
    function: DerenderedFunctionPart
    id: str | None = None
    type: Literal["function"] | None = None


class DerenderedDelta(Body, omit_defaults=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[DerenderedCallPart] | None = None


class DerenderedDeltaChoice(DerenderedChoice):
    delta: DerenderedDelta
    logprobs: LogprobTexts | None


class DerenderedChatChunk(DerenderedHead):
    object: Literal["chat.completion.chunk"]
    choices: list[DerenderedDeltaChoice]
    prompt_token_ids: list[int] | None


class DerenderedCompletionChunk(DerenderedHead):
    object: Literal["text_completion"]
    choices: list[DerenderedTextChoice]


class DerenderedChatPart(Body):
    """The next chunk of a chat's stream, and the state for the part after it."""

    chunk: DerenderedChatChunk
    stream_state: StreamState


class DerenderedCompletionPart(Body):
    """The next chunk of a completion's stream, and the state for the part after it."""

    chunk: DerenderedCompletionChunk
    stream_state: StreamState
