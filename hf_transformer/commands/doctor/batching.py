"""How the model's configuration lets texts share batches."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor.findings import Finding, ok, skipped, warning
from hf_transformer.pair import BoundPair, Pair

SMALL = 8
"""Rows below which a batch counts as small: from there on most encoders answer more texts in hardly more time."""


def batch_size(pair: BoundPair) -> Sequence[Finding]:
    """Whether several texts can go to the model at once."""
    rows, size = pair.signature.max_rows, pair.spec.max_batch_size
    if size is None:
        return ok(f"the predictor does not tell max_batch_size; batches of up to {rows} are sent")
    if size == 0 and not pair.signature.batch_axis:
        return warning(
            "max_batch_size is 0 and the dims have no batch axis: the model takes one text at a time",
            'export it with a batch axis and set "max_batch_size: 32" in config.pbtxt',
        )
    if size == 0 and pair.signature.exact_rows:
        return warning(
            f"max_batch_size is 0 and the dims say {pair.signature.exact_rows} rows: each batch is filled up to that",
            'export it with a free batch axis, set "max_batch_size: 32" and leave the batch axis out of dims in '
            "config.pbtxt",
        )
    if size == 0:
        return warning(
            f"max_batch_size is 0 and the dims have a batch axis: batches of up to {rows} are sent, and Triton can't "
            "merge those of several workers",
            'set "max_batch_size: 32" and leave the batch axis out of dims in config.pbtxt',
        )
    if size == 1:
        return warning(
            "max_batch_size is 1: the model takes one text at a time", 'set "max_batch_size: 32" in config.pbtxt'
        )
    if size < SMALL:
        return warning(f"max_batch_size is {size}, which is small", 'set "max_batch_size: 32" in config.pbtxt')
    return ok(f"max_batch_size is {size}")


def attention_mask(pair: BoundPair) -> Sequence[Finding]:
    """Whether padding can be hidden from the model, where there will be any."""
    signature = pair.signature
    if signature.masked:
        return ok("attention_mask goes along")
    has_one = any(tensor.name == "attention_mask" for tensor in pair.spec.inputs)
    change = (
        "add attention_mask to --tensor_input_names"
        if has_one
        else "export the model with attention_mask, and add that to input in config.pbtxt"
    )
    if signature.length is not None:
        return warning(
            f"texts are padded to the model's {signature.length} tokens, and without attention_mask it takes the "
            "padding for text",
            change,
        )
    if signature.max_rows == 1:
        return ok("no attention_mask, and none is needed: one text at a time is never padded")
    return warning("without attention_mask only texts with the same number of tokens share a batch", change)


def dynamic_batching(pair: Pair) -> Sequence[Finding]:
    """Whether Triton merges requests that wait."""
    size = pair.spec.max_batch_size
    if size is None:
        return skipped("the predictor does not tell")
    if size < 2:
        return skipped(f"max_batch_size is {size}")
    if pair.spec.decoupled:
        return skipped("a decoupled model batches by itself")
    if pair.spec.dynamic_batching:
        return ok("on")
    return warning(
        "off: Triton merges no requests, so batches of several workers or services run one after the other",
        'add "dynamic_batching { }" to config.pbtxt',
    )


def instances(pair: Pair) -> Sequence[Finding]:
    """Whether as many batches are sent as the model can work on."""
    if pair.spec.max_batch_size is None:
        return skipped("the predictor does not tell")
    count, most = pair.spec.instances, pair.config.max_batches_in_flight
    if most is not None and most * pair.config.workers < count:
        return warning(
            f"the model has {count} instances, and --max_batches_in_flight={most} leaves some of them idle",
            f"--max_batches_in_flight={count + 1}, or leave the flag out",
        )
    return ok(f"{count} of the model, and up to {most or count + 1} batches in flight")
