from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.generating import Bench, bench


@pytest.fixture
async def made() -> AsyncIterator[Bench]:
    """A served model that generates the default text."""
    async with bench() as made:
        yield made
