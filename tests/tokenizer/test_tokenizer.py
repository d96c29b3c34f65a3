"""The tokenizer gives what transformers' AutoTokenizer gives, id for id."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.load import NAMED, load_fast
from hf_transformer.tokenizer.tokenizer import INLINE_CHARACTERS, Tokenizer, load_tokenizer
from hf_transformer.types import PLAIN, Tokenization
from tests.generation.tokenizers import without_unknown
from tests.tiny_tokenizers.corpus import PAIRS, TEXTS, grid
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS, added_to_bert

FILES: dict[str, Any] = FOLDERS | BY_TRANSFORMERS
MAX = 64


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("tokenizers")
    return cache(lambda name: FILES[name](root / name))


@pytest.fixture(scope="session")
def auto() -> Any:
    """AutoTokenizer of a folder, loaded once."""

    @cache
    def load(folder: Path) -> Any:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)

    return load


def config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return config


def ours(folder: Path, **options: Any) -> Tokenizer:
    return load_tokenizer(folder, config_of(folder), **{"max_model_len": MAX, **options})


def expected(auto: Any, texts: list[Any], *, pairs: bool = False, **options: Any) -> Any:
    """What AutoTokenizer gives for a batch, as rows of (ids, type ids, offsets, special mask)."""
    batch = ([first for first, _ in texts], [second for _, second in texts]) if pairs else (texts,)
    out = auto(
        *batch,
        truncation=True,
        max_length=MAX,
        return_token_type_ids=True,
        return_offsets_mapping=auto.is_fast,
        return_special_tokens_mask=True,
        **options,
    )
    offsets = out["offset_mapping"] if auto.is_fast else [None] * len(texts)
    return list(zip(out["input_ids"], out["token_type_ids"], offsets, out["special_tokens_mask"], strict=True))


def check_same(tokenizer: Tokenizer, auto: Any, texts: list[Any], *, pairs: bool = False) -> None:
    wanted = expected(auto, texts, pairs=pairs)
    encodings = tokenizer.encode(texts, offsets=auto.is_fast)
    for text, encoding, quick, (ids, types, offsets, special) in zip(
        texts, encodings, tokenizer.encode(texts), wanted, strict=True
    ):
        assert encoding.ids == quick.ids == ids, text
        assert encoding.type_ids == quick.type_ids == types, text
        if offsets is not None:
            assert encoding.offsets == [tuple(pair) for pair in offsets], text
            assert encoding.special_mask == special, text
        assert tokenizer.decode(ids) == auto.decode(ids), text
        assert tokenizer.decode(ids, skip_special_tokens=True) == auto.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("name", FILES)
def test_same_as_auto_tokenizer(name: str, folders: Any, auto: Any) -> None:
    folder = folders(name)
    tokenizer, reference = ours(folder), auto(folder)
    check_same(tokenizer, reference, grid())
    check_same(tokenizer, reference, PAIRS, pairs=True)
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
def test_mirrored_without_transformers(name: str, folders: Any, auto: Any) -> None:
    folder = folders(name)
    loaded, reference = load_fast(folder, config_of(folder), lower_case=True), auto(folder)
    assert loaded.tokens == {key: getattr(reference, key) for key in NAMED if getattr(reference, key) is not None}
    assert loaded.truncation_side == reference.truncation_side


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "xlm-roberta", "t5", "albert", "vocab.txt", "byt5"])
def test_without_special_tokens(name: str, folders: Any, auto: Any) -> None:
    folder = folders(name)
    wanted = expected(auto(folder), TEXTS, add_special_tokens=False)
    got = ours(folder, special_tokens=False).encode(TEXTS)
    assert [encoding.ids for encoding in got] == [row[0] for row in wanted]


@pytest.mark.parametrize("name", ["bert", "bert-cased", "bert-lowercasing-over-cased-file", "albert", "vocab.txt"])
def test_lower_case_switched_off(name: str, folders: Any) -> None:
    folder = folders(name)
    reference = transformers.AutoTokenizer.from_pretrained(str(folder), do_lower_case=False)
    check_same(ours(folder, lower_case=False), reference, TEXTS)


def test_lower_case_switched_off_for_generic_class(tmp_path: Path) -> None:
    tokenizer = ours(added_to_bert(tmp_path), lower_case=False)
    assert tokenizer.encode(["Paris"])[0].ids != tokenizer.encode(["paris"])[0].ids
    assert ours(tmp_path).encode(["Paris"])[0].ids == ours(tmp_path).encode(["paris"])[0].ids


@pytest.mark.parametrize("name", ["bert", "bert-cased", "roberta", "gpt2", "xlm-roberta", "t5", "generic-unigram"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=120), second=st.text(max_size=80))
def test_any_text(name: str, text: str, second: str, folders: Any, auto: Any, loaded: Any) -> None:
    folder = folders(name)
    check_same(loaded(folder), auto(folder), [text])
    check_same(loaded(folder), auto(folder), [(text, second)], pairs=True)


@pytest.fixture(scope="session")
def loaded() -> Any:
    return cache(ours)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "byt5"])
def test_truncated_is_truthful(name: str, folders: Any) -> None:
    folder = folders(name)
    cut, whole = ours(folder, max_model_len=12), ours(folder, max_model_len=500)
    texts: list[Any] = [" ".join(["a"] * count) for count in range(16)] + [("a " * 3, "a " * n) for n in range(12)]
    outcomes = set()
    for short, full in zip(cut.encode(texts), whole.encode(texts), strict=True):
        assert short.truncated == (len(full) > 12)
        assert len(short) == min(len(full), 12)
        outcomes.add((short.truncated, len(full) == 12))
    assert {(True, False), (False, False)} < outcomes, "texts of exactly the limit are among them"


def test_offsets_count_characters(folders: Any) -> None:
    text = "😀 niño"
    [encoding] = ours(folders("gpt2")).encode([text], offsets=True)
    assert encoding.offsets is not None and max(end for _, end in encoding.offsets) == len(text)


async def test_long_texts_go_to_a_thread(folders: Any) -> None:
    tokenizer = ours(folders("bert"))
    threads: list[str] = []
    inner = tokenizer._engine.encode

    def spy(*args: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return inner(*args, **options)

    tokenizer._engine.encode = spy  # type: ignore[method-assign]
    half = "x" * (INLINE_CHARACTERS // 2)
    with ThreadPoolExecutor(1, thread_name_prefix="tokenizing") as executor:
        plain = await tokenizer.encode_off_loop([half, half], executor)
        short = await tokenizer.encode_off_loop([half, (half[1:], "x")], executor)
        long = await tokenizer.encode_off_loop([half, (half, "x")], executor, Tokenization(detail=True))
    assert threads == [threading.main_thread().name] * 2 + ["tokenizing_0"]
    assert plain == inner([half, half], PLAIN)
    assert short == inner([half, (half[1:], "x")], PLAIN)
    assert long == inner([half, (half, "x")], Tokenization(detail=True))


async def test_many_threads_at_once(folders: Any) -> None:
    tokenizer = ours(folders("bert"))
    texts = [f"{text} {number} " * 70 for number, text in enumerate(TEXTS)]
    with ThreadPoolExecutor(8) as executor:
        got = await asyncio.gather(*(tokenizer.encode_off_loop([text], executor) for text in texts * 4))
    assert [batch[0][0] for batch in got] == [tokenizer.encode([text])[0] for text in texts] * 4


def test_another_max_length(folders: Any) -> None:
    for name in ("bert", "bert-added-decoder", "vocab.txt", "byt5"):
        tokenizer = ours(folders(name))
        other = tokenizer.with_max_length(8)
        assert tokenizer.with_max_length(MAX) is tokenizer
        assert (other.max_length, len(other.encode(["word " * 50])[0])) == (8, 8)
        assert (tokenizer.max_length, len(tokenizer.encode(["word " * 50])[0])) == (MAX, MAX)
        assert other.encode(["[ENT] a"]) == tokenizer.encode(["[ENT] a"])
        assert (other.mask_id, other.pad_id, other.vocab_size) == (
            tokenizer.mask_id,
            tokenizer.pad_id,
            tokenizer.vocab_size,
        )


def test_pad_id_without_a_pad_token(folders: Any) -> None:
    tokenizer = ours(folders("gpt2"))
    assert tokenizer.pad_token_id is None
    assert tokenizer.pad_id == tokenizer.token_to_id("<|endoftext|>")
    assert ours(folders("bert-neither")).pad_id == 0


def test_mask_token_without_settings(folders: Any) -> None:
    tokenizer = ours(folders("bert-neither"))
    assert (tokenizer.mask_token, tokenizer.mask_id) == ("[MASK]", 4)
    assert ours(folders("gpt2")).mask_id is None


def test_first_token(folders: Any) -> None:
    for name in ("bert", "byt5"):
        tokenizer = ours(folders(name))
        assert tokenizer.first_token_id("paris") == tokenizer.encode(["paris"])[0].ids[0 if name == "byt5" else 1]
        assert tokenizer.first_token_id("") is None


def test_a_text_without_a_first_token(tmp_path: Path) -> None:
    tokenizer = ours(without_unknown(tmp_path))
    assert tokenizer.first_token_id("G A") == tokenizer.token_to_id("G")
    assert tokenizer.first_token_id("g") is None


def test_lone_surrogate_is_the_clients_mistake(folders: Any) -> None:
    for text in ("a \ud800 b", ("fine", "\udfff")):
        with pytest.raises(InvalidInput, match="lone surrogate"):
            ours(folders("bert")).encode([text])


def test_offsets_of_a_python_tokenizer(folders: Any) -> None:
    with pytest.raises(InvalidInput, match="no offsets"):
        ours(folders("byt5")).encode(["a"], offsets=True)
