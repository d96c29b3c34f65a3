"""Operations of tokenization beside V1."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from hf_transformer.api.document.operation import Maybe, Operation
from hf_transformer.api.document.schemas import ClosedAnswer, Schemas
from hf_transformer.api.document.v1 import CONTEXT, Some, Span, instances_body
from hf_transformer.api.tokenize import PromptedTokenizeParameters, TokenizeParameters
from hf_transformer.api.v1_tokenize import DetokenizeParameters
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.fields import Body, Natural, about
from hf_transformer.types.request import Json

TOKENS = ("Tokenization",)


class TextPair(Body):
    text: str
    text_pair: str | None = None


class IdList(Body):
    token_ids: list[Natural]


class TokenizedText(ClosedAnswer, kw_only=True):
    """The tokens of an instance."""

    ids: Maybe[list[int]] = UNSET
    tokens: Maybe[list[str]] = UNSET
    offsets: Annotated[
        Maybe[list[Span] | None], about("The first character of each token, and the one after its last.")
    ] = UNSET
    special_tokens_mask: Annotated[Maybe[list[int] | None], about("1 for a special token, else 0.")] = UNSET
    type_ids: Maybe[list[int] | None] = UNSET
    sequence_ids: Annotated[
        Maybe[list[int | None] | None],
        about("For a pair: 0 for its first text, 1 for its second, null for special tokens."),
    ] = UNSET
    count: Annotated[int, about("All tokens.")]
    max_length: Annotated[int, about("The model's length.")]
    kept: Annotated[int, about("The tokens that the model would get.")]
    truncated: Annotated[int, about("The tokens that truncation would remove.")]
    truncated_text: Annotated[
        list[Span | None] | None, about("The characters of each text that truncation would remove.")
    ]


class V1TokenizeResponse(ClosedAnswer):
    predictions: Annotated[list[TokenizedText], Some]


class V1DetokenizeResponse(ClosedAnswer):
    predictions: Annotated[list[str], Some]


def tokenize_request(schemas: Schemas) -> Json:
    prompts = any(task is TextEmbedding for task in schemas.tasks)
    options = schemas.of(PromptedTokenizeParameters if prompts else TokenizeParameters)
    return schemas.reference(
        "V1TokenizeRequest",
        lambda: instances_body({"anyOf": [{"type": "string"}, schemas.of(TextPair)]}, options, single=True),
    )


def detokenize_request(schemas: Schemas) -> Json:
    items = schemas.of(list[Natural] | IdList)
    return schemas.reference(
        "V1DetokenizeRequest", lambda: instances_body(items, schemas.of(DetokenizeParameters), single=False)
    )


FINE = "What a fine day."
OPERATIONS = (
    Operation(
        path="/v1/models/{model}:tokenize",
        id="tokenize",
        summary="The tokens of texts, and the part that truncation removes",
        tags=TOKENS,
        body=tokenize_request,
        examples={
            "a text": {"instances": [FINE]},
            "a pair": {"instances": [{"text": FINE, "text_pair": "Rain is falling."}]},
            "the number of tokens": {"instances": [FINE], "parameters": {"return_tokens": False}},
        },
        answer=V1TokenizeResponse,
        returns="The tokens of each instance, in their order.",
        parameters=CONTEXT,
        runs_model=False,
    ),
    Operation(
        path="/v1/models/{model}:detokenize",
        id="detokenize",
        summary="Texts of tokens",
        tags=TOKENS,
        body=detokenize_request,
        examples={
            "token ids": {"instances": [[1, 2, 3]]},
            "without special tokens": {
                "instances": [{"token_ids": [1, 2, 3]}],
                "parameters": {"skip_special_tokens": True},
            },
        },
        answer=V1DetokenizeResponse,
        returns="A text for each instance, in their order.",
        parameters=CONTEXT,
        runs_model=False,
    ),
)
