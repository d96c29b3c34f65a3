"""How large a batch's outputs may be, by the way that they travel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.scheduler import OUTPUT_BYTES, SHARED_OUTPUT_BYTES
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Encoding, ModelSpec, TensorSpec
from hf_transformer.wiring import load_parts, more_when_shared, pipeline_builder, scheduler_settings
from tests.configuring import config
from tests.integration.server.processes import MODEL_FOLDER
from tests.scripted_predictor import ScriptedPredictor


class Sharing(ScriptedPredictor):
    """Would have outputs of up to ``room`` bytes in shared memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def shares(self, size: int) -> bool:
        return size <= self.room


def fits(bound: Callable[[int], bool] | None, size: int) -> bool:
    return bound is not None and bound(size)


GRPC = "--predictor_protocol=grpc-v2"


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        pytest.param((), SHARED_OUTPUT_BYTES, id="default"),
        # They may come in the response after all.
        pytest.param(("--max_predictor_response_bytes=6000000",), 6_000_000, id="small responses"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=6000000"), 6_000_000, id="small messages"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=-1"), SHARED_OUTPUT_BYTES, id="any messages"),
        pytest.param(("--grpc_max_receive_message_length=6000000",), SHARED_OUTPUT_BYTES, id="REST"),
        pytest.param(("--predictor_shared_memory_bytes=6000000",), 6_000_000, id="a small region"),
        pytest.param(("--predictor_shared_memory=off",), 0, id="no shared memory"),
        pytest.param(("--max_batch_output_bytes=5000000",), 0, id="small flag"),
        pytest.param(("--max_batch_output_bytes=50000000",), 0, id="large flag"),
    ],
)
def test_more_is_allowed_where_no_flag_says_how_much(flags: tuple[str, ...], most: int) -> None:
    predictor = Sharing(2**40)
    bound = more_when_shared(config(f"--model_dir={MODEL_FOLDER}", *flags), predictor)
    sizes = (
        OUTPUT_BYTES + 1,
        5_000_000,
        6_000_000,
        6_000_001,
        SHARED_OUTPUT_BYTES,
        SHARED_OUTPUT_BYTES + 1,
        50_000_000,
    )
    assert [size for size in sizes if fits(bound, size)] == [size for size in sizes if size <= most]
    predictor.room = OUTPUT_BYTES
    assert not fits(bound, OUTPUT_BYTES + 1)


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ((), OUTPUT_BYTES),
        (("--max_predictor_response_bytes=3000000",), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000"), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000", "--max_predictor_response_bytes=2000000"), 2_000_000),
        (("--grpc_max_receive_message_length=3000000",), OUTPUT_BYTES),
        (("--max_batch_output_bytes=5000000", "--max_predictor_response_bytes=3000000"), 5_000_000),
    ],
)
def test_what_comes_inline_fits_into_a_response(flags: tuple[str, ...], most: int) -> None:
    assert scheduler_settings(config(f"--model_dir={MODEL_FOLDER}", *flags), 1).max_batch_output_bytes == most


@pytest.mark.asyncio
@pytest.mark.parametrize(("flag", "inline", "shared"), [(None, 4, 8), (2**20, 1, 1), (2**24, 16, 16)])
async def test_a_batch_has_what_its_way_allows(flag: int | None, inline: int, shared: int) -> None:
    flags = () if flag is None else (f"--max_batch_output_bytes={flag}",)
    options = config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert", *flags)
    parts = load_parts(options)
    vocabulary = parts.tokenizer.vocab_size
    ids = TensorSpec("input_ids", "INT64", (-1,))
    spec = ModelSpec("bert", "1", (ids,), (TensorSpec("logits", "FP32", (-1, vocabulary)),), 64)
    tokens = 2**20 // (4 * vocabulary)  # as many as have 1 MiB of outputs
    text = Encoding([1] * tokens, [0] * tokens)
    predictor = Sharing(0)
    with ThreadPoolExecutor(1) as executor:
        pipeline = pipeline_builder(options, parts, predictor, Metrics("bert"), executor)(spec)
        assert isinstance(pipeline, Pipeline)
        limits = pipeline._scheduler._form.limits(text)
        for room, most in ((0, inline), (2**30, shared), (0, inline)):  # the region is there, and is lost
            predictor.room = room
            assert [rows for rows in range(1, 65) if limits.allow(rows, tokens, rows * tokens)] == [*range(1, most + 1)]
