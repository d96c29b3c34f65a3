"""Advice on the model's files and configuration.

These checks take microseconds and don't call the predictor, so the service also runs them at startup.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from hf_transformer.app.pipelines import FittedBinding, ModelBinding
from hf_transformer.commands.doctor.examination import Finding, ok, skipped, warning
from hf_transformer.tasks.base import FLOATS
from hf_transformer.tokenizer.load import model_limit

logger = logging.getLogger(__name__)


def batch_size(binding: FittedBinding) -> list[Finding]:
    """Check that the model accepts several texts in a batch."""
    signature, size = binding.signature, binding.spec.max_batch_size
    if size is None:
        return ok(f"the predictor does not report max_batch_size; batches have up to {signature.max_rows} texts")
    change = 'set "max_batch_size: 32" in config.pbtxt'
    if size >= 8:  # most encoders need little more time for 8 texts than for one
        return ok(f"max_batch_size is {size}")
    if size > 1:
        return warning(f"max_batch_size is {size}, which is small", change)
    if size == 1:
        return warning("max_batch_size is 1: the model takes one text at a time", change)
    if not signature.batch_axis:
        return warning(
            "max_batch_size is 0 and dims has no batch axis: the model takes one text at a time",
            f"export it with a batch axis and {change}",
        )
    change = 'set "max_batch_size: 32" and leave the batch axis out of dims in config.pbtxt'
    if signature.exact_rows:
        return warning(
            f"max_batch_size is 0 and dims fixes {signature.exact_rows} rows: the service fills up each batch to that",
            f"export it with a free batch axis, {change}",
        )
    return warning(
        f"max_batch_size is 0 and dims has a batch axis: batches have up to {signature.max_rows} texts, "
        "and Triton can't merge batches of several workers",
        change,
    )


def attention_mask(binding: FittedBinding) -> list[Finding]:
    """Check that attention_mask hides any padding from the model."""
    signature = binding.signature
    if signature.masked:
        return ok("the model takes attention_mask")
    if any(tensor.name == "attention_mask" for tensor in binding.spec.inputs):
        change = "add attention_mask to --tensor_input_names"
    else:
        change = "export the model with attention_mask, and list it under input in config.pbtxt"
    if signature.length is not None:
        return warning(
            f"the service pads texts to the model's {signature.length} tokens, and without attention_mask the model "
            "reads the padding as text",
            change,
        )
    if signature.max_rows == 1:
        return ok("no attention_mask, and none is needed: a text alone in its batch has no padding")
    return warning("without attention_mask only texts with the same number of tokens can share a batch", change)


def text_length(binding: FittedBinding) -> list[Finding]:
    """Check that the model accepts texts up to the limit in its files."""
    fixed, longest = binding.signature.length, binding.tokenizer.max_length
    if fixed is not None and fixed < longest:
        return warning(
            f"the model always takes {fixed} tokens, but its files allow {longest}: longer texts are truncated",
            f"export it with a free sequence axis (dims: [ -1 ]), or set --max_model_len={fixed}",
        )
    stated = model_limit(binding.model_config)
    limit = "config.json names no limit" if stated is None else f"config.json allows {stated}"
    padded = "" if fixed is None or fixed == longest else f", padded to the {fixed} that the model always takes"
    return ok(f"texts are truncated at {longest} tokens{padded} ({limit})")


def dynamic_batching(binding: ModelBinding) -> list[Finding]:
    """Check that Triton merges waiting requests."""
    size = binding.spec.max_batch_size
    if size is None:
        return skipped("the predictor does not report it")
    if size < 2:
        return skipped(f"max_batch_size is {size}")
    if binding.spec.decoupled:
        return skipped("a decoupled model makes its own batches")
    if binding.spec.dynamic_batching:
        return ok("on")
    return warning(
        "off: Triton does not merge requests, so batches of several workers or services run one after another",
        'add "dynamic_batching { }" to config.pbtxt',
    )


def instances(binding: ModelBinding) -> list[Finding]:
    """Check that the batches in flight keep all instances of the model busy."""
    count, limit = binding.spec.instances, binding.config.max_batches_in_flight
    if count is None:
        return skipped("the predictor does not report it")
    if limit is not None and limit * binding.config.workers < count:
        return warning(
            f"the model has {count} instances, and --max_batches_in_flight={limit} leaves some of them idle",
            f"set --max_batches_in_flight={count + 1}, or omit the flag",
        )
    return ok(f"{count} instance{'s' if count > 1 else ''} of the model, up to {limit or count + 1} batches in flight")


def vocabulary(binding: ModelBinding) -> list[Finding]:
    """Compare vocab_size in config.json with the tokenizer's size, and with the logits of generative models."""
    declared, size = binding.model_config.get("vocab_size"), binding.tokenizer.vocab_size
    if type(declared) is not int:
        return skipped(f"config.json names no vocab_size; the tokenizer has {size} tokens")
    width = _logits_width(binding)
    if width is not None and width != declared:
        return warning(
            f"the model's logits have {width} tokens, config.json's vocab_size is {declared}, the tokenizer has {size}",
            "serve the model with the tokenizer and config.json of its export (--model_dir, --model_id)",
        )
    # Some models round vocab_size up: phi-2's tokenizer has 98 % of the tokens, mT5's lacks 12 of 250,112.
    if 0.9 * declared <= size <= declared:
        return ok(f"{size} tokens, config.json says {declared}")
    return warning(
        f"the tokenizer has {size} tokens, {'more' if size > declared else 'far fewer'} than config.json's vocab_size "
        f"{declared}",
        "put the tokenizer files and config.json of the exported model into one folder (--model_dir)",
    )


def _logits_width(binding: ModelBinding) -> int | None:
    """The last dimension of a generative model's logits. None for other models and for a dynamic axis."""
    if isinstance(binding, FittedBinding):
        return None  # the contract check compares the logits
    names = binding.config.tensor_output_names or ("logits",)
    outputs = [tensor for tensor in binding.spec.outputs if tensor.name in names and tensor.datatype in FLOATS]
    widths = [tensor.shape[-1] for tensor in outputs if tensor.shape]
    return widths[0] if widths and widths[0] > 0 else None


def padding_token(binding: ModelBinding) -> list[Finding]:
    """Compare the padding tokens of the tokenizer and of config.json, from which some models derive positions."""
    declared, actual = binding.model_config.get("pad_token_id"), binding.tokenizer.pad_token_id
    if type(declared) is not int or actual is None:
        missing = "the tokenizer has none" if actual is None else "config.json names none"
        return skipped(f"{missing}; the service pads with id {binding.tokenizer.pad_id}")
    if declared != actual:
        return warning(
            f"the tokenizer pads with id {actual}, config.json's pad_token_id is {declared}",
            "correct pad_token in tokenizer_config.json, or pad_token_id in config.json",
        )
    return ok(f"id {actual}")


ADVICE: Sequence[tuple[str, Callable[[Any], list[Finding]], type[ModelBinding]]] = (
    ("batch size", batch_size, FittedBinding),
    ("attention mask", attention_mask, FittedBinding),
    ("text length", text_length, FittedBinding),
    ("dynamic batching", dynamic_batching, ModelBinding),
    ("instances", instances, ModelBinding),
    ("vocabulary", vocabulary, ModelBinding),
    ("padding token", padding_token, ModelBinding),
)
"""Name, function and binding class of each check, in the order of the doctor's table."""


class StartAdvice:
    """Logs every distinct warning once. The service passes each new binding, also after a change of the model."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, binding: ModelBinding) -> None:
        # Defers the log, because requests that wait for the binding have priority.
        asyncio.get_running_loop().call_soon(self._log, binding)

    def _log(self, binding: ModelBinding) -> None:
        for name, check, kind in ADVICE:
            for finding in check(binding) if isinstance(binding, kind) else ():
                line = f"model {binding.config.model_name!r}: {name}: {finding.found} ({finding.change})"
                if finding.status == "warning" and line not in self._logged:
                    self._logged.add(line)
                    logger.warning("%s", line)
