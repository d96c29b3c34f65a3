"""Fixtures of the generation tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import pytest_asyncio

from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.masks import Sandbox
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.scripted import PipelineHarness
from tests.generation.tokenizers import ALL, load


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(ALL["gpt2"](tmp_path_factory.mktemp("gpt2") / "model"))


@pytest.fixture(scope="session")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(ALL["t5"](tmp_path_factory.mktemp("t5") / "model"))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def children() -> AsyncIterator[ChildPool]:
    """Starting its processes takes longer than most tests. Those that use it run in the module's event loop."""
    async with ChildPool() as made:
        yield made


@pytest.fixture
def sandbox(children: ChildPool) -> Sandbox:
    return Sandbox(children)


@pytest.fixture
def harness(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> PipelineHarness:
    return PipelineHarness(gpt2, executor)
