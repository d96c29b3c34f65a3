"""The header Server-Timing."""

from __future__ import annotations

import pytest

from hf_transformer.api.endpoint import server_timing
from tests.observability.measured import measured


@pytest.mark.parametrize("predict", [0.0009, 0.0100004, 59.9999])
def test_stages_in_milliseconds(predict: float) -> None:
    context = measured(queue=0.0002, predict=predict, postprocess=0.0000126, parse=0.0001, tokenize=0.0000004)
    rest = predict - 0.0002
    expected = f"parse;dur=0.100, tokenize;dur=0.000, queue;dur=0.200, predict;dur={rest * 1e3:.3f}, decode;dur=0.013"
    assert server_timing(context) == expected.encode()


def test_a_queue_longer_than_the_prediction() -> None:
    assert b"predict;dur=0.000," in server_timing(measured(queue=0.002, predict=0.001))
