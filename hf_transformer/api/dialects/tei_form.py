"""Bodies, headers and errors of text-embeddings-inference's API: parsing and rendering without a model.

    {"error": "inputs: expected a text, ...", "error_type": "Validation"}

As in the original, a null field counts as absent, and unknown fields are ignored; a header of the answer lists them.

Source: https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs and router/src/lib.rs
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Annotated, TypeVar

import orjson
from msgspec import UNSET, Meta, Struct, UnsetType

from hf_transformer.api.bodies import OpenModelBody
from hf_transformer.api.retrieval import Dimensions, PromptName, Side
from hf_transformer.errors import (
    EmptyList,
    FieldError,
    InvalidInput,
    Path,
    PredictorError,
    PredictorTimeout,
    RequestError,
    TooManyRequests,
    Unavailable,
)
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.similarity import SparseVector
from hf_transformer.types.fields import Form, Natural, NonEmpty, OpenBody, about, read_value
from hf_transformer.types.http import HeaderLines
from hf_transformer.types.request import Context, Json, RequestBudget

VALIDATED = (("prompt_name",), ("dimensions",))
"""The last names of fields whose values the original compares with the model."""
SEQUENCES = "a text, a pair [text, text], or a list of [text] and [text, text]"
Ids = NonEmpty[Natural]
Text = Annotated[str, about(expected="a text")]
TextOrIds = Annotated[str | list[Json], about(expected="a text or a list of token ids")]
TextOrPair = Annotated[NonEmpty[Text], Meta(max_length=2), about(expected="[text] or [text, text]")]
Sequences = Annotated[
    str | NonEmpty[Json],
    about(
        "A text, a text or pair in a list, or a list of such lists.",
        expected=SEQUENCES,
        shown=(str, TextOrPair, NonEmpty[TextOrPair]),
    ),
]


class TeiTruncation(OpenModelBody, kw_only=True):
    truncate: Annotated[
        bool | None, about("Truncation of long texts; --on_overflow by default.", parameter="truncation")
    ] = None
    truncation_direction: Annotated[Side | None, about("The side that is cut off.", parameter="truncation_side")] = None


class TeiPrompt(TeiTruncation, kw_only=True):
    prompt_name: PromptName = None


class TeiEmbedAllRequest(TeiPrompt, kw_only=True):
    inputs: Annotated[
        str | NonEmpty[Json],
        about(
            "A text, a list of token ids, or a list of texts and such lists.",
            expected="a text, a list of texts, a list of token ids or a list of such lists",
            shown=(str, Ids, NonEmpty[str | Ids]),
        ),
    ]


class TeiEmbedRequest(TeiEmbedAllRequest):
    normalize: Annotated[bool, about("Vectors with a length of 1.", parameter="normalize")] = True
    dimensions: Dimensions = None


class Sentences(OpenBody):
    source_sentence: Annotated[str, about(expected="a text")]
    sentences: Annotated[NonEmpty[Json], about(expected="a list of texts", shown=(NonEmpty[str],))]


class TeiSimilarityRequest(OpenModelBody):
    inputs: Annotated[
        Sentences,
        about("A text, and those to compare with.", expected='{"source_sentence": text, "sentences": [text]}'),
    ]
    parameters: Annotated[dict[str, Json] | None, about("Further fields.", shown=(TeiPrompt,))] = None


class TeiRerankRequest(TeiTruncation):
    query: Annotated[str, about("The text to compare the others with.", expected="a text")]
    texts: Annotated[NonEmpty[Json], about("The texts to rank.", expected="a list of texts", shown=(NonEmpty[str],))]
    raw_scores: Annotated[bool | None, about("Logits as scores.", parameter="raw_scores")] = None
    return_text: Annotated[bool | None, about("The texts in the answer.", parameter="return_documents")] = None


class TeiPredictRequest(TeiTruncation):
    inputs: Sequences
    raw_scores: Annotated[bool | None, about("Logits as scores.", parameter="raw_scores")] = None
    parameters: Annotated[dict[str, Json] | None, about("Parameters of the task; see POST /.")] = None


class TeiTokenizeRequest(OpenModelBody):
    inputs: Annotated[
        str | NonEmpty[Json],
        about("A text or a list of texts.", expected="a text or a list of texts", shown=(str, NonEmpty[str])),
    ]
    add_special_tokens: Annotated[bool | None, about("The special tokens.", parameter="add_special_tokens")] = None
    prompt_name: PromptName = None


class TeiDecodeRequest(OpenModelBody):
    ids: Annotated[
        NonEmpty[Json],
        about(
            "Token ids, or lists of them.",
            expected="a list of token ids or a list of such lists",
            shown=(Ids, NonEmpty[Ids]),
        ),
    ]
    skip_special_tokens: Annotated[bool, about("Texts without special tokens.")] = True


class TeiKindRequest(OpenModelBody):
    """A body of the route of the model's kind."""

    inputs: Annotated[
        Json,
        about("A text, a list of texts, or other inputs of the task.", shown=(str, NonEmpty[Json], dict[str, Json])),
    ] = None
    query: Annotated[Json, about("As in /rerank, for a reranker.")] = None
    texts: Annotated[Json, about("As in /rerank, for a reranker.")] = None
    parameters: Annotated[dict[str, Json] | None, about("Parameters of the task.")] = None


class TeiVertexRequest(OpenModelBody):
    instances: Annotated[
        NonEmpty[Json], about("Bodies.", expected="a list of bodies", shown=(NonEmpty[TeiKindRequest],))
    ]


Body = TypeVar("Body", bound=OpenModelBody)


def read(form: Form[Body], payload: Json, context: Context, path: Path = ()) -> Body:
    """Returns a body. Sets the names of fields, and notes unknown ones. Raises InvalidInput."""
    unknown: list[str] = []
    body = form.read(payload, unknown, path)
    for name in unknown:
        note_ignored(name, context.ignored)
    context.field_names = form.client_names(payload)
    return body


def read_options(form: Form[Body], body: Body) -> dict[str, Json]:
    """Returns the task's parameters of a body."""
    options = form.options(body)
    if "truncation_side" in options:
        options["truncation_side"] = options["truncation_side"].lower()
    return options


def read_inputs(inputs: str | list[Json], budget: RequestBudget) -> list[Json]:
    """Reads a text, a list of token ids, or a list of texts and such lists, as instances of the task.

    Raises:
        InvalidInput: the value has another form.
        TooLarge: there are too many texts.
    """
    if isinstance(inputs, str):
        return [inputs]
    if type(inputs[0]) is int:
        return [{"token_ids": inputs}]
    budget.few("inputs", inputs)
    items = read_value(inputs, list[TextOrIds], ("inputs",))
    return [item if isinstance(item, str) else {"token_ids": item} for item in items]


def read_strings(texts: list[Json], path: Path, budget: RequestBudget, earlier: int = 0) -> list[str]:
    """Reads a list of texts, beside ``earlier`` texts. Raises InvalidInput, and TooLarge for too many."""
    budget.few(path, texts, earlier)
    strings: list[str] = read_value(texts, list[Text], path)
    return strings


def read_sequences(inputs: str | list[Json], budget: RequestBudget) -> tuple[list[tuple[str, ...]], bool]:
    """Reads the texts and pairs of /predict, each as a tuple of one or two texts, and whether there is only one.

        text | [text] | [text, text]: one text, or one pair        [[text], [text, text], ...]: several

    Raises InvalidInput for another form, and TooLarge for too many.
    """
    items = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(items[0], str):
        return [tuple(read_value(items, TextOrPair, ("inputs",)))], True
    budget.few("inputs", items)
    return [tuple(sequence) for sequence in read_value(items, list[TextOrPair], ("inputs",))], False


def characters(text: Json) -> int:
    """Counts a text's characters, or its token ids, as the dialect does."""
    return len(text) if isinstance(text, str) else len(text["token_ids"])


def sparse_values(vector: SparseVector) -> list[Json]:
    """Renders a sparse vector."""
    pairs = zip(vector["indices"], vector["values"], strict=True)
    return [{"index": int(index), "value": value} for index, value in pairs]


def compute_headers(count: int, tokens: int, context: Context) -> HeaderLines:
    """The headers of an answer: numbers of characters and tokens, and durations in whole milliseconds.

    The original reports the mean over a request's texts; these durations are those of the whole request.
    """
    total = (perf_counter() - context.arrived) * 1e3
    numbers = {"time": total, "characters": count, "tokens": tokens}
    stages = {
        "total": total,
        "tokenization": context.tokenize * 1e3,
        "queue": context.queue * 1e3,
        "inference": max(context.predict - context.queue, 0.0) * 1e3,
    }
    return [
        (b"x-compute-type", b"triton"),
        *((f"x-compute-{name}".encode(), b"%d" % number) for name, number in numbers.items()),
        *((f"x-{name}-time".encode(), b"%d" % number) for name, number in stages.items()),
    ]


def error_kind(error: RequestError) -> tuple[int, str]:
    """Returns the dialect's status and error type of an error."""
    if isinstance(error, TooManyRequests):
        return 429, "Overloaded"
    if isinstance(error, Unavailable):
        return 503, "Unhealthy"
    if isinstance(error, PredictorError | PredictorTimeout):
        return 424, "Backend"
    if isinstance(error, EmptyList):
        return 400, "Empty"
    if isinstance(error, InvalidInput) and error.path in (("model",), ("representations",)):  # a model of another kind
        return 424, "Backend"
    if isinstance(error, InvalidInput) and error.path != ("body",):
        # The original's check of a value is a 413; a field of another type fails in its parser, with 422.
        return 413 if error.path[-1:] in VALIDATED else 422, "Validation"
    return error.status, "Validation" if error.status < 500 else "Backend"


def status_of(error: RequestError) -> int:
    """Returns the dialect's status of an error."""
    return error_kind(error)[0]


def render_error(error: RequestError, status: int) -> bytes:
    """Serializes an error in the dialect's form. The class of an error with another status says nothing about it."""
    kind = error_kind(error)[1] if status_of(error) == status else "Validation" if status < 500 else "Backend"
    return orjson.dumps({"error": str(error), "error_type": kind})


def within_instance(error: FieldError, index: int, context: Context) -> FieldError:
    """Returns an error of one of several requests in a body, with the path of the dialect's field."""
    name = context.field_names
    path = error.path if name is None else name(error.path)
    # The path "model" has a meaning of its own in error_kind.
    return error.at(path if path == ("model",) else ("instances", index, *(() if path == ("body",) else path)))


def byte_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts spans in characters to spans in bytes of UTF-8, which the dialect uses."""
    if text.isascii():
        return list(spans)
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode("utf-8", "surrogatepass")))
    return [(starts[start], starts[end]) for start, end in spans]


# Answers


class TeiRank(Struct):
    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiWeight(Struct):
    index: int
    value: float


class TeiLabel(Struct):
    score: float
    label: str


class TeiToken(Struct):
    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TeiPredictions(Struct):
    predictions: list[Json]
