"""The checks that look at nothing but what flags, files and predictor have said already. They cost microseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hf_transformer.commands.doctor import batching, lengths, vocabulary
from hf_transformer.commands.doctor.findings import Finding
from hf_transformer.pair import BoundPair, Pair

OF_PREDICTIVE: Sequence[tuple[str, Callable[[BoundPair], Sequence[Finding]]]] = (
    ("batch size", batching.batch_size),
    ("attention mask", batching.attention_mask),
    ("text length", lengths.text_length),
)
"""By name, in the order in which they are shown: those that need to know how batches are made."""

OF_ANY: Sequence[tuple[str, Callable[[Pair], Sequence[Finding]]]] = (
    ("dynamic batching", batching.dynamic_batching),
    ("instances", batching.instances),
    ("vocabulary", vocabulary.vocabulary),
    ("padding token", vocabulary.padding),
)
"""Those that make sense for models that generate text, too."""


def declared(pair: Pair) -> Iterator[tuple[str, Finding]]:
    """What all of them that apply find, each finding with the name of its check."""
    if isinstance(pair, BoundPair):
        for name, check in OF_PREDICTIVE:
            yield from ((name, finding) for finding in check(pair))
    for name, of_any in OF_ANY:
        yield from ((name, finding) for finding in of_any(pair))
