"""How large a batch's outputs may be, by the way that they travel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hf_transformer.app.wiring import PipelineBuilder, load_parts, more_when_shared, scheduler_settings
from hf_transformer.config.options import Config
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.core.scheduler import OUTPUT_BYTES, SHARED_OUTPUT_BYTES
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ModelSpec, TensorSpec
from tests.configuring import config
from tests.core.bench import text
from tests.integration.server.processes import MODEL_FOLDER
from tests.scripted_predictor import ScriptedPredictor


class Sharing(ScriptedPredictor):
    """Would have outputs of up to ``room`` bytes in shared memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def shares(self, size: int) -> bool:
        return size <= self.room


def settings_of(*flags: str) -> Config:
    return config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert", *flags)


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
    bound = more_when_shared(settings_of(*flags), predictor) or (lambda size: False)
    limits = OUTPUT_BYTES, 6_000_000, SHARED_OUTPUT_BYTES
    for size in (5_000_000, 50_000_000, *limits, *[limit + 1 for limit in limits]):
        assert bound(size) == (size <= most), size
    predictor.room = OUTPUT_BYTES
    assert not bound(OUTPUT_BYTES + 1)


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
    assert scheduler_settings(settings_of(*flags), 1).max_batch_output_bytes == most


@pytest.mark.parametrize(("flag", "inline", "shared"), [(None, 4, 8), (2**20, 1, 1), (2**24, 16, 16)])
async def test_a_batch_has_what_its_way_allows(flag: int | None, inline: int, shared: int) -> None:
    options = settings_of(*([] if flag is None else [f"--max_batch_output_bytes={flag}"]))
    parts = load_parts(options)
    vocabulary = parts.tokenizer.vocab_size
    ids, logits = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("logits", "FP32", (-1, vocabulary))
    tokens = 2**20 // (4 * vocabulary)  # as many as have 1 MiB of outputs
    predictor = Sharing(0)
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(options, parts, predictor, Metrics("bert"), executor)
        pipeline = build(ModelSpec("bert", "1", (ids,), (logits,), 64))
    assert isinstance(pipeline, Pipeline)
    limits = pipeline._scheduler._form.limits(text(tokens))
    for room, most in ((0, inline), (2**30, shared), (0, inline)):  # the region is there, and is lost
        predictor.room = room
        assert [rows for rows in range(1, 65) if limits.allow(rows, tokens, rows * tokens)] == [*range(1, most + 1)]
