"""Ids to text with a state of its own: the same text however it is cut, in time and memory that follow the ids."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from time import process_time

import pytest

from hf_transformer.generation.derender import REREAD_TOKENS, Derenderer, EndRules, TextWindow, TokenNames
from hf_transformer.generation.detokenizer import MAX_PENDING_TOKENS
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tokenization import Tokenization
from scripts.goldens.vllm_derender import make_pieces
from scripts.goldens.vllm_render import PLAIN

BARE = Tokenization(whole=True, special_tokens=False)
RULES = EndRules(end_id=0, end_ids=frozenset((0, 2)))


@pytest.fixture(scope="module", params=["gpt2", "pieces"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = PLAIN if request.param == "gpt2" else make_pieces(tmp_path_factory.mktemp("models") / "pieces")
    return load_tokenizer(Path(folder), json.loads((folder / "config.json").read_text()))


@pytest.mark.parametrize("seed", range(5))
def test_a_text_that_is_read_again_is_the_same(tokenizer: Tokenizer, seed: int) -> None:
    source = Random(seed)
    words = [token for token in range(3, tokenizer.vocab_size) if "\ufffd" not in tokenizer.decode_unclean([token])]
    ids = [source.choice(words) for _ in range(3 * REREAD_TOKENS)]
    texts, prompt = Derenderer(tokenizer, frozenset()), [words[0], words[1]]
    window, text = texts.window(prompt), ""
    for end in range(len(ids)):
        again, resumed = texts.resume(prompt, ids[:end])
        assert again == text
        new = texts.push(window, ids[end : end + 1])
        assert texts.push(resumed, ids[end : end + 1]) == new
        text += new


def test_parts_of_characters_are_not_held_without_end(tokenizer: Tokenizer) -> None:
    part = next(token for token in range(tokenizer.vocab_size) if tokenizer.decode_unclean([token]) == "\ufffd")
    texts = Derenderer(tokenizer, frozenset())
    window, start = texts.window(()), process_time()
    text = texts.push(window, [part] * 20_000)
    assert len(text) > 19_000 and window.held <= MAX_PENDING_TOKENS
    assert process_time() - start < 10


def test_an_answer_ends_as_its_rules_say(tokenizer: Tokenizer) -> None:
    for ids, finish, reason, wanted in (
        ([5, 0], "stop", None, ([5], None)),
        ([5, 2], "stop", None, ([5], 2)),
        ([5, 2], "length", None, ([5, 2], None)),
        ([5, 7], "stop", 7, ([5], 7)),
        ([5, 2], "stop", 7, ([5, 2], 7)),
        ([5, 2], "stop", "x", ([5, 2], "x")),
        ([], "stop", None, ([], None)),
    ):
        assert RULES.without_end(ids, finish, reason) == wanted


def test_a_state_of_any_offsets_is_a_window(tokenizer: Tokenizer) -> None:
    for prefix, read in ((0, 0), (5, 0), (10**12, 10**12), (0, 10**12)):
        window = TextWindow(tokenizer, ["a", "b"], prefix, read)
        window.push(["c"])
        assert 0 <= window.prefix <= window.read <= len(window.tokens)


def test_the_last_part_of_a_character_has_its_text(tokenizer: Tokenizer) -> None:
    names = TokenNames(tokenizer)
    ids = list(tokenizer.encode_windows(["é€🙂"], BARE)[0][0].ids)
    texts = [names.text(token, ids[:index]) for index, token in enumerate(ids)]
    assert "".join(text or "" for text in texts).strip() == "é€🙂"
    assert names.text(10**6, ()) is None and names.text(2**70, ids) is None
