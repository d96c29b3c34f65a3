"""What the model answers: numbers, other ones for other texts, and the same ones whatever shares the batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, failed, ok, skipped, warning
from hf_transformer.commands.doctor.probing import Outputs, ask, difference, highest, succeeds, width_of
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.errors import PredictorDenied, PredictorError
from hf_transformer.model_wiring import most_shared_bytes, scheduler_settings
from hf_transformer.pair import BoundPair
from hf_transformer.types import Encoding

TOLERANCES = {"FP16": 2e-2, "BF16": 5e-2}
"""Of answers to the same text, as a part of the largest value: rounding differs with a batch's shape."""
TOLERANCE = 1e-3
UNUSABLE = 0.1
"""A difference that changes answers, and not only their last digits."""


async def inference(subject: Subject) -> Sequence[Finding]:
    """One text: datatypes and shapes of the outputs, and that they are numbers. Raises RequestError."""
    pair = known(subject.bound)
    encoding = samples.encoding(pair)
    [outputs] = await ask(known(subject.predictor), pair, [encoding])
    for role, values in outputs.items():
        # A single -inf is a legitimate logit: that of a banned token.
        if np.isnan(values).any() or np.isposinf(values).any():
            return failed(
                f"{role} holds values that are not finite numbers (NaN or infinite)",
                "export the model again, in FP32 if it is FP16: that overflows",
            )
    shapes = ", ".join(f"{role} {list(values.shape)}" for role, values in outputs.items())
    return ok(f"{len(encoding)} tokens -> {shapes}")


async def constant(subject: Subject) -> Sequence[Finding]:
    """Whether another text gets another answer. Raises RequestError."""
    pair, predictor = known(subject.bound), known(subject.predictor)
    encoding = samples.encoding(pair)
    [outputs] = await ask(predictor, pair, [encoding])
    [others] = await ask(predictor, pair, [samples.altered(encoding, pair.tokenizer.vocab_size)])
    if all(np.array_equal(values, others[role]) for role, values in outputs.items()):
        return failed(
            "two texts without a word in common have the same outputs",
            "export the model again: it does not use its input_ids, or has no weights",
        )
    return ok("another text has other outputs")


async def company(subject: Subject) -> Sequence[Finding]:
    """Whether a full batch is answered, and whether a text's answer depends on what shares it. Raises RequestError."""
    pair, predictor = known(subject.bound), known(subject.predictor)
    signature = pair.signature
    if signature.max_rows < 2:
        return skipped("the model takes one text at a time")
    encoding = samples.encoding(pair)
    padded = signature.masked or signature.length is not None
    other = (
        _longer(encoding, width_of(pair, encoding), pair.length)
        if padded
        else samples.altered(encoding, pair.tokenizer.vocab_size)
    )
    rows = max(2, min(signature.max_rows, _most_rows(pair, width_of(pair, other))))

    async def together(size: int) -> Outputs:
        return (await ask(predictor, pair, [encoding, *[other] * (size - 1)]))[0]

    async def works(size: int) -> bool:
        return await succeeds(together(size))

    [alone] = await ask(predictor, pair, [encoding])
    try:
        full = await together(rows)
    except PredictorDenied:
        raise
    except PredictorError as error:
        found = await highest(1, rows, works)
        return failed(
            f"the model answers up to {found} texts in a batch, and {rows} would be sent: {error}",
            f'set "max_batch_size: {found}" in config.pbtxt, or export the model with a free batch axis',
        )
    return _compared(alone, full, rows, pair)


def _most_rows(pair: BoundPair, width: int) -> int:
    """As many texts of so many tokens as the service's own limits let into a batch."""
    signature, settings = pair.signature, scheduler_settings(pair.config, pair.spec.instances)
    sized = all(output.row_bytes(width) is not None for output in signature.outputs)
    output_bytes = max(settings.max_batch_output_bytes, most_shared_bytes(pair.config) if sized else 0)
    return min(settings.max_batch_tokens // width, output_bytes // signature.output_bytes(width))


def _compared(alone: Outputs, together: Outputs, rows: int, pair: BoundPair) -> Sequence[Finding]:
    """What sharing a batch changes in a text's outputs."""
    signature = pair.signature
    padded = signature.masked or signature.length is not None
    worst = difference(alone, together)
    others = f"{rows - 1} {'longer' if padded else 'equally long'}"
    if not worst:
        return ok(f"the answer to a text is the same in a batch with {others} ones")
    said = f"the answer to a text changes by {worst:.1e} of its largest value in a batch with {others} ones"
    tolerance = max(TOLERANCES.get(output.datatype, TOLERANCE) for output in signature.outputs)
    if worst <= tolerance:
        return ok(f"{said} (tolerance {tolerance:g})")
    change = (
        "export the model so that its attention_mask hides the padding"
        if signature.masked
        else "export the model so that its rows do not mix"
    )
    return (failed if worst > UNUSABLE else warning)(said, f'{change}, or set "max_batch_size: 1" in config.pbtxt')


def _longer(encoding: Encoding, width: int, length: int) -> Encoding:
    """The same text several times over, up to ``length`` tokens, so that the first one is padded beside it to more than
    the ``width`` that it has alone."""
    inner = encoding.ids[1:-1]
    times = max(3, width // max(len(inner), 1) + 1)
    ids = [encoding.ids[0], *(inner * times), encoding.ids[-1]][: max(length, 1)]
    return Encoding(ids, [0] * len(ids))
