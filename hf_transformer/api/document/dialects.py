"""Operations of other servers' APIs.

Their paths, bodies, tasks and answers are those of the dialects' table. Here are their names and examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from hf_transformer.api.dialects.routes import PREDICTIVE
from hf_transformer.api.document.openai import EMBEDDINGS, RANKING, RERANK, TEXTS
from hf_transformer.api.document.operation import MODEL, ErrorForm, Operation, Shape
from hf_transformer.api.document.schemas import Schemas
from hf_transformer.api.openai.rerank import InfinityRerankResponse
from hf_transformer.api.table import ROUTES
from hf_transformer.types.request import Json

WITHOUT_MODEL = ("RequestId", "TraceParent")
PARAMETERS = ("Model", *WITHOUT_MODEL)
FINE, RAIN = "What a fine day.", "Rain is falling."
SCORED: Json = {"queries": "What do cats eat?", "documents": ["Paris is a city.", "Cats eat fish."]}
COHERE: Json = {"model": MODEL, "texts": [FINE], "input_type": "search_query", "embedding_types": ["float"]}
TEI, VLLM, RETRIEVAL, PRESIDIO = ("TEI",), ("vLLM",), ("Retrieval",), ("Presidio",)
FORMS: Mapping[tuple[str, ...], ErrorForm] = {
    TEI: ErrorForm.TEI,
    VLLM: ErrorForm.OPENAI,
    RETRIEVAL: ErrorForm.MESSAGE,
    PRESIDIO: ErrorForm.PRESIDIO,
}


def body_of(path: str) -> Shape:
    """The type of a route's body; where several dialects share the path, one of their types."""
    return Union[tuple(route.form.kind for route in ROUTES[path] if route.form is not None)]  # noqa: UP007 - of a list


def any_answer(schemas: Schemas) -> Json:
    return {"type": ["array", "object"]}


def answer_of(path: str) -> Shape:
    """The type of a route's answer."""
    answers = dict.fromkeys(answer for route in ROUTES[path] for answer in route.answers)
    return Union[tuple(answers)] if answers else any_answer  # noqa: UP007 - of a list


def tasks_of(path: str) -> tuple[str, ...]:
    """The tasks of a route; empty if all predictive models answer there."""
    tasks = tuple(dict.fromkeys(task for route in ROUTES[path] for task in route.tasks))
    return () if set(PREDICTIVE) <= set(tasks) else tasks


def _dialect(path: str, id: str, tags: tuple[str, ...], summary: str, *, title: str = "", **more: Any) -> Operation:
    """An operation. A single example is ``example``."""
    example = more.pop("example", None)
    examples: Mapping[str, Json] = more.pop("examples", {title or summary: example})
    more.setdefault("errors", FORMS.get(tags, ErrorForm.SHARED))
    more.setdefault("parameters", PARAMETERS)
    return Operation(
        path=path,
        id=id,
        tags=tags,
        tasks=tasks_of(path),
        summary=summary,
        body=body_of(path),
        answer=answer_of(path),
        examples=examples,
        **more,
    )


BY_KIND = _dialect(
    "/",
    "teiRoot",
    TEI,
    "The route of the model's kind",
    description="/embed, /embed_sparse, /similarity, /rerank or /predict. With parameters, every predictive task "
    "answers in the format of transformers' pipelines, as huggingface_hub expects.",
    examples={"inputs": {"inputs": FINE}, "with parameters": {"inputs": FINE, "parameters": {}}},
)
SCORE = _dialect("/score", "score", VLLM, "Scores of pairs of texts", example=SCORED)
CLASSIFY = _dialect("/classify", "classify", VLLM, "The probabilities of all labels", example={"input": FINE})
POOLING = _dialect("/pooling", "pooling", VLLM, "Vectors of texts or tokens, or probabilities", example={"input": FINE})
COHERE_EMBED = _dialect("/v1/embed", "v1Embed", RETRIEVAL, "Vectors of texts, as in Cohere", example=COHERE)
V1_EMBEDDINGS = EMBEDDINGS.at("/v1/embeddings", "v1Embeddings", examples={"embeddings": TEXTS})
V1_RERANK = RERANK.at("/v1/rerank", "v1Rerank", examples={"documents": RANKING})
OPERATIONS = (
    BY_KIND,
    _dialect(
        "/embed",
        "teiEmbed",
        TEI,
        "Vectors of texts",
        examples={
            "two texts": {"inputs": [FINE, RAIN]},
            "one text": {"inputs": FINE, "truncate": True, "dimensions": 4},
        },
    ),
    _dialect("/embed_all", "teiEmbedAll", TEI, "Vectors of tokens", example={"inputs": FINE}),
    _dialect(
        "/embed_sparse",
        "teiEmbedSparse",
        TEI,
        "Weights of tokens for each text",
        description="The model needs sparse vectors.",
        example={"inputs": FINE},
    ),
    _dialect(
        "/similarity",
        "teiSimilarity",
        TEI,
        "The similarity of sentences to a source",
        example={"inputs": {"source_sentence": "A fine day.", "sentences": ["A sunny day.", "A red car."]}},
    ),
    _dialect(
        "/predict",
        "teiPredict",
        TEI,
        "All labels of a text or a pair",
        examples={"one text": {"inputs": FINE}, "several": {"inputs": [[FINE], [RAIN, "It is wet."]]}},
    ),
    _dialect(
        "/tokenize",
        "teiTokenize",
        ("TEI", "vLLM"),
        "The tokens of texts",
        description="The fields choose the API. TEI's spans are in bytes of UTF-8. The tokens of a chat are those "
        "of its prompt; the body is one of chat completions, Responses or Messages.",
        examples={
            "vLLM": {"prompt": FINE, "return_token_strs": True},
            "a chat": {"messages": [{"role": "user", "content": FINE}]},
            "Responses": {"input": FINE, "instructions": "Be brief."},
            "Messages": {"system": "Be brief.", "messages": [{"role": "user", "content": FINE}]},
            "TEI": {"inputs": FINE},
        },
    ),
    _dialect("/decode", "teiDecode", TEI, "The texts of token ids", example={"ids": [1, 2]}),
    BY_KIND.at("/invocations", "teiInvocations"),
    _dialect(
        "/vertex",
        "teiVertex",
        TEI,
        "Several bodies, each by the model's kind",
        example={"instances": [{"inputs": FINE}, {"inputs": RAIN}]},
    ),
    *(SCORE, SCORE.at("/v1/score", "v1Score")),
    *(CLASSIFY, CLASSIFY.at("/v1/classify", "v1Classify")),
    *(POOLING, POOLING.at("/v1/pooling", "v1Pooling")),
    _dialect(
        "/detokenize",
        "detokenizeIds",
        VLLM,
        "The text of token ids",
        description="The text has special tokens.",
        example={"tokens": [1, 2]},
    ),
    _dialect(
        "/v1/completions/render",
        "renderCompletions",
        VLLM,
        "The token ids of prompts",
        description="As in vLLM's render server. Further fields of completions become sampling_params; unknown fields "
        "have no effect.",
        example={"prompt": "The capital of france is"},
        returns="A request for each prompt, in a list, for vLLM's /inference/v1/generate.",
    ),
    _dialect(
        "/v1/chat/completions/render",
        "renderChat",
        VLLM,
        "The token ids of a chat",
        description="As for prompts. The model needs a chat template.",
        example={"messages": [{"role": "user", "content": "What is the capital of france?"}]},
        returns="The request for vLLM's /inference/v1/generate.",
    ),
    _dialect(
        "/v1/messages/render",
        "renderMessages",
        VLLM,
        "The token ids of a conversation in Anthropic's form",
        description="As for chats.",
        example={"max_tokens": 8, "messages": [{"role": "user", "content": "What is the capital of france?"}]},
        returns="The request for vLLM's /inference/v1/generate.",
    ),
    _dialect(
        "/v1/responses/render",
        "renderResponses",
        VLLM,
        "The token ids of a conversation in the form of Responses",
        description="As for chats.",
        example={"input": "What is the capital of france?"},
        returns="The request for vLLM's /inference/v1/generate.",
    ),
    _dialect(
        "/v1/chat/completions/derender",
        "derenderChat",
        VLLM,
        "The answer to a chat from its token ids",
        description="As in vLLM's render server, whole or in parts. The client keeps the state of a stream.",
        examples={
            "whole": {
                "generate_response": {"choices": [{"index": 0, "token_ids": [1, 2]}]},
                "chat_request": {"messages": [{"role": "user", "content": "What is the capital of france?"}]},
            },
            "a part of a stream": {
                "stream": True,
                "generate_chunk": {"choices": [{"index": 0, "token_ids": [1, 2]}]},
                "prompt_token_ids": [1],
                "chat_request": {"messages": [{"role": "user", "content": "What is the capital of france?"}]},
            },
        },
    ),
    _dialect(
        "/v1/completions/derender",
        "derenderCompletions",
        VLLM,
        "The texts of prompts from their token ids",
        description="As for chats.",
        examples={
            "whole": {"generate_responses": [{"choices": [{"index": 0, "token_ids": [1, 2]}]}]},
            "a part of a stream": {
                "stream": True,
                "generate_chunk": {"choices": [{"index": 0, "token_ids": [1, 2]}]},
            },
        },
    ),
    _dialect(
        "/generative_scoring",
        "generativeScoring",
        VLLM,
        "The probability of a token after each text",
        description="The service needs the model's logits.",
        example={"query": "Is this a city?", "items": ["Paris"], "label_token_ids": [1, 2]},
    ),
    COHERE_EMBED,
    _dialect("/v2/embed", "v2Embed", RETRIEVAL, "Vectors of texts, as in Cohere", example=COHERE),
    _dialect(
        "/v2/rerank",
        "v2Rerank",
        RETRIEVAL,
        "Documents by their relevance for a query, as in Cohere",
        example=RANKING,
        returns="The positions of the documents as index, each with its relevance_score, best first.",
    ),
    _dialect(
        "/v1/multi-vector",
        "multiVector",
        RETRIEVAL,
        "Vectors of tokens, as in Jina",
        description="The model needs vectors of tokens.",
        example={"input": [FINE], "input_type": "document"},
    ),
    _dialect(
        "/v1/contextualizedembeddings",
        "contextualizedEmbeddings",
        RETRIEVAL,
        "Vectors of chunks in their documents, as in Voyage",
        example={"inputs": [[FINE, "It is warm."]], "input_type": "document"},
    ),
    _dialect(
        "/v1/ranking",
        "ranking",
        RETRIEVAL,
        "The logits of passages for a query, as in NVIDIA NIM",
        example={"query": {"text": "What do cats eat?"}, "passages": [{"text": "Cats eat fish."}]},
    ),
    _dialect(
        "/analyze",
        "presidioAnalyze",
        PRESIDIO,
        "The personal data in a text, as in Presidio's analyzer",
        description="The answer to a list of texts is a list of results for each.",
        example={"text": "Anna Smith lives in Berlin.", "language": "en"},
    ),
    _dialect(
        "/anonymize",
        "presidioAnonymize",
        PRESIDIO,
        "A text without its personal data, as in Presidio's anonymizer",
        description="Replaces the results of /analyze. No model is asked.",
        example={
            "text": "Anna Smith lives in Berlin.",
            "analyzer_results": [{"start": 0, "end": 10, "entity_type": "PERSON", "score": 0.9}],
        },
        parameters=WITHOUT_MODEL,
        runs_model=False,
    ),
    *(V1_EMBEDDINGS.at("/embeddings", "embeddings"), V1_EMBEDDINGS),
    V1_EMBEDDINGS.at("/infinity/embeddings", "infinityEmbeddings", summary="Vectors of texts, for Infinity's clients"),
    V1_RERANK,
    V1_RERANK.at(
        "/infinity/rerank",
        "infinityRerank",
        summary="Documents by their relevance for a query, in Infinity's form",
        answer=InfinityRerankResponse,
        returns="The best document first. A document is a string.",
    ),
    _dialect(
        "/rerank",
        "rerank",
        ("OpenAI", "TEI"),
        "Texts by their relevance for a query",
        description="The fields choose the API.",
        examples={
            "documents": RANKING,
            "texts": {"query": "What do cats eat?", "texts": ["Paris is a city.", "Cats eat fish."]},
        },
        returns="The best one first.",
    ),
)
