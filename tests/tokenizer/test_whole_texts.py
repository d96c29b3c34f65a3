"""Texts that are not cut, what would be cut off of them, and long pairs that are: as transformers has it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types import Cut, TextInput, Tokenization
from tests.goldens.hard_texts import HARD_TEXTS
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS

FOLDER = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"
TASK_MODELS = Path(__file__).parents[1] / "task_models"
STORED = ("minibert_mean", "ner_roberta", "tokenizers/unigram")
MADE: dict[str, Any] = {
    name: (FOLDERS | BY_TRANSFORMERS)[name]
    for name in (
        "bert-left bert-added-decoder roberta gpt2 generic-bytes-no-post-processor xlm-roberta albert t5"
        " rare-class byt5"
    ).split()
}
CUT = 24
WHOLE = Tokenization(detail=True, whole=True)
TEXTS = list(HARD_TEXTS.values())
SOME = ["Anna", HARD_TEXTS["accents_combining"], HARD_TEXTS["turkish_many"], HARD_TEXTS["emoji_zwj"], "the hotel " * 60]
PAIRS = [(first, second) for first in SOME for second in (*SOME, HARD_TEXTS["very_long_one_word"])]
Both = tuple[Tokenizer, Any]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Both]:
    """A tokenizer, ours and that of transformers."""

    @cache
    def load(name: str) -> Both:
        folder = TASK_MODELS / name if name in STORED else MADE[name](tmp_path_factory.mktemp("tokenizers") / name)
        path = folder / "config.json"
        config = json.loads(path.read_text()) if path.exists() else {}
        auto = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        return load_tokenizer(folder, config, max_model_len=CUT), auto

    return load


def expected(auto: Any, text: TextInput, **options: Any) -> Any:
    """What transformers gives, and of each text the places of its tokens in the whole."""
    pair = text if isinstance(text, tuple) else (text, None)
    found = auto(*pair, return_token_type_ids=True, return_special_tokens_mask=True, verbose=False, **options)
    if not auto.is_fast:
        return found, None
    owners = found.sequence_ids(0)
    return found, [[place for place, owner in enumerate(owners) if owner == number] for number in range(len(pair))]


def expected_cut(auto: Any, text: TextInput) -> Cut:
    """What transformers cuts off, seen by comparing what it gives with and without."""
    whole, all_places = expected(auto, text, return_offsets_mapping=auto.is_fast)
    short, places = expected(auto, text, truncation=True, max_length=CUT)
    count = len(whole["input_ids"]) - len(short["input_ids"])
    if not auto.is_fast:
        return Cut(count, None)
    spans: list[tuple[int, int] | None] = []
    for mine, left in zip(all_places, places, strict=True):
        rest = mine[len(left) :] if auto.truncation_side == "right" else mine[: len(mine) - len(left)]
        offsets = [whole["offset_mapping"][place] for place in rest]
        spans.append((offsets[0][0], offsets[-1][1]) if offsets else None)
    return Cut(count, tuple(spans if isinstance(text, tuple) else spans[:1]))


@pytest.mark.parametrize("name", [*STORED, *MADE])
def test_a_whole_text_is_what_transformers_makes_of_it(both: Any, name: str) -> None:
    tokenizer, auto = both(name)
    texts: list[TextInput] = [*TEXTS, *PAIRS]
    for text, [encoding] in zip(texts, tokenizer.encode_windows(texts, WHOLE), strict=True):
        wanted, _ = expected(auto, text, return_offsets_mapping=auto.is_fast)
        assert encoding.ids == wanted["input_ids"], text
        assert encoding.type_ids == wanted["token_type_ids"], text
        assert encoding.special_mask == wanted["special_tokens_mask"], text
        assert encoding.offsets == wanted.get("offset_mapping"), text
        assert encoding.tokens == auto.convert_ids_to_tokens(wanted["input_ids"]), text
        assert encoding.cut == expected_cut(auto, text), text
        assert not encoding.truncated


@pytest.mark.parametrize("name", ["bert-left", "ner_roberta", "albert", "rare-class", "byt5"])
def test_special_tokens_can_be_left_out_of_a_whole_text(both: Any, name: str) -> None:
    tokenizer, auto = both(name)
    texts: list[TextInput] = [*TEXTS, *PAIRS]
    how = Tokenization(detail=True, whole=True, special_tokens=False)
    plain, usual = tokenizer.encode_windows(texts, how), tokenizer.encode_windows(texts, WHOLE)
    for text, [encoding], [other] in zip(texts, plain, usual, strict=True):
        assert encoding.ids == expected(auto, text, add_special_tokens=False)[0]["input_ids"]
        assert encoding.special_mask == [0] * len(encoding)
        assert encoding.cut == other.cut, "what the model would get is the same"


@pytest.mark.parametrize("name", [*STORED, *MADE])
def test_what_is_not_cut_is_what_the_model_gets(both: Any, name: str) -> None:
    tokenizer, _ = both(name)
    texts: list[TextInput] = [*TEXTS, *PAIRS]
    outcomes = set()
    for [whole], encoding in zip(tokenizer.encode_windows(texts, WHOLE), tokenizer.encode(texts), strict=True):
        assert whole.cut is not None
        assert len(encoding) == len(whole) - whole.cut.count
        assert encoding.truncated == bool(whole.cut.count)
        if not encoding.truncated:
            assert (encoding.ids, encoding.type_ids) == (whole.ids, whole.type_ids)
        outcomes.add(encoding.truncated)
    assert outcomes == {False, True}


@pytest.mark.parametrize("name", ["bert-left", "roberta", "xlm-roberta", "t5", "byt5"])
def test_a_service_without_special_tokens(both: Any, name: str, tmp_path: Path) -> None:
    folder = MADE[name](tmp_path)
    tokenizer = load_tokenizer(folder, {}, max_model_len=CUT, special_tokens=False)
    text = "the hotel " * 60
    [[alone]], [cut] = tokenizer.encode_windows([text], WHOLE), tokenizer.encode([text])
    assert sum(alone.special_mask or [1]) == 0
    assert alone.cut is not None and len(alone) - alone.cut.count == len(cut) == CUT
    [[added]] = tokenizer.encode_windows([text], Tokenization(detail=True, whole=True, special_tokens=True))
    assert sum(added.special_mask or []) > 0
    assert added.cut == alone.cut


@pytest.mark.parametrize("name", ["minibert_mean", "bert-left", "ner_roberta", "xlm-roberta", "t5", "gpt2"])
def test_pairs_of_two_long_texts_are_cut_as_transformers_does_it(both: Any, name: str) -> None:
    tokenizer, auto = both(name)
    pairs: list[TextInput] = [(f"{first} " * 6, f"{second} " * 4) for first, second in PAIRS[:4]]
    pairs += [(f"{first} " * 3, f"{second} " * 5) for first, second in PAIRS[6:10]]
    for detail in (False, True):
        for pair, [encoding] in zip(pairs, tokenizer.encode_windows(pairs, Tokenization(detail=detail)), strict=True):
            wanted, _ = expected(auto, pair, truncation=True, max_length=CUT, return_offsets_mapping=True)
            assert (encoding.ids, encoding.type_ids) == (wanted["input_ids"], wanted["token_type_ids"])
            assert encoding.truncated == (len(expected(auto, pair)[0]["input_ids"]) > CUT)
            if detail:
                assert encoding.offsets == wanted["offset_mapping"]
                assert encoding.special_mask == wanted["special_tokens_mask"]
                assert encoding.sequence_ids == wanted.sequence_ids(0)
    mixed = tokenizer.encode([pairs[0], "a", pairs[1], ("a", "b")])
    assert mixed == [tokenizer.encode([text])[0] for text in (pairs[0], "a", pairs[1], ("a", "b"))]


def test_a_long_pair_that_can_not_be_cut_to_fit(both: Any) -> None:
    tokenizer, _ = both("ner_roberta")
    with pytest.raises(InvalidInput, match="does not fit into 3 tokens"):
        tokenizer.with_max_length(3).encode([("a " * 500, "b " * 500)])


def test_a_pair_of_long_texts_costs_what_a_long_text_costs() -> None:
    """The library would make 36,000 pieces of it, in 600 MB."""
    code = (
        "import resource; from hf_transformer.tokenizer.tokenizer import load_tokenizer\n"
        f"tokenizer = load_tokenizer({str(FOLDER)!r}, {{}})\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = used(); [one] = tokenizer.encode([('a ' * 12_000, 'b ' * 12_000)])\n"
        "print(len(one), one.truncated, used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    length, truncated, megabytes = done.stdout.split()
    assert (length, truncated) == ("128", "True")
    assert int(megabytes) < 100


@pytest.mark.parametrize("name", ["minibert_mean", "gpt2", "t5", "byt5"])
@pytest.mark.parametrize("times", [1, 40])
async def test_decoding(both: Any, name: str, times: int) -> None:
    tokenizer, auto = both(name)
    ids = [encoding["input_ids"] * times for encoding in map(auto, TEXTS[:20])]
    for skip in (False, True):
        wanted = [auto.decode(one, skip_special_tokens=skip) for one in ids]
        assert await tokenizer.decode_off_loop(ids, None, skip) == wanted
        assert [tokenizer.decode(one, skip) for one in ids] == wanted
