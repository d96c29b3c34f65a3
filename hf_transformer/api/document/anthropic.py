"""Operations of Anthropic's Messages API."""

from __future__ import annotations

from hf_transformer.api.anthropic.answers import MESSAGE_EVENTS, MessagesResponse, TokenCount
from hf_transformer.api.anthropic.bodies import CountTokensRequest, MessagesRequest
from hf_transformer.api.document.operation import EVENTS, MODEL, ErrorForm, Operation
from hf_transformer.api.document.schemas import named_events
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.types.request import Json

QUESTION: Json = {"role": "user", "content": "What is the capital of france?"}
BLOCKS: Json = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}
MESSAGES = Operation(
    path="/v1/messages",
    id="anthropicMessages",
    summary="The assistant's next message",
    description="The model needs a chat template.",
    tags=("Anthropic",),
    tasks=GENERATIVE,
    body=MessagesRequest,
    examples={
        "a message": {"model": MODEL, "max_tokens": 8, "messages": [QUESTION]},
        "streamed": {"model": MODEL, "max_tokens": 8, "system": "Be brief.", "messages": [BLOCKS], "stream": True},
    },
    answer=MessagesResponse,
    other_answers={EVENTS: named_events(MESSAGE_EVENTS, "content_block_delta")},
    returns="The message. With stream, server-sent events.",
    parameters=("Model", "RequestId", "TraceParent"),
    errors=ErrorForm.ANTHROPIC,
    notes_ignored=True,
)
OPERATIONS = (
    MESSAGES,
    MESSAGES.at(
        "/v1/messages/count_tokens",
        "anthropicCountTokens",
        summary="The number of tokens of a conversation",
        description="The model needs a chat template. The count is the input_tokens of the message.",
        body=CountTokensRequest,
        examples={"a message": {"model": MODEL, "messages": [QUESTION]}},
        answer=TokenCount,
        other_answers={},
        returns="The number of tokens.",
        runs_model=False,
    ),
)
