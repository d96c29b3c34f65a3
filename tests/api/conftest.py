from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hf_transformer.api.auth import ApiKeys
from tests.api.generating import ServedModel, served_model


@pytest.fixture
async def made() -> AsyncIterator[ServedModel]:
    """A served model that generates the default text."""
    async with served_model() as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of the keys alpha-key and beta-key."""
    path = tmp_path / "keys"
    path.write_text("# a comment\n\n  alpha-key  \nbeta-key\n")
    return path


@pytest.fixture
def keys(file: Path) -> ApiKeys:
    return ApiKeys(str(file))
