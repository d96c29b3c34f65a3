"""A million damaged bodies through each codec: no errors but ours, and no memory that the body does not justify."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.protocol.fuzzing import GrpcBodies, RestBodies

BODIES = 1_000_000


@pytest.mark.parametrize("fuzz", [RestBodies().fuzz, GrpcBodies().fuzz], ids=["rest", "grpc"])
def test_a_million_mutated_bodies(fuzz: Callable[..., int]) -> None:
    fuzz(BODIES, seed=1)
