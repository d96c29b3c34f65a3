"""The tokenizer gives the ids of transformers' AutoTokenizer. Loading, its limits and its errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers.models.auto import tokenization_auto

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.extras import install_command
from hf_transformer.tokenizer import recipes
from hf_transformer.tokenizer.load import NAMED, load_fast
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.generation.tokenizers import gemma, without_unknown
from tests.tiny_tokenizers.corpus import PAIRS, TEXTS, grid
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS, added_to_bert, sentencepiece_only
from tests.tiny_tokenizers.trained import save, wordpiece

MAX = 64


def expected(auto: Any, texts: list[Any], **options: Any) -> Any:
    """AutoTokenizer's rows of (ids, type ids, offsets, special mask) for texts or pairs."""
    columns = [list(column) for column in zip(*texts, strict=True)] if isinstance(texts[0], tuple) else [texts]
    outputs = {"return_token_type_ids": True, "return_special_tokens_mask": True}
    outputs["return_offsets_mapping"] = auto.is_fast
    rows = auto(*columns, truncation=True, max_length=MAX, **outputs, **options)
    offsets = rows["offset_mapping"] if auto.is_fast else [None] * len(texts)
    return list(zip(rows["input_ids"], rows["token_type_ids"], offsets, rows["special_tokens_mask"], strict=True))


def check_same(tokenizer: Tokenizer, auto: Any, texts: list[Any]) -> None:
    rows = tokenizer.encode(texts, offsets=auto.is_fast), tokenizer.encode(texts), expected(auto, texts)
    for text, encoding, quick, (ids, types, offsets, special) in zip(texts, *rows, strict=True):
        assert encoding.ids == quick.ids == ids, text
        assert encoding.type_ids == quick.type_ids == types, text
        if offsets is not None:
            assert encoding.offsets == [tuple(pair) for pair in offsets], text
            assert encoding.special_mask == special, text
        for skip in (False, True):
            assert tokenizer.decode(ids, skip) == auto.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize("name", FOLDERS | BY_TRANSFORMERS)
def test_encodings_and_properties_are_those_of_auto_tokenizer(name: str, ours: Any, auto: Any) -> None:
    tokenizer, reference = ours(name, max_model_len=MAX), auto(name)
    check_same(tokenizer, reference, grid())
    check_same(tokenizer, reference, PAIRS)
    assert tokenizer.vocab_size == max(reference.get_vocab().values()) + 1
    assert tokenizer.padding_side == reference.padding_side
    assert tokenizer.pad_token_id == reference.pad_token_id
    if reference.mask_token is not None:
        assert (tokenizer.mask_token, tokenizer.mask_id) == (reference.mask_token, reference.mask_token_id)
    for number in (0, 1, 5, tokenizer.vocab_size - 1):
        token = tokenizer.id_to_token(number)
        assert token == reference.convert_ids_to_tokens(number)
        assert token is None or tokenizer.token_to_id(token) == number


@pytest.mark.parametrize("name", FOLDERS)
def test_mirrored_classes_load_without_transformers(name: str, folders: Any, auto: Any) -> None:
    path = folders(name) / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    loaded, reference = load_fast(folders(name), config, lower_case=True), auto(name)
    assert loaded.tokens == {key: getattr(reference, key) for key in NAMED if getattr(reference, key) is not None}
    assert loaded.truncation_side == reference.truncation_side


@pytest.mark.parametrize("name", ["bert", "bert-cased", "bert-lowercasing-over-cased-file", "albert", "vocab.txt"])
def test_lower_case_can_be_switched_off(name: str, ours: Any, folders: Any) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(str(folders(name)), do_lower_case=False)
    check_same(ours(name, max_model_len=MAX, lower_case=False), reference, TEXTS)


def test_lower_case_can_be_switched_off_for_a_generic_class(tmp_path: Path) -> None:
    folder = added_to_bert(tmp_path)
    for lower_case in (True, False):
        upper, lower = load_tokenizer(folder, {}, lower_case=lower_case).encode(["Paris", "paris"])
        assert (upper.ids == lower.ids) is lower_case


@pytest.mark.parametrize(
    ("name", "pad_token_id", "mask"),
    [("gpt2", None, (None, None)), ("bert-neither", None, ("[MASK]", 4)), ("bert", 0, ("[MASK]", 4))],
)
def test_pad_and_mask_tokens_without_settings(name: str, pad_token_id: int | None, mask: Any, ours: Any) -> None:
    tokenizer = ours(name)
    assert (tokenizer.pad_token_id, tokenizer.pad_id) == (pad_token_id, 0)
    assert (tokenizer.mask_token, tokenizer.mask_id) == mask


def test_padding_without_a_token_of_its_own_is_the_end_of_the_text(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gemma(tmp_path), {})
    assert (tokenizer.pad_token_id, tokenizer.pad_id) == (None, tokenizer.token_to_id("</s>"))
    assert tokenizer.unk_id not in (None, tokenizer.pad_id)


@pytest.mark.parametrize("name", ["bert", "bert-added-decoder", "vocab.txt", "byt5"])
def test_a_copy_may_have_another_max_length(name: str, ours: Any) -> None:
    tokenizer = ours(name, max_model_len=MAX)
    shorter = tokenizer.with_max_length(8)
    assert tokenizer.with_max_length(MAX) is tokenizer
    for limited, length in ((shorter, 8), (tokenizer, MAX)):
        assert limited.max_length == len(limited.encode(["word " * 50])[0]) == length
    assert shorter.encode(["[ENT] a"]) == tokenizer.encode(["[ENT] a"])
    assert (shorter.mask_id, shorter.pad_id) == (tokenizer.mask_id, tokenizer.pad_id)


def test_first_token_id_is_none_for_texts_without_tokens(ours: Any, tmp_path: Path) -> None:
    for name in ("bert", "byt5"):
        tokenizer = ours(name)
        assert tokenizer.first_token_id("paris") == tokenizer.encode(["paris"])[0].ids[0 if name == "byt5" else 1]
        assert tokenizer.first_token_id("") is None
    genes = load_tokenizer(without_unknown(tmp_path), {})
    assert genes.first_token_id("G A") == genes.token_to_id("G")
    assert genes.first_token_id("g") is None


def test_surrogates_and_missing_offsets_are_refused(ours: Any) -> None:
    for text in ("a \ud800 b", ("fine", "\udfff")):
        with pytest.raises(InvalidInput, match="lone surrogate"):
            ours("bert").encode([text])
    with pytest.raises(InvalidInput, match="no request for offsets"):
        ours("byt5").encode(["a"], offsets=True)


# Loading

BERT = {"model_type": "bert", "max_position_embeddings": 512}

LIMITS = {
    "512 of the model": ({"max_position_embeddings": 512}, {}, None, 512),
    "tokenizer's is smaller": ({"max_position_embeddings": 512}, {"model_max_length": 128}, None, 128),
    "model's is smaller": ({"max_position_embeddings": 512}, {"model_max_length": 1024}, None, 512),
    "sentinel": ({"n_positions": 77}, {"model_max_length": int(1e30)}, None, 77),
    "old name": ({}, {"max_len": 99}, None, 99),
    "nothing": ({}, {}, None, 512),
    "xlnet": ({"max_position_embeddings": -1}, {}, None, 512),
    "roberta": ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {}, None, 512),
    "mpnet": ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 0}, {}, None, 512),
    "text model": ({"text_config": {"max_position_embeddings": 60}}, {}, None, 60),
    "stretched": ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4}}, {}, 400, 400),
    "asked for": ({"max_position_embeddings": 512}, {"model_max_length": 64}, 256, 256),
}


@pytest.mark.parametrize(("config", "tokenizer_config", "asked", "length"), LIMITS.values(), ids=LIMITS)
def test_max_length_is_the_smaller_limit_unless_a_flag_sets_it(
    config: Any, tokenizer_config: Any, asked: int | None, length: int, tmp_path: Path
) -> None:
    named = {"model_type": "bert", **config}
    save(tmp_path, wordpiece(lowercase=True), settings={"tokenizer_class": "BertTokenizer", **tokenizer_config})
    assert load_tokenizer(tmp_path, named, max_model_len=asked).max_length == length


def test_limits_that_the_model_can_not_take_are_refused(folders: Any, ours: Any) -> None:
    for asked, length in ((None, 7), (9, 9)):
        assert load_tokenizer(folders("bert"), BERT, at_most=7, max_model_len=asked).max_length == length
    with pytest.raises(LoadError, match=r"--max_model_len=513 is more than the 512 tokens that config.json allows"):
        ours("roberta", max_model_len=513)
    with pytest.raises(LoadError, match=r"2 tokens leaves no room for text: 2 special tokens"):
        ours("bert", max_model_len=2)
    with pytest.raises(InvalidInput, match="expected a pair of texts that fits into 3 tokens"):
        ours("roberta", max_model_len=3).encode([("a", "b")])


@pytest.mark.slow
def test_encoding_does_not_import_transformers(folders: Any, ours: Any) -> None:
    code = (
        "import sys; from hf_transformer.tokenizer.tokenizer import load_tokenizer\n"
        f"t = load_tokenizer({str(folders('bert'))!r}, {BERT!r}); print(t.encode(['paris'])[0].ids)\n"
        "print([name for name in ('transformers', 'huggingface_hub', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(ours("bert").encode(["paris"])[0].ids), "[]"]


@pytest.mark.slow
def test_threads_may_import_transformers_at_once(tmp_path: Path) -> None:
    """As the models of --models are loaded: a thread that waits for another's import got a module without classes."""
    folder = save(tmp_path / "model", None, settings={"tokenizer_class": "ByT5Tokenizer"}, config={"model_type": "t5"})
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from hf_transformer.tokenizer.tokenizer import load_tokenizer\n"
        f"load = lambda _: load_tokenizer({str(folder)!r}, {{'model_type': 't5'}}).max_length\n"
        "print(len(list(ThreadPoolExecutor(6).map(load, range(6)))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "6\n", done.stderr


CODE = """
from transformers import ByT5Tokenizer
class OwnTokenizer(ByT5Tokenizer):
    def _tokenize(self, text):
        return super()._tokenize(text[::-1])
"""


def test_custom_code_needs_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    settings = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    folder = save(tmp_path / "model", None, settings=settings, config={"model_type": "own"}, own_py=CODE)
    with pytest.raises(LoadError, match="--trust_remote_code"):
        load_tokenizer(folder, {"model_type": "own"})
    tokenizer = load_tokenizer(folder, {"model_type": "own"}, trust_remote_code=True, special_tokens=False)
    assert tokenizer.decode(tokenizer.encode(["abc"])[0].ids) == "cba"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"model": ', r"tokenizer\.json is not valid JSON"),
        ("tokenizer.json", '{"model": {"type": "Unknown"}}', r"can't be loaded: \w+: "),
        ("tokenizer_config.json", '{"padding_side": "up"}', "'right' and 'left'"),
        ("spiece.model", "broken", "can't be loaded"),
    ],
)
def test_broken_files_are_named_in_one_line(
    name: str, content: str, message: str, folders: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if name == "spiece.model":
        sentencepiece_only(folder)
    else:
        shutil.copytree(folders("bert"), folder)
    (folder / name).write_text(content)
    with pytest.raises(LoadError, match=message) as caught:
        load_tokenizer(folder, json.loads((folder / "config.json").read_text()))
    assert "\n" not in str(caught.value)


def of_type(folder: Path, name: str, model_type: str) -> Path:
    """Writes one of FOLDERS with another type of the model."""
    FOLDERS[name](folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.mark.parametrize("model_type", ["llama", "mistral", "deepseek_v3", "code_llama", "not_known_anywhere"])
@pytest.mark.parametrize("name", ["llama", "llama-legacy", "llama-byte-level", "gpt2", "qwen"])
def test_a_tokenizer_json_of_any_model_type_loads_without_transformers(
    name: str, model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = of_type(tmp_path, name, model_type)
    reference = transformers.AutoTokenizer.from_pretrained(str(folder))
    monkeypatch.setitem(sys.modules, "transformers", None)
    tokenizer = load_tokenizer(folder, {"model_type": model_type}, max_model_len=MAX)
    check_same(tokenizer, reference, TEXTS)


def test_the_advice_without_transformers_fits_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name, saves in (("rare-class", False), ("vocab.txt", True)):
        folder = tmp_path / name
        folder.mkdir()
        BY_TRANSFORMERS[name](folder)
        with pytest.raises(LoadError) as caught:
            load_tokenizer(folder, json.loads((folder / "config.json").read_text()))
        assert install_command("transformers") in str(caught.value)
        assert ("save a tokenizer.json there" in str(caught.value)) is saves


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("generic-unigram", "its tokenizer.json"),
        ("granite", "its tokenizer.json"),
        ("llama-byte-level", "its tokenizer.json"),
        ("qwen", "the class Qwen2Tokenizer, with the vocabulary of its tokenizer.json"),
        ("llama", "the class LlamaTokenizer, with the vocabulary of its tokenizer.json"),
        (
            "rare-class",
            f"transformers {transformers.__version__}, class BigBirdTokenizer (its tokenizer.json is not read",
        ),
        ("vocab.txt", f"transformers {transformers.__version__}, class BertTokenizer (it has no tokenizer.json)"),
    ],
)
def test_the_log_names_the_origin_of_the_ids(
    name: str, source: str, folders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folders(name)
    with caplog.at_level("INFO", "hf_transformer.tokenizer.load"):
        tokenizer = load_tokenizer(folder, json.loads((folder / "config.json").read_text() or "{}"))
    assert tokenizer.source.startswith(source)
    [record] = caplog.records
    assert record.getMessage() == f"the tokenizer in {folder} is that of {tokenizer.source}"


def test_classes_are_those_of_transformers() -> None:
    registered = tokenization_auto.TOKENIZER_MAPPING_NAMES
    by_name = tokenization_auto.tokenizer_class_from_name
    for name, types in recipes.MODEL_TYPES.items():
        for model_type in types.split():
            assert by_name(registered[model_type] or "") is by_name(name), model_type
    generic = {key for key, name in registered.items() if name == "TokenizersBackend"}
    assert generic <= {*recipes.MODEL_TYPES[recipes.GENERIC].split()}, "else a folder's class would apply"
    assert registered.keys().isdisjoint(recipes.UNREGISTERED)
    for alias, name in recipes.ALIASES.items():
        assert alias == "DistilBertTokenizer" or by_name(alias) is by_name(name)
    wrong = tokenization_auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {key for key in wrong if registered[key] != "TokenizersBackend"} == recipes.WRONG_CLASS_TYPES
