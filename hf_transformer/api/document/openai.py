"""Operations of the OpenAI API."""

from __future__ import annotations

from typing import Literal

from hf_transformer.api.bodies import TASKS
from hf_transformer.api.chat_completions import ChatRequest
from hf_transformer.api.document.operation import EVENTS, MODEL, PREFIX, ErrorForm, Operation
from hf_transformer.api.document.schemas import ClosedAnswer, events, named_events
from hf_transformer.api.document.v1 import OpenAIModel
from hf_transformer.api.openai.answers import (
    RESPONSE_EVENTS,
    ChatChunk,
    ChatResponse,
    CompletionChunk,
    CompletionResponse,
    ResponsesAnswer,
)
from hf_transformer.api.openai.completions import CompletionRequest
from hf_transformer.api.openai.embeddings import EmbeddingsRequest, EmbeddingsResponse
from hf_transformer.api.openai.moderations import ModerationsRequest, ModerationsResponse
from hf_transformer.api.openai.rerank import RerankRequest, RerankResponse
from hf_transformer.api.openai.responses import ResponsesRequest
from hf_transformer.types.request import Json

OPENAI = ("OpenAI",)
PARAMETERS = ("Model", "RequestId", "TraceParent")
QUESTION: Json = {"role": "user", "content": "What is the capital of france?"}
PROMPT = "The capital of france is"
STREAMED = "With stream, server-sent events with a chunk each, and [DONE] at the end."


class OpenAIModels(ClosedAnswer):
    object: Literal["list"]
    data: list[OpenAIModel]


COMPLETIONS = Operation(
    path=f"{PREFIX}/v1/completions",
    id="openaiCompletions",
    summary="Texts that continue prompts",
    tags=OPENAI,
    tasks=TASKS["completions"],
    body=CompletionRequest,
    examples={
        "completion": {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0},
        "streamed": {
            "model": MODEL,
            "prompt": PROMPT,
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    },
    answer=CompletionResponse,
    other_answers={EVENTS: events(CompletionChunk, done=True)},
    returns=f"The texts. {STREAMED}",
    parameters=PARAMETERS,
    errors=ErrorForm.OPENAI,
)
CHAT = COMPLETIONS.at(
    f"{PREFIX}/v1/chat/completions",
    "openaiChat",
    summary="The assistant's answer to messages",
    description="The model needs a chat template.",
    body=ChatRequest,
    examples={
        "chat": {"model": MODEL, "messages": [QUESTION]},
        "streamed": {
            "model": MODEL,
            "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}],
            "max_completion_tokens": 8,
            "stream": True,
        },
    },
    answer=ChatResponse,
    other_answers={EVENTS: events(ChatChunk, done=True)},
)
RESPONSES = COMPLETIONS.at(
    f"{PREFIX}/v1/responses",
    "openaiResponses",
    summary="The assistant's answer to items",
    description="The model needs a chat template. Nothing is stored, so the input has all items of the conversation.",
    body=ResponsesRequest,
    examples={
        "a text": {"model": MODEL, "input": QUESTION["content"]},
        "streamed": {
            "model": MODEL,
            "instructions": "Be brief.",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION["content"]}]}],
            "max_output_tokens": 8,
            "stream": True,
        },
    },
    answer=ResponsesAnswer,
    other_answers={EVENTS: named_events(RESPONSE_EVENTS, "response.output_text.delta")},
    returns="The response. With stream, server-sent events.",
)
TEXTS: Json = {"model": MODEL, "input": ["What a fine day.", "Rain is falling."]}
EMBEDDINGS = Operation(
    path=f"{PREFIX}/v1/embeddings",
    id="openaiEmbeddings",
    summary="Vectors of texts",
    tags=OPENAI,
    tasks=TASKS["embeddings"],
    body=EmbeddingsRequest,
    examples={
        "embeddings": TEXTS,
        "a short vector in base64": {
            "model": MODEL,
            "input": "What a fine day.",
            "dimensions": 4,
            "encoding_format": "base64",
        },
    },
    answer=EmbeddingsResponse,
    returns="A vector for each text, in their order.",
    parameters=PARAMETERS,
    errors=ErrorForm.OPENAI,
)
RANKING: Json = {"model": MODEL, "query": "What do cats eat?", "documents": ["Paris is a city.", "Cats eat fish."]}
RERANK = EMBEDDINGS.at(
    f"{PREFIX}/v1/rerank",
    "openaiRerank",
    summary="Documents by their relevance for a query",
    tasks=TASKS["rerank"],
    body=RerankRequest,
    examples={"rerank": {**RANKING, "top_n": 1}},
    answer=RerankResponse,
    returns="The best document first.",
)
MODERATIONS = EMBEDDINGS.at(
    f"{PREFIX}/v1/moderations",
    "openaiModerations",
    summary="Whether texts are harmful",
    tasks=TASKS["moderations"],
    body=ModerationsRequest,
    examples={
        "texts": TEXTS,
        "parts": {"model": MODEL, "input": [{"type": "text", "text": "What a fine day."}]},
    },
    answer=ModerationsResponse,
    returns="A result for each text, in their order.",
)
MODELS = Operation(
    method="get",
    path=f"{PREFIX}/v1/models",
    id="openaiModels",
    summary="The served models",
    tags=OPENAI,
    answer=OpenAIModels,
    returns="The list of models.",
    errors=ErrorForm.OPENAI,
    only_with_prefix=True,
)
OPERATIONS = (
    *(EMBEDDINGS, RERANK, MODERATIONS, COMPLETIONS, CHAT, RESPONSES, MODELS),
    MODELS.at(
        f"{PREFIX}/v1/models/{{model}}",
        "openaiModel",
        summary="A served model",
        answer=OpenAIModel,
        returns="A member of the list.",
    ),
)
