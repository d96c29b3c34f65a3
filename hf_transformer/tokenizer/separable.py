"""Whether a tokenizer treats what stands between spaces independently, told by its parts.

Where it does, ``encode(text)`` without special tokens is what ``encode(chunk)`` gives for each chunk of
``text.split(" ")``, one behind the other, so that the ids of words can be kept (word_memo.py). The parts work one after
the other; each must let U+0020 part a text. Source: tokenizers 0.23, added_vocabulary.rs, normalizers/,
pre_tokenizers/, models/ and processors/.

- **Added tokens** are found by leftmost-longest matching, twice: in the text as it is, and in what the normalizer
  makes of the pieces between. No match goes across a space where no content has whitespace, before and after
  normalizing. ``single_word`` looks at the neighbouring characters, to which a space is what an end is. ``lstrip`` and
  ``rstrip`` take whitespace only, which has no ids where words are split at whitespace.
- **The normalizer** must give ``N(a + " " + b) == N(a) + " " + N(b)``. Those that map or drop one character at a time
  do, and so do Unicode's normal forms: a space begins a combining sequence, and no composition has one.
- **The pre-tokenizer** must split at every space. Those that drop whitespace look at single characters, or at runs
  without it. GPT-2's pattern has a space at the beginning of a word alone, looks ahead after whitespace alone and
  never behind. So words that are parted by single spaces, each taken with the space before it, are split alike alone.
  Two spaces, or other whitespace, are another matter (``Separable.spaced``).
- **The model** sees one pre-token at a time, and must not draw lots (BPE's dropout; Unigram may sample).
- **The post-processor** must put constant ids around, and only type ids of 0.

All else is not separable: Strip, Replace, Prepend, Precompiled and Metaspace act at the ends of a text or across its
spaces, other patterns may do so, and what is written in Python is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson
from tokenizers import AddedToken, Tokenizer, models, normalizers

from hf_transformer.types import Json

AT_WHITESPACE = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
"""Pre-tokenizers that split at all whitespace and drop it."""
PARTED = {"BertNormalizer", "Lowercase", "StripAccents", "NFC", "NFD", "NFKC", "NFKD"}
"""Normalizers that a space parts."""
KEEPING = {"Lowercase", "NFC", "NFD"}
"""Those that also leave a word without whitespace as such: they never drop a character, nor make a space."""


@dataclass(frozen=True, slots=True)
class Separable:
    """How a tokenizer can be taken apart.

    ``splitter`` is the pre-tokenizer's type. ``spaced``: a chunk is encoded with the space before it, if it is not the
    first one, and only chunks without any whitespace, none of them empty, count; ``prefixed``: the first one gets a
    space too, as does what follows an added token. ``before`` and ``after`` are the special tokens' ids around a single
    text. ``added`` is what added tokens are looked for as.
    """

    splitter: str
    spaced: bool
    prefixed: bool
    before: tuple[int, ...]
    after: tuple[int, ...]
    added: tuple[str, ...]


def separable(backend: Tokenizer) -> Separable | None:
    """How a tokenizer can be taken apart at spaces, None if that is not certain."""
    parts = _parts(backend)
    if parts is None or not _sees_words_alone(backend.model):
        return None
    splitter = parts["pre_tokenizer"] or {"type": None}
    spaced = splitter["type"] == "ByteLevel" and splitter["use_regex"]
    if not spaced and splitter["type"] not in AT_WHITESPACE:
        return None
    if not _steps(parts["normalizer"]) <= (KEEPING if spaced else PARTED):
        return None
    tokens = backend.get_added_tokens_decoder().values()
    added = tuple(text for token in tokens for text in _texts(token, backend.normalizer))
    # Where words keep the space before them, lstrip takes it out of the token's own chunk, but rstrip would take that
    # of the next one.
    greedy = spaced and any(token.rstrip for token in tokens)
    around = _around(parts["post_processor"])
    if greedy or around is None or any(text.split() != [text] for text in added):
        return None
    return Separable(splitter["type"], spaced, spaced and splitter["add_prefix_space"], *around, added)


def _parts(backend: Tokenizer) -> Json:
    """The stages as tokenizer.json has them, without the vocabulary; None if one is written in Python."""
    bare = Tokenizer(models.BPE())
    try:
        bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
        bare.post_processor = backend.post_processor
        return orjson.loads(bare.to_str())
    except Exception as exc:  # bare Exception is what the Rust library raises for a part that it can't write
        if type(exc) is not Exception:
            raise
        return None


def _sees_words_alone(model: models.Model) -> bool:
    if isinstance(model, models.BPE):
        return not model.dropout
    return isinstance(model, models.WordPiece | models.WordLevel)


def _steps(normalizer: Json) -> set[str]:
    """The types of a normalizer's steps."""
    if normalizer is None:
        return set()
    if normalizer["type"] == "Sequence":
        return set().union(*map(_steps, normalizer["normalizers"]))
    return {normalizer["type"]}


def _texts(token: AddedToken, normalizer: normalizers.Normalizer | None) -> list[str]:
    """What an added token is looked for as."""
    if not token.normalized or normalizer is None:
        return [token.content]
    return [token.content, normalizer.normalize_str(token.content)]


def _around(processor: Json) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The ids that a post-processor puts before and after a single text."""
    kind = processor and processor["type"]
    if kind in (None, "ByteLevel"):
        return (), ()
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (processor["cls"][1],), (processor["sep"][1],)
    if kind == "TemplateProcessing":
        return _template(processor["single"], processor["special_tokens"])
    return None


def _template(pieces: Sequence[Json], tokens: Json) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    sides: list[list[int]] = [[]]
    for piece in pieces:
        [(kind, value)] = piece.items()
        if value["type_id"] != 0:
            return None
        if kind == "SpecialToken":
            sides[-1] += tokens[value["id"]]["ids"]
        elif value["id"] == "A":
            sides.append([])
        else:
            return None
    if len(sides) != 2:
        return None
    before, after = sides
    return tuple(before), tuple(after)
