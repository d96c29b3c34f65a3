"""Texts of our own to ask a model about: clients' texts are none of a diagnosis' business."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hf_transformer.pair import BoundPair
from hf_transformer.types import Encoding, Json

TEXT = "The capital of France is a city on a river."
WORD = "the "


def instance(task: str, mask_token: str | None) -> Json:
    """An instance for a task, as a client would send it: a plain text unless the task wants another form."""
    match task:
        case "fill_mask":
            return f"The capital of France is {mask_token}."
        case "question_answering":
            return {"question": "Where does the river flow?", "context": TEXT}
        case "rerank":
            return {"query": "Which city is on a river?", "texts": [TEXT, "The sky is blue."]}
        case "zero_shot_classification":
            return {"sequence": TEXT, "candidate_labels": ["geography", "cooking"]}
        case _:
            return TEXT


def encoding(pair: BoundPair) -> Encoding:
    """The tokens of the first text of ``instance``, as long as the model takes it."""
    task = pair.task
    options = task.options({})
    item = task.item(instance(task.name, task.settings.vocabulary.mask_token), "the sample", options)
    tokenizer = pair.tokenizer.with_max_length(pair.length)
    return tokenizer.encode_windows(task.texts(item, options)[:1], task.tokenization(options))[0][0]


def longest(pair: BoundPair) -> Encoding:
    """As many tokens as the service ever sends in one text."""
    tokenizer = pair.tokenizer.with_max_length(pair.length)
    return tokenizer.encode([WORD * pair.length])[0]


def shortened(encoding: Encoding, length: int) -> Encoding:
    """The first ``length`` tokens, of which the last stays the last: it may be one that ends each text."""
    ids = [*encoding.ids[: length - 1], encoding.ids[-1]]
    return replace(encoding, ids=ids, type_ids=encoding.type_ids[:length])


def with_ids(encoding: Encoding, ids: Sequence[int]) -> Encoding:
    """As many other tokens."""
    return replace(encoding, ids=list(ids))


def altered(encoding: Encoding, vocabulary: int) -> Encoding:
    """Another text of the same length: all tokens but the first and the last are others."""
    first, *inner, last = encoding.ids if len(encoding) > 2 else (0, *encoding.ids, 0)
    changed = [(number + vocabulary // 3) % vocabulary for number in inner]
    return with_ids(encoding, [first, *changed, last] if len(encoding) > 2 else changed)
