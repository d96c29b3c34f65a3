"""What the model's files and configuration could do better.

These checks ask the predictor nothing and take microseconds, so the service makes them too when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from hf_transformer.app.wiring import FittedBinding, ModelBinding
from hf_transformer.commands.doctor.examination import Finding, ok, skipped, warning
from hf_transformer.tasks.base import FLOATS
from hf_transformer.tokenizer.load import model_limit

logger = logging.getLogger(__name__)


def batch_size(pair: FittedBinding) -> list[Finding]:
    """Whether several texts can go to the model at once."""
    signature, size = pair.signature, pair.spec.max_batch_size
    if size is None:
        return ok(f"the predictor does not tell max_batch_size; batches of up to {signature.max_rows} are sent")
    change = 'set "max_batch_size: 32" in config.pbtxt'
    if size >= 8:  # up to there most encoders answer more texts in hardly more time
        return ok(f"max_batch_size is {size}")
    if size > 1:
        return warning(f"max_batch_size is {size}, which is small", change)
    if size == 1:
        return warning("max_batch_size is 1: the model takes one text at a time", change)
    if not signature.batch_axis:
        return warning(
            "max_batch_size is 0 and the dims have no batch axis: the model takes one text at a time",
            f"export it with a batch axis and {change}",
        )
    change = 'set "max_batch_size: 32" and leave the batch axis out of dims in config.pbtxt'
    if signature.exact_rows:
        return warning(
            f"max_batch_size is 0 and the dims say {signature.exact_rows} rows: each batch is filled up to that",
            f"export it with a free batch axis, {change}",
        )
    return warning(
        f"max_batch_size is 0 and the dims have a batch axis: batches of up to {signature.max_rows} are sent, and "
        "Triton can't merge those of several workers",
        change,
    )


def attention_mask(pair: FittedBinding) -> list[Finding]:
    """Whether a mask hides padding from the model, if there will be any."""
    signature = pair.signature
    if signature.masked:
        return ok("attention_mask goes along")
    if any(tensor.name == "attention_mask" for tensor in pair.spec.inputs):
        change = "add attention_mask to --tensor_input_names"
    else:
        change = "export the model with attention_mask, and add that to input in config.pbtxt"
    if signature.length is not None:
        return warning(
            f"texts are padded to the model's {signature.length} tokens, and without attention_mask it takes the "
            "padding for text",
            change,
        )
    if signature.max_rows == 1:
        return ok("no attention_mask, and none is needed: one text at a time is never padded")
    return warning("without attention_mask only texts with the same number of tokens share a batch", change)


def text_length(pair: FittedBinding) -> list[Finding]:
    """Whether texts are cut shorter than the model's files say."""
    fixed, longest = pair.signature.length, pair.tokenizer.max_length
    if fixed is not None and fixed < longest:
        return warning(
            f"the model always takes {fixed} tokens, where its files allow {longest}: longer texts are cut",
            f"export it with a free sequence axis (dims: [ -1 ]), or say so with --max_model_len={fixed}",
        )
    stated = model_limit(pair.model_config)
    where = "config.json names no limit" if stated is None else f"config.json allows {stated}"
    padded = "" if fixed is None or fixed == longest else f", padded to the {fixed} that the model always takes"
    return ok(f"texts are cut at {longest} tokens{padded} ({where})")


def dynamic_batching(pair: ModelBinding) -> list[Finding]:
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


def instances(pair: ModelBinding) -> list[Finding]:
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


def vocabulary(pair: ModelBinding) -> list[Finding]:
    """Whether the tokenizer's ids are those that config.json declares, and the logits of a model that generates too."""
    declared, size = pair.model_config.get("vocab_size"), pair.tokenizer.vocab_size
    if type(declared) is not int:
        return skipped(f"config.json names no vocab_size; the tokenizer has {size} tokens")
    width = _logits_width(pair)
    if width is not None and width != declared:
        return warning(
            f"the model gives logits of {width} tokens, config.json's vocab_size is {declared} and the tokenizer has "
            f"{size}",
            "serve the model with the tokenizer and config.json that it was exported from (--model_dir, --model_id)",
        )
    # Models round theirs up: phi-2's tokenizer fills 98 % of it, mT5's all but 12 of 250,112.
    if 0.9 * declared <= size <= declared:
        return ok(f"{size} tokens, config.json says {declared}")
    return warning(
        f"the tokenizer has {size} tokens, {'more' if size > declared else 'far fewer'} than config.json's vocab_size "
        f"{declared}",
        "put the tokenizer files and the config.json of the model that was exported into one folder (--model_dir)",
    )


def _logits_width(pair: ModelBinding) -> int | None:
    """The last dim of the logits of a model that generates; None for other models, and where it is free."""
    if isinstance(pair, FittedBinding):
        return None  # the contract compares it
    names = pair.config.tensor_output_names or ("logits",)
    widths = [one.shape[-1] for one in pair.spec.outputs if one.name in names and one.datatype in FLOATS and one.shape]
    return widths[0] if widths and widths[0] > 0 else None


def padding_token(pair: ModelBinding) -> list[Finding]:
    """Whether both mean the same padding token: some models count positions by it."""
    declared, own = pair.model_config.get("pad_token_id"), pair.tokenizer.pad_token_id
    if type(declared) is not int or own is None:
        missing = "config.json names none" if own is not None else "the tokenizer has none"
        return skipped(f"{missing}; id {pair.tokenizer.pad_id} is used")
    if declared != own:
        return warning(
            f"the tokenizer pads with id {own}, config.json's pad_token_id is {declared}",
            "correct pad_token in tokenizer_config.json, or pad_token_id in config.json",
        )
    return ok(f"id {own}")


ADVICE: Sequence[tuple[str, Callable[[Any], list[Finding]], type[ModelBinding]]] = (
    ("batch size", batch_size, FittedBinding),
    ("attention mask", attention_mask, FittedBinding),
    ("text length", text_length, FittedBinding),
    ("dynamic batching", dynamic_batching, ModelBinding),
    ("instances", instances, ModelBinding),
    ("vocabulary", vocabulary, ModelBinding),
    ("padding token", padding_token, ModelBinding),
)
"""These checks by name, in the order of the table, and the pairs that they are for."""


class StartAdvice:
    """Logs each warning of the pairs that it is called with, once. The service binds a pair again whenever the model
    changes at the predictor."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, pair: ModelBinding) -> None:
        # Requests that wait for the model come first.
        asyncio.get_running_loop().call_soon(self._log, pair)

    def _log(self, pair: ModelBinding) -> None:
        for name, check, kind in ADVICE:
            for finding in check(pair) if isinstance(pair, kind) else ():
                line = f"{name}: {finding.found} ({finding.change})"
                if finding.status == "warning" and line not in self._said:
                    self._said.add(line)
                    logger.warning("model %r: %s", pair.spec.name, line)
