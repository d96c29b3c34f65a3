"""Fixtures of the generation tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

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


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with ChildPool() as children:
        yield Sandbox(children)


@pytest.fixture
def harness(gpt2: Tokenizer, executor: ThreadPoolExecutor) -> PipelineHarness:
    return PipelineHarness(gpt2, executor)
