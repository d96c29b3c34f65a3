"""SequenceAssembler: steps become pieces, and stop strings end a text, however it is split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stops import StopSearch, StreamReplacer
from hf_transformer.generation.stream import SequenceAssembler
from hf_transformer.generation.types import Piece, Prompt, Sampling, Step, TokenScore
from hf_transformer.tokenizer.tokenizer import Tokenizer
from tests.generation.scripted import chunks, ids_of, steps, text_of
from tests.generation.tokenizers import ALL, load
from tests.tiny_tokenizers.folders import of_bytes


def assemble(tokenizer: Tokenizer, steps: Iterable[Step], **sampling: Any) -> list[Piece]:
    assembler = SequenceAssembler(
        Vocabulary(tokenizer), Prompt("a", ids_of(tokenizer, "a")), Sampling(**sampling), (2, 1)
    )
    pieces = []
    for step in steps:
        piece = assembler.add(step)
        if piece is not None:
            pieces.append(piece)
            if piece.finish:
                break
    return pieces


def scored(ids: Iterable[int]) -> list[Step]:
    return [Step(ids=(number,), scores=(TokenScore(number, -0.5, ((number, -0.5),)),)) for number in ids]


def test_pieces_have_prompt_and_choice_numbers_and_count_tokens(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日.")
    pieces = assemble(gpt2, steps(ids, "length"))
    assert {(piece.prompt, piece.choice) for piece in pieces} == {(2, 1)}
    assert text_of(pieces) == " é日."
    # Tokens of half a character are counted with the piece that has it whole.
    assert sum(piece.count for piece in pieces) == len(ids) > len(pieces)
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


def test_a_stop_string_ends_the_text_within_a_step(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " one. two. three")
    [piece] = assemble(gpt2, [Step(ids=ids, finish="length")], stop=(". t",))
    assert (piece.text, piece.finish, piece.count) == (" one", "stop", len(ids))


def test_held_back_text_comes_with_the_last_piece(gpt2: Tokenizer) -> None:
    pieces = assemble(gpt2, steps(ids_of(gpt2, " one. two")), stop=(" two three",))
    assert text_of(pieces) == " one. two" and pieces[-1].text == " two"
    half = gpt2.token_to_id("Ã")
    assert half is not None
    [piece] = assemble(gpt2, steps([half]))
    assert (piece.text, piece.count) == ("\ufffd", 1)
    [piece] = assemble(gpt2, [Step(finish="stop")])
    assert (piece.text, piece.finish, piece.count) == ("", "stop", 0)


def test_stop_strings_count_only_after_min_tokens(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, "\n\n\n\na\nb")
    assert gpt2.decode(ids[:2]) == "\n\n"
    for given in (steps(ids), [Step(ids=ids, finish="length")]):
        assert text_of(assemble(gpt2, given, stop=("\n",), min_tokens=4)) == "\n\n\n\na"
        assert text_of(assemble(gpt2, given, stop=("\n",), min_tokens=2)) == "\n\n"


def test_tokens_come_with_their_text(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日 x")
    pieces = assemble(gpt2, [*scored(ids), Step(finish="stop")], logprobs=1)
    shown = [token for piece in pieces for token in piece.tokens]
    assert [token.logprob for token in shown] == [-0.5] * len(ids)
    assert [token.top[0].bytes for token in shown] == [token.bytes for token in shown]
    for piece in pieces:
        assert b"".join(token.bytes for token in piece.tokens).decode() == piece.text


def offsets(tokenizer: Tokenizer, ids: Iterable[int], **sampling: Any) -> tuple[str, list[int]]:
    """A text, and the offsets of its tokens. Asserts that both are equal for one token per step and for one step."""
    single = scored(ids)
    whole = Step(ids=[step.ids[0] for step in single], scores=[step.scores[0] for step in single], finish="length")
    results = []
    for generated in ([*single, Step(finish="length")], [whole]):
        pieces = assemble(tokenizer, generated, logprobs=1, **sampling)
        results.append((text_of(pieces), [token.offset for piece in pieces for token in piece.tokens]))
    assert results[0] == results[1]
    return results[0]


CLEANS = {
    "tokenizer_class": "GPT2Tokenizer",
    "clean_up_tokenization_spaces": True,
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True,
}
MADE = {**ALL, "cleaned": of_bytes(CLEANS, "gpt2")}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_offset_of_a_token_is_the_offset_of_its_character(name: str, tmp_path: Path) -> None:
    tokenizer = load(MADE[name](tmp_path / name))
    text_and_bytes, ids = (
        Vocabulary(tokenizer).text_and_bytes,
        ids_of(tokenizer, "naïve 日本 🇴. x")[1 if name == "llama" else 0 :],
    )
    text, starts = offsets(tokenizer, ids)
    raw = [text_and_bytes(token)[1] for token in ids]
    before = [b"".join(raw[:index]).decode(errors="ignore") for index in range(len(raw))]
    assert b"".join(raw).decode() == text and len(set(starts)) < len(starts)
    assert starts == [len(text) for text in before]


@pytest.mark.parametrize(
    ("name", "tokens", "text", "expected"),
    [
        ("gpt2", ["ð", "."], "\ufffd.", [0, 1]),
        ("gpt2", ["ð", "ð", "Ł", "ĩ", "´", "."], "\ufffd🇴.", [0, 1, 1, 1, 1, 2]),
        ("gpt2", ["a", "Ã"], "a\ufffd", [0, 1]),
        ("llama", ["<0xE2>", "<0xE2>", "<0x82>", "<0xAC>", "."], "\ufffd€.", [0, 1, 1, 1, 2]),
        ("llama", ["<0xE2>", "<0x82>", "▁the"], "\ufffd\ufffd the", [0, 0, 2]),
        ("cleaned", ["a", "Ġ", "n", "e", "w"], "a new", [0, 1, 2, 3, 4]),
        ("cleaned", ["a", "Ġ", "n", "Ã", "©", "."], "a né.", [0, 1, 2, 3, 3, 4]),
        ("cleaned", ["a", "Ġ", "'", "Ġ"], "a'", [0, 1, 2, 2]),
    ],
)
def test_offsets_count_replacement_characters_and_not_removed_spaces(
    name: str, tokens: list[str], text: str, expected: list[int], tmp_path: Path
) -> None:
    tokenizer = load(MADE[name](tmp_path / name))
    ids = [number for token in tokens if (number := tokenizer.token_to_id(token)) is not None]
    assert offsets(tokenizer, ids) == (text, expected)


def test_a_stopped_text_has_no_tokens_after_its_end(gpt2: Tokenizer) -> None:
    assert offsets(gpt2, ids_of(gpt2, "é🇴. x"), stop=(". ",)) == ("é🇴", [0, 1, 1, 1, 1])


# Stop strings

letters = st.text("ab.", max_size=30)
stops = st.lists(st.text("ab.", min_size=1, max_size=5), max_size=4)


def naive(text: str, wanted: list[str]) -> tuple[str, bool]:
    """Reference: after each character, checks the text so far for the longest stop string at its end."""
    for end in range(1, len(text) + 1):
        for stop in sorted(wanted, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], True
    return text, False


@hypothesis.given(text=letters, wanted=stops, cuts=st.lists(st.integers(0, 100), max_size=20))
@hypothesis.example(text="a.b", wanted=["b", "a"], cuts=[])
@hypothesis.example(text="..ab.", wanted=["b", "ab"], cuts=[3])
def test_a_streamed_text_ends_at_the_same_stop_string_as_the_whole_text(
    text: str, wanted: list[str], cuts: list[int]
) -> None:
    search, released, stopped = StopSearch(wanted), "", False
    for piece in chunks(text, cuts):
        more, stopped = search.push(piece)
        released += more
        if stopped:
            break
    if not stopped:
        released += search.held
    assert (released, stopped) == naive(text, wanted)


@hypothesis.given(text=letters, wanted=stops)
def test_only_prefixes_of_stop_strings_are_held_back(text: str, wanted: list[str]) -> None:
    search, released = StopSearch(wanted), ""
    for end, character in enumerate(text, 1):
        more, stopped = search.push(character)
        released += more
        if stopped:
            return
        held = text[len(released) : end]
        assert not held or any(stop.startswith(held) and stop != held for stop in wanted)


@hypothesis.given(st.text("ab ", max_size=40), st.text("ab ", min_size=1, max_size=4), st.lists(st.integers(0, 100)))
def test_replacing_in_a_stream_equals_str_replace(text: str, old: str, cuts: list[int]) -> None:
    replacing = StreamReplacer(old, "X")
    assert "".join([*map(replacing.push, chunks(text, cuts)), replacing.held]) == text.replace(old, "X")


def test_delimiters_that_are_special_tokens_are_a_part_of_the_text() -> None:
    tokenizer = load(Path("deploy/model_repository/gpt2"))
    special, word = tokenizer.skipped_tokens()["<|im_end|>"], ids_of(tokenizer, "Paris")
    given = [Step((*word, special, *word), finish="stop")]
    assert text_of(assemble(tokenizer, given)) == "ParisParis"
    assert text_of(assemble(tokenizer, given, shown_tokens=frozenset([special]))) == "Paris<|im_end|>Paris"
