"""How many texts the doctor has the model answer at once: as many as the service may send, and no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hf_transformer.commands.doctor.inference import _most_rows
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.model_parts import load_parts
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.pair import BoundPair
from hf_transformer.types import Encoding, ModelSpec, TensorSpec
from tests.core.test_output_bounds import Sharing
from tests.doctor.test_declared import GOOD, pair_of

MANY = replace(GOOD, max_batch_size=512)
FREE = replace(MANY, outputs=(TensorSpec("logits", "FP32", (-1, -1)),))
WIDTH = 16
"""Tokens of a text: its outputs have 64 KiB."""


def sent_at_most(pair: BoundPair) -> int:
    """The texts of the largest batch that the service would send."""
    config = pair.config
    room = config.predictor_shared_memory_bytes if config.predictor_shared_memory == "auto" else 0
    with ThreadPoolExecutor(1) as executor:
        build = pipeline_builder(config, load_parts(config), Sharing(room), Metrics("bert"), executor)
        pipeline = build(pair.spec)
    assert isinstance(pipeline, Pipeline)
    limits = pipeline._scheduler._form.limits(Encoding([1] * WIDTH, [0] * WIDTH))
    return max(rows for rows in range(1, 513) if limits.allow(rows, WIDTH, rows * WIDTH))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("spec", "flags", "rows"),
    [
        pytest.param(MANY, [], 128, id="shared memory"),
        pytest.param(MANY, ["--predictor_shared_memory=off"], 64, id="inline"),
        pytest.param(MANY, [f"--predictor_shared_memory_bytes={6 * 2**20}"], 96, id="little shared memory"),
        pytest.param(MANY, [f"--predictor_shared_memory_bytes={2**20}"], 64, id="least shared memory"),
        pytest.param(MANY, [f"--max_predictor_response_bytes={6 * 2**20}"], 96, id="small responses"),
        pytest.param(MANY, [f"--max_predictor_response_bytes={2**20}"], 16, id="smallest responses"),
        pytest.param(MANY, [f"--max_batch_output_bytes={2**20}"], 16, id="a small flag"),
        pytest.param(MANY, [f"--max_batch_output_bytes={2**24}"], 256, id="a large flag"),
        pytest.param(MANY, ["--max_batch_tokens=160"], 10, id="tokens"),
        pytest.param(FREE, [], 64, id="sizes that nobody knows"),
    ],
)
async def test_it_is_as_many_as_the_service_sends(spec: ModelSpec, flags: list[str], rows: int) -> None:
    pair = pair_of(spec, "--model_name=bert", *flags)
    assert (_most_rows(pair, WIDTH), sent_at_most(pair)) == (rows, rows)
