"""Bodies, headers and errors of text-embeddings-inference's API: parsing and rendering without a model.

    {"error": "inputs: expected a text, ...", "error_type": "Validation"}

As in the original, a null field counts as absent, and unknown fields are ignored; a header of the answer lists them.

Source: https://github.com/huggingface/text-embeddings-inference, router/src/http/types.rs and router/src/lib.rs
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import perf_counter

import orjson

from hf_transformer.api.dialects.fields import read_side
from hf_transformer.api.errors import expect, expect_items
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
    describe,
)
from hf_transformer.protocol.server_codec import note_unknown
from hf_transformer.tasks.similarity import SparseVector
from hf_transformer.types.http import HeaderLines
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Context, Json, RequestBudget

PARAMETERS: Mapping[str, str] = {
    "truncate": "truncation",
    "prompt_name": "prompt_name",
    "normalize": "normalize",
    "dimensions": "dimensions",
    "raw_scores": "raw_scores",
    "return_text": "return_documents",
}
"""The task's parameters by the dialect's fields; ``truncation_direction`` has other values too."""
TRUNCATION = ("truncate", "truncation_direction")
NAMES = TOP_LEVEL.then(
    {**{(ours,): (theirs,) for theirs, ours in PARAMETERS.items()}, ("truncation_side",): ("truncation_direction",)}
)
"""The names of fields."""
VALIDATED = (("prompt_name",), ("dimensions",))
"""The last names of fields whose values the original compares with the model."""
TEXT_OR_IDS = "a text or a list of token ids"


def read_parameters(fields: Mapping[str, Json], known: Collection[str], context: Context) -> dict[str, Json]:
    """Returns the task's parameters among the ``known`` fields. The task validates their values.

    Raises InvalidInput for an unknown ``truncation_direction``.
    """
    note_unknown(fields, {*known, "model"}, context.ignored)
    present = {name: fields[name] for name in known if fields.get(name) is not None}
    parameters = {ours: present[theirs] for theirs, ours in PARAMETERS.items() if theirs in present}
    if "truncation_direction" in present:
        parameters["truncation_side"] = read_side("truncation_direction", present["truncation_direction"])
    return parameters


def read_inputs(inputs: Json, budget: RequestBudget) -> list[Json]:
    """Reads a text, a list of token ids, or a list of texts and such lists, as instances of the task.

    Raises:
        InvalidInput: the value has another form, or is an empty list.
        TooLarge: there are too many texts.
    """
    if isinstance(inputs, str):
        return [inputs]
    items = expect_items(inputs, "inputs", "a text, a list of texts, a list of token ids or a list of such lists")
    if type(items[0]) is int:
        return [{"token_ids": items}]
    budget.few("inputs", items)
    for index, item in enumerate(items):
        expect(item, str | list, ("inputs", index), TEXT_OR_IDS)
    return [{"token_ids": item} if isinstance(item, list) else item for item in items]


def read_sequences(inputs: Json, budget: RequestBudget) -> tuple[list[tuple[str, ...]], bool]:
    """Reads the texts and pairs of /predict, each as a tuple of one or two texts, and whether there is only one.

        text | [text] | [text, text]: one text, or one pair        [[text], [text, text], ...]: several

    Raises InvalidInput for another form, and TooLarge for too many.
    """
    form = "a text, a pair [text, text], or a list of [text] and [text, text]"
    items = [inputs] if isinstance(inputs, str) else expect_items(inputs, "inputs", form)
    is_single = isinstance(items[0], str)
    if not is_single:
        budget.few("inputs", items)
    sequences = [items] if is_single else items
    for index, sequence in enumerate(sequences):
        path: Path = ("inputs",) if is_single else ("inputs", index)
        if not isinstance(sequence, list) or not all(isinstance(text, str) for text in sequence):
            raise InvalidInput(path, form if is_single else "[text] or [text, text]", describe(sequence))
        if len(sequence) not in (1, 2):
            raise InvalidInput(path, "one or two texts", str(len(sequence)))
    return [tuple(sequence) for sequence in sequences], is_single


def read_text(path: Path | str, value: Json) -> str:
    """Returns a text. Raises InvalidInput."""
    if not isinstance(value, str):
        raise InvalidInput(path, "a text", "nothing" if value is None else describe(value))
    return value


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
    numbers = {
        "time": total,
        "characters": count,
        "tokens": tokens,
    }
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
    return error.at(path if path == ("model",) else ("instances", index, *path))


def byte_spans(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts spans in characters to spans in bytes of UTF-8, which the dialect uses."""
    if text.isascii():
        return list(spans)
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode("utf-8", "surrogatepass")))
    return [(starts[start], starts[end]) for start, end in spans]
