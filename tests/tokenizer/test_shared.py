"""Models of equal tokenizers share an engine."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import orjson
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import pre_tokenizers

from hf_transformer.app.loading import LoadedModel, load_model
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.tokenizer.shared import SharedEngines
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODELS

TEXT = "the model reads a text about the first day of the year"


def load(engines: SharedEngines | None, folder: Path = DEMO_MODELS / "minibert_mean", *flags: str) -> LoadedModel:
    flags = flags or ("--task=text_embedding",)
    return load_model(config(f"--model_dir={folder}", "--model_name=m", *flags), engines)


def unload() -> None:
    """Collects the models without a reference, whose objects have cycles."""
    gc.collect()


def test_models_of_one_folder_share_an_engine_as_long_as_one_is_loaded() -> None:
    engines = SharedEngines()
    first, second = load(engines), load(engines)
    assert len(engines) == 1
    expected = load(None).tokenizer.encode([TEXT])
    assert first.tokenizer.encode([TEXT]) == expected
    del first
    unload()
    assert len(engines) == 1
    assert second.tokenizer.encode([TEXT]) == expected
    third = load(engines)
    assert len(engines) == 1
    del second, third
    unload()
    assert len(engines) == 0


def test_models_share_the_word_cache_and_its_checks() -> None:
    engines = SharedEngines()
    first, second, other = load(engines), load(engines), load(None)
    before = first.tokenizer.cache_checks()["same"]
    for _ in range(2000):
        first.tokenizer.encode([TEXT])
    assert second.tokenizer.cache_checks() == first.tokenizer.cache_checks()
    assert second.tokenizer.cache_checks()["same"] > before == other.tokenizer.cache_checks()["same"]


def test_limits_are_a_models_own() -> None:
    engines = SharedEngines()
    short = load(engines, DEMO_MODELS / "minibert_mean", "--task=text_embedding", "--max_model_len=5")
    long = load(engines)
    [cut], [whole] = short.tokenizer.encode([TEXT]), long.tokenizer.encode([TEXT])
    assert len(engines) == 1
    assert (len(cut), cut.truncated, whole.truncated) == (5, True, False)
    assert len(long.tokenizer.with_max_length(7).encode([TEXT])[0]) == 7
    assert [len(model.tokenizer.encode([TEXT])[0]) for model in (short, long)] == [5, len(whole)]


def test_letters_are_a_models_own() -> None:
    engines, folder, text = SharedEngines(), DEMO_MODELS / "minibert_mean", "a [SEP] b"
    flags = ("--task=text_embedding", "--user_special_tokens=text")
    as_tokens, as_letters = load(engines, folder), load(engines, folder, *flags)
    assert len(engines) == 1
    for model, expected in ((as_tokens, load(None, folder)), (as_letters, load(None, folder, *flags))):
        assert model.tokenizer.encode([text]) == expected.tokenizer.encode([text])
    assert as_tokens.tokenizer.encode([text]) != as_letters.tokenizer.encode([text])


@pytest.mark.parametrize(
    "flag", ["--disable_special_tokens=true", "--disable_lower_case=true", "--enable_word_cache=false"]
)
def test_other_settings_have_another_engine(flag: str) -> None:
    engines, folder = SharedEngines(), DEMO_MODELS / "minibert_mean"
    flags = ("--task=text_embedding", flag)
    models = [load(engines, folder), load(engines, folder, *flags)]
    assert len(engines) == len(models)
    assert models[1].tokenizer.encode([TEXT.title()]) == load(None, folder, *flags).tokenizer.encode([TEXT.title()])


def test_a_changed_file_has_another_engine(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DEMO_MODELS / "minibert_mean", folder)
    engines = SharedEngines()
    before = load(engines, folder)
    [encoding] = before.tokenizer.encode([TEXT])
    document = orjson.loads((folder / "tokenizer.json").read_bytes())
    vocabulary = document["model"]["vocab"]
    vocabulary["the"], vocabulary["a"] = vocabulary["a"], vocabulary["the"]
    (folder / "tokenizer.json").write_bytes(orjson.dumps(document))
    after = load(engines, folder)
    assert len(engines) == 2
    assert after.tokenizer.encode([TEXT])[0].ids != encoding.ids
    assert before.tokenizer.encode([TEXT])[0].ids == encoding.ids


def test_a_template_around_pairs_is_not_that_of_other_models() -> None:
    engines, folder = SharedEngines(), DEMO_MODELS / "cross"
    pair = (TEXT, "a document")
    plain = load(engines, folder, "--task=rerank", "--rerank_template=none")
    expected = plain.tokenizer.encode([pair])
    framed = [load(engines, folder, "--task=rerank", "--rerank_template=bge") for _ in range(2)]
    assert len(engines) == 2
    assert plain.tokenizer.encode([pair]) == expected
    assert framed[0].tokenizer.encode([pair]) == framed[1].tokenizer.encode([pair]) != expected


def test_a_stage_in_python_is_not_shared() -> None:
    class Stage:
        def pre_tokenize(self, text: object) -> None:
            """Leaves the text as it is."""

    engines = SharedEngines()
    backend = Library.from_file(str(DEMO_MODELS / "minibert_mean" / "tokenizer.json"))
    backend.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Stage())
    engine = RustEngine(backend, 16, special_tokens=True, truncation_side="right", word_cache=False)
    assert engines.share(engine) is engine
    assert len(engines) == 0
