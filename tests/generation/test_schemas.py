"""Texts under a mask validate for many schemas, and hostile schemas end early."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.constraint import read_structured_outputs
from hf_transformer.generation.masks import Sandbox
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.schemas import HOSTILE, ordinary
from tests.generation.test_masks import Constrained

# One event loop, since the tests share the processes of `children`.
pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT, PARTS = 100, 4
MOST_SECONDS = 60.0
"""Far above what any schema takes; without bounds some take hours."""


@pytest.mark.parametrize("part", range(PARTS))
async def test_texts_of_100_schemas_validate(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox, part: int
) -> None:
    made, finished = Constrained(gpt2, executor, sandbox, seed=part), 0
    for number, schema in list(enumerate(ordinary(COUNT)))[part::PARTS]:
        constraint = read_structured_outputs({"json": schema}, ("structured_outputs",), 65_536)
        text, finish = await made.said(constraint, seed=number, max_tokens=990)
        if finish == "stop":
            jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
            finished += 1
    assert finished >= COUNT // PARTS - 1  # a free text may reach the limit of tokens


async def refusal(made: Constrained, schema: Any) -> str:
    """The error of a schema, or an empty string for one that is answered."""
    try:
        constraint = read_structured_outputs({"json": schema}, ("structured_outputs",), 65_536)
        await made.steps(constraint, max_tokens=30)
    except (InvalidInput, TooLarge) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_schemas_are_refused_or_answered_in_bounded_time(
    gpt2: Tokenizer, executor: ThreadPoolExecutor, sandbox: Sandbox, name: str
) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        error = await refusal(Constrained(gpt2, executor, sandbox), HOSTILE[name])
    assert not error or error.startswith(("parameters.constraint: expected", "structured_outputs.json: expected"))
    assert len(error) < 700


async def test_there_are_at_least_40_hostile_schemas() -> None:
    assert len(HOSTILE) >= 40
