"""/openapi.json says what the hand-written document said, but for listed decisions (tests/api/document_before)."""

from __future__ import annotations

import json
import lzma
import re

import pytest

from hf_transformer import RELEASE
from scripts.document_facts import facts_of
from tests.api.document_before.decisions import DECISIONS, NEW_TASKS
from tests.api.document_before.freeze import FILE, documents

pytestmark = pytest.mark.slow


def test_each_difference_is_a_decision_and_each_decision_a_difference() -> None:
    before, text = json.loads(lzma.decompress(FILE.read_bytes())), json.dumps(documents())
    now = json.loads(text.replace(f'"{RELEASE}"', '"0.16.0"'))  # the version in examples
    assert before.keys() == now.keys() - NEW_TASKS and now.keys() > NEW_TASKS
    differences: set[str] = set()
    for name, document in before.items():
        old, new = facts_of(document), facts_of(now[name])
        differences |= {f"- {fact}" for fact in old - new} | {f"+ {fact}" for fact in new - old}
    differences = {re.sub(r"/m\b", "/{model}", difference) for difference in differences}
    undecided = [one for one in differences if not any(re.fullmatch(pattern, one) for pattern in DECISIONS)]
    assert not sorted(undecided)
    unused = [pattern for pattern in DECISIONS if not any(re.fullmatch(pattern, one) for one in differences)]
    assert not unused


def test_the_comparison_sees_each_kind_of_difference() -> None:
    before = json.loads(lzma.decompress(FILE.read_bytes()))["fill_mask"]
    facts = facts_of(before)
    path = before["paths"]["/v1/models/m:predict"]["post"]
    schema = before["components"]["schemas"]["V1Request"]["properties"]
    del path["responses"]["504"]
    schema["inputs"]["anyOf"][0]["minItems"] = 2
    schema["more"] = {"type": "string"}
    del schema["parameters"]
    gone, new = facts - facts_of(before), facts_of(before) - facts
    assert "POST /v1/models/m:predict, 504" in gone and "POST /v1/models/m:predict, body.parameters: value null" in gone
    assert {"POST /v1/models/m:predict, body.inputs: type array, minItems 2"} < new
    assert "POST /v1/models/m:predict, body.more: type string" in new
