"""Flags and variables of KServe's runtime that are accepted, but change nothing in this service.

Setting one is mentioned once in the log: a manifest written for KServe starts unchanged, and nobody is
misled. Those of a part that this version does not have are checked like any other, so that they are right
when it has.
"""

from __future__ import annotations

from collections.abc import Iterable

from hf_transformer.options.option import Option, Variable, as_variables
from hf_transformer.options.values import Boolean, Converter, Integer, Number, Text

GROUP = "Accepted without effect"


def no_meaning(name: str, help: str, why: str) -> Option:
    """An option that means nothing here: any value will do."""
    return Option(name, GROUP, help, Text(), no_effect=f"has no effect here: {why}")


def not_yet(
    name: str,
    help: str,
    convert: Converter,
    default: object = None,
    part: str = "text generation",
    variables: Iterable[str | Variable] = (),
    may_be_empty: bool = False,
) -> Option:
    """An option of a part that this version does not have."""
    return Option(
        name=name,
        group=GROUP,
        help=help,
        convert=convert,
        default=default,
        variables=as_variables(variables),
        may_be_empty=may_be_empty,
        no_effect=f"has no effect in this version: {part} is not part of it",
    )


IGNORED: tuple[Option, ...] = (
    no_meaning("backend", "KServe: the engine that runs the model.", "the predictor runs the model"),
    no_meaning("dtype", "KServe: the data type of the weights.", "the predictor holds the weights"),
    no_meaning("max_threads", "KServe: threads of the gRPC server.", "no thread pool serves requests"),
    not_yet(
        "generation_max_length",
        "Tokens of a generated text at most, its prompt included. MAX_LENGTH is not --max_length.",
        Integer(1),
        20,
        variables=["MAX_LENGTH"],
    ),
    not_yet("temperature", "Sampling temperature.", Number(0, zero=True), 1.0, variables=["TEMPERATURE"]),
    not_yet("do_sample", "Sample, not always take the best token.", Boolean(), False, variables=["DO_SAMPLE"]),
    not_yet("top_k", "Sample from this many best tokens.", Integer(0), 50, variables=["TOP_K"]),
    not_yet("top_p", "Sample from tokens of this total probability.", Number(0, 1), 1.0, variables=["TOP_P"]),
    not_yet(
        "return_full_text",
        "Answer with the prompt and the generated text.",
        Boolean(),
        True,
        variables=["RETURN_FULL_TEXT"],
    ),
)
