"""Outputs through shared memory: whether the predictor sees our /dev/shm."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, ok, skipped, warning
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.core.batch import EncodingForm
from hf_transformer.errors import RequestError
from hf_transformer.model_wiring import filling
from hf_transformer.pair import BoundPair
from hf_transformer.predictor.asking import AskablePredictor
from hf_transformer.predictor.region_trial import try_region
from hf_transformer.predictor.shared_region import FOLDER, MARGIN, free_bytes

OTHERWISE = "or set --predictor_shared_memory=off; outputs travel in the responses until then, and work as well"
MIB = 2**20


async def shared_memory(subject: Subject) -> Sequence[Finding]:
    """Whether a region can be registered, and an output comes through it. Raises RequestError."""
    pair, predictor = known(subject.bound), known(subject.predictor)
    config = pair.config
    if config.predictor_shared_memory != "auto":
        return skipped("switched off (--predictor_shared_memory)")
    largest = pair.signature.max_rows * pair.signature.output_bytes(pair.length)
    if largest < config.predictor_shared_memory_min_bytes:
        return skipped(
            f"not needed: a batch's outputs have {largest} bytes at most, "
            f"--predictor_shared_memory_min_bytes={config.predictor_shared_memory_min_bytes}"
        )
    if any(output.row_bytes(pair.length) is None for output in pair.signature.outputs):
        return skipped("the outputs' dims are free in config.pbtxt, so nobody knows their size beforehand")
    try:
        there = free_bytes(FOLDER)
    except OSError as exc:
        return warning(f"{FOLDER}: {exc.strerror}", f"mount an emptyDir with medium: Memory there, {OTHERWISE}")
    if there < config.predictor_shared_memory_bytes + MARGIN:
        return warning(
            f"{FOLDER} has {there // MIB} MiB left, --predictor_shared_memory_bytes asks for "
            f"{config.predictor_shared_memory_bytes // MIB} MiB and {MARGIN // MIB} MiB have to stay free",
            f"enlarge {FOLDER} (sizeLimit of the emptyDir, --shm-size), lower the flag, {OTHERWISE}",
        )
    try:
        return await _try_out(predictor, pair)
    except (RequestError, OSError) as error:
        return warning(
            f"the predictor can't use our {FOLDER}: {error}",
            f"mount one emptyDir with medium: Memory at {FOLDER} in both containers (or --ipc=host), {OTHERWISE}",
        )


async def _try_out(predictor: AskablePredictor, pair: BoundPair) -> Sequence[Finding]:
    """The sample's outputs, inline and through a region of our own. Raises RequestError and OSError."""
    form = EncodingForm(pair.signature, filling(pair.config, pair.tokenizer, pair.signature))
    packed = form.pack([samples.encoding(pair)])
    if not await try_region(predictor, packed.inputs, packed.sizes, FOLDER):
        return warning(
            f"what the predictor writes into {FOLDER} does not arrive here",
            f"mount the same {FOLDER} in both containers, {OTHERWISE}",
        )
    return ok(f"{sum(packed.sizes.values())} bytes came through {FOLDER}")
