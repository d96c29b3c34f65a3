from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.generating import ServedModel, served_model


@pytest.fixture
async def made() -> AsyncIterator[ServedModel]:
    """A served model that generates the default text."""
    async with served_model() as made:
        yield made
