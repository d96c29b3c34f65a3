"""The exports of the test models, which all modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hf_transformer.commands.local_triton import LocalTriton
from tests.models.exporting import Exports, triton_with_torch


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    folder = tmp_path_factory.mktemp("export")
    (folder / "repository").mkdir()
    options = ("--disable-auto-complete-config",)
    with LocalTriton(
        folder / "repository", environment=triton_with_torch(), config_name=None, models=[], options=options
    ) as server:
        yield Exports(folder, server)
