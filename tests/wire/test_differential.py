"""A small run of the differential test; the whole is ``python -m tests.wire.differential``."""

from __future__ import annotations

from tests.wire.differential import run


async def test_damaged_requests_are_those_that_uvicorns_class_sees() -> None:
    kinds, findings = await run(1500, seed=1)
    assert findings == []
    assert kinds.total() == 1500 and kinds["the same"] > 750
