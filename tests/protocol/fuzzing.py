"""What the fuzzing of both V2 codecs shares: what has to hold for every damaged body."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import TypeVar

from hf_transformer.errors import RequestError
from hf_transformer.protocol.inbound import InferRequest
from hf_transformer.protocol.tensors import Malformed
from hf_transformer.tasks.question_answering import QuestionAnswering
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.tensors import read_instances

MAX_ELEMENTS = 2048
FIELDS = (SequenceClassification.fields, QuestionAnswering.fields, Rerank.fields)

Body = TypeVar("Body")


def request_in(decode: Callable[[], InferRequest]) -> InferRequest | None:
    """What a codec makes of a body, None where it is refused; any other exception is a fault of the codec."""
    try:
        request = decode()
    except (Malformed, RequestError) as error:
        assert len(str(error)) < 2000, f"a message of {len(str(error))} characters"
        return None
    for fields in FIELDS:
        try:
            read_instances(request.inputs, fields)
        except RequestError as error:
            assert len(str(error)) < 2000, f"a message of {len(str(error))} characters"
    return request


def peak(work: Callable[[], object]) -> int:
    """Bytes that Python had allocated at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run(
    bodies: Callable[[Random], Iterator[Body]],
    decode: Callable[[Body], object | None],
    assert_bounded: Callable[[Body], None],
    count: int,
    seed: int,
    sample: int,
) -> int:
    """Decodes so many bodies, measuring every ``sample``-th one; how many of them were valid still."""
    accepted = 0
    for number, body in enumerate(islice(bodies(Random(seed)), count)):
        try:
            accepted += decode(body) is not None
        except BaseException as error:
            raise AssertionError(f"body {number} of seed {seed}: {body!r:.2000}") from error
        if number % sample == 0:
            assert_bounded(body)
    return accepted
