"""The doctor against a real Triton."""

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
    """The doctor's findings with these flags."""
    config, notes = parse_config(flags, {})
    return [finding async for finding in examine(Subject(config, notes), CHECKS)]


def troubles(results: Sequence[Finding]) -> dict[str, str]:
    """The first warning or failure of each check, with its remedy.

    Leaves out that a Triton of 2026 refuses shared memory of clients, which has its own test.
    """
    bad = [result for result in results if result.status in ("warning", "failed") and DISALLOWED not in result.found]
    assert all(result.found and result.change for result in bad)
    first: dict[str, str] = {}
    for result in bad:
        first.setdefault(result.name, f"{result.found} -> {result.change}")
    return first


Diagnose = Callable[..., dict[str, str]]


@pytest.fixture
def diagnose(triton: LocalTriton, load: Callable[[str], None]) -> Diagnose:
    """Runs the doctor on a model, with its own folder or another; returns ``troubles``."""

    def run(model: str, *flags: str, folder: Path | None = None, protocol: str = "v2") -> dict[str, str]:
        load(model)
        address = triton.http_address if protocol == "v2" else triton.grpc_address
        folder = folder or task_model_folder(model)
        results = asyncio.run(results_of(flags_for(model, folder, address, protocol, flags)))
        assert list(dict.fromkeys(result.name for result in results)) == [check.name for check in CHECKS]
        return troubles(results)

    return run
