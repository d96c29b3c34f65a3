"""Events that the CloudEvents SDK writes are answered with events that it reads."""

from __future__ import annotations

import json

from tests.clients.conftest import Run
from tests.integration.conftest import Serve


def test_events_of_both_modes(serve: Serve, client: Run) -> None:
    request = {"instances": ["The capital of france is [MASK]."]}
    said = client("cloud_event", service=serve("bert"), request=request, text=json.dumps(request))
    attributes = ["1.0", "io.kserve.inference.bert", "io.kserve.inference.response", True]
    names = ("structured object", "structured bytes", "binary object", "binary bytes")
    assert said == {name: [*attributes, {"predictions": ["paris"]}] for name in names}
