"""The doctor in front of the real Triton, with mismatches that a test plants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hf_transformer.commands.doctor.command import CHECKS
from hf_transformer.commands.doctor.examination import Finding, Subject, examine
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.config.options import parse_config
from tests.support.service import flags_for
from tests.support.triton_26 import DISALLOWED
from tests.support.triton_repository import task_model_folder


async def results_of(flags: Sequence[str]) -> list[Finding]:
    """What the doctor finds with these flags."""
    config, notes = parse_config(flags, {})
    return [one async for one in examine(Subject(config, notes), CHECKS)]


def troubles(results: Sequence[Finding]) -> dict[str, str]:
    """What is not well and what to change, the first finding of each check.

    Not that a Triton of 2026 takes no shared memory of clients, which test_shared_memory_that_triton_refuses is about.
    """
    bad = [one for one in results if one.status in ("warning", "failed") and DISALLOWED not in one.found]
    assert all(one.found and one.change for one in bad)
    first: dict[str, str] = {}
    for one in bad:
        first.setdefault(one.name, f"{one.found} -> {one.change}")
    return first


Diagnose = Callable[..., dict[str, str]]


@pytest.fixture
def diagnose(triton: LocalTriton, load: Callable[[str], None]) -> Diagnose:
    """What is not well with a model, with its own folder or another, and more flags."""

    def run(model: str, *flags: str, folder: Path | None = None, protocol: str = "v2") -> dict[str, str]:
        load(model)
        address = triton.http_address if protocol == "v2" else triton.grpc_address
        folder = folder or task_model_folder(model)
        results = asyncio.run(results_of(flags_for(model, folder, address, protocol, flags)))
        assert list(dict.fromkeys(one.name for one in results)) == [check.name for check in CHECKS]
        return troubles(results)

    return run
