"""Steps become pieces: text, tokens for logprobs, counts and the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hf_transformer.generation.assembly import Assembler
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.types import Piece, Prompt, Sampling, Step, TokenScore
from hf_transformer.tokenizer import Tokenizer


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode([text])[0].ids)


def assemble(tokenizer: Tokenizer, steps: Iterable[Step], *, prompt: str = "a", **sampling: Any) -> list[Piece]:
    made = Prompt(prompt, tuple(ids_of(tokenizer, prompt)))
    assembler = Assembler(Vocabulary(tokenizer), made, Sampling(**sampling), (2, 1))
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


def test_a_piece_says_whose_it_is_and_how_many_tokens_it_has(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日.")
    pieces = assemble(gpt2, [*(Step(ids=(number,)) for number in ids), Step(finish="length")])
    assert {(piece.prompt, piece.choice) for piece in pieces} == {(2, 1)}
    assert "".join(piece.text for piece in pieces) == " é日."
    # Tokens of half a character are counted with the piece that has it whole.
    assert sum(piece.count for piece in pieces) == len(ids) > len(pieces)
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]


def test_a_stop_string_ends_the_text_within_a_step(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " one. two. three")
    [piece] = assemble(gpt2, [Step(ids=ids, finish="length")], stop=(". t",))
    assert (piece.text, piece.finish, piece.count) == (" one", "stop", len(ids))


def test_what_was_held_back_comes_with_the_end(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " one. two")
    pieces = assemble(gpt2, [*(Step(ids=(number,)) for number in ids), Step(finish="stop")], stop=(" two three",))
    assert "".join(piece.text for piece in pieces) == " one. two"
    assert pieces[-1].text == " two"


def test_half_a_character_at_the_end_is_shown_as_such(gpt2: Tokenizer) -> None:
    half = gpt2.token_to_id("Ã")
    assert half is not None
    [piece] = assemble(gpt2, [Step(ids=(half,)), Step(finish="length")])
    assert (piece.text, piece.count) == ("\ufffd", 1)


def test_stop_strings_count_after_the_least_tokens_only(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, "\n\n\n\na\nb")
    assert gpt2.decode(ids[:2]) == "\n\n"
    one_by_one = [*(Step(ids=(number,)) for number in ids), Step(finish="length")]
    for steps in (one_by_one, [Step(ids=ids, finish="length")]):
        assert "".join(piece.text for piece in assemble(gpt2, steps, stop=("\n",), min_tokens=4)) == "\n\n\n\na"
        assert "".join(piece.text for piece in assemble(gpt2, steps, stop=("\n",), min_tokens=2)) == "\n\n"


def test_tokens_are_shown_with_their_text(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " é日 x")
    pieces = assemble(gpt2, [*scored(ids), Step(finish="stop")], logprobs=1)
    shown = [token for piece in pieces for token in piece.tokens]
    assert b"".join(token.bytes for token in shown).decode() == " é日 x"
    assert [token.logprob for token in shown] == [-0.5] * len(ids)
    assert [token.top[0].bytes for token in shown] == [token.bytes for token in shown]
    for piece in pieces:
        assert b"".join(token.bytes for token in piece.tokens).decode() == piece.text


def test_tokens_of_a_stop_string_are_not_shown(gpt2: Tokenizer) -> None:
    ids = ids_of(gpt2, " one. two")
    pieces = assemble(gpt2, scored(ids), logprobs=0, stop=(". t",))
    shown = b"".join(token.bytes for piece in pieces for token in piece.tokens)
    assert shown == b" one"
    assert "".join(piece.text for piece in pieces) == " one"


def test_text_of_the_model_itself_is_passed_on(gpt2: Tokenizer) -> None:
    pieces = assemble(gpt2, [Step(text=" pa"), Step(text="ris!"), Step(finish="stop")], stop=("!",))
    assert [(piece.text, piece.finish) for piece in pieces] == [(" pa", None), ("ris", "stop")]


def test_an_empty_text_is_a_piece_too(gpt2: Tokenizer) -> None:
    [piece] = assemble(gpt2, [Step(finish="stop")])
    assert (piece.text, piece.finish, piece.count) == ("", "stop", 0)
