"""Model folders by name, and our tokenizers and transformers' for them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.triton_repository import DEMO_MODELS, TASK_MODELS
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of a name: a tiny tokenizer, else one of the demo's or of the task models."""
    root, writers = tmp_path_factory.mktemp("tokenizers"), FOLDERS | BY_TRANSFORMERS

    def folder(name: str) -> Path:
        if name in writers:
            return writers[name](root / name)
        return next(
            models / name for models in (DEMO_MODELS, TASK_MODELS) if (models / name / "tokenizer.json").exists()
        )

    return cache(folder)


@pytest.fixture(scope="session")
def auto(folders: Any) -> Any:
    """transformers' AutoTokenizer for a name, cached."""
    return cache(lambda name: transformers.AutoTokenizer.from_pretrained(str(folders(name)), local_files_only=True))


@pytest.fixture(scope="session")
def ours(folders: Any) -> Any:
    """Our tokenizer for a name and options of load_tokenizer, cached."""

    @cache
    def load(name: str, **options: Any) -> Tokenizer:
        folder: Path = folders(name)
        path = folder / "config.json"
        return load_tokenizer(folder, json.loads(path.read_text()) if path.exists() else {}, **options)

    return load
