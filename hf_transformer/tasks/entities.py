"""Extraction of entities from logits, as in transformers' pipelines/token_classification.py (5.23).

numpy processes all tokens at once. Python loops over entities, and over tokens only for the strategies "first",
"average" and "max". Scores are [labels, tokens], since numpy is several times as fast along the longer axis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hf_transformer.tasks.numerics import require_finite
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TaskTokenizer, Words

Strategy = Literal["none", "simple", "first", "average", "max"]
STRATEGIES: tuple[Strategy, ...] = ("none", "simple", "first", "average", "max")


OUTSIDE = "O"
"""The label of tokens outside of entities."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """An instance's text. For an instance of ``words``, ``starts`` contains the offset of each word."""

    text: str
    words: Words | None = None
    starts: Sequence[int] = ()


def entities_of(labels: Sequence[str]) -> tuple[str, ...]:
    """Returns the entities of tokens' labels: PER of B-PER and I-PER."""
    return tuple(dict.fromkeys(label.split("-", 1)[-1] for label in labels if label != OUTSIDE))


class Labels:
    """The labels of tokens: ``names``, such as "B-PER", and ``groups``, the names of entities, such as "PER".

    ``begins`` [labels] is true for B- labels. Labels with equal numbers in ``tags`` [labels] may share an entity. The
    label O is outside of entities, while B-O and I-O are those of an entity O. transformers' pipeline confuses them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.groups = tuple(name.split("-", 1)[-1] for name in names)
        # Unlike a group, a tag keeps prefixes other than B- and I-.
        tags = [None if name == OUTSIDE else name[2:] if name.startswith(("B-", "I-")) else name for name in names]
        self.tags = np.array([tags.index(tag) for tag in tags])
        self.begins = np.array([name.startswith("B-") for name in names])

    def ignored(self, ignore_labels: Collection[str], strategy: Strategy) -> Array:
        """The mask [labels] to omit. ``ignore_labels`` are names for the strategy "none", otherwise groups, or names
        of the labels of an entity O, since O is the label outside of entities."""
        keys = zip(self.names, self.groups, strict=True)
        by_name = strategy == "none"
        return np.array([(name if by_name or group == OUTSIDE else group) in ignore_labels for name, group in keys])


@dataclass(frozen=True, slots=True)
class _Units:
    """Tokens or words to group into entities.

    ``first`` and ``last`` [units] are token indices in the encoding. ``words`` are texts of words; None for tokens.
    """

    labels: Array
    scores: Array
    first: Array
    last: Array
    words: Sequence[str] | None = None


class _Scores:
    """The best label of each token and its probability, both [tokens], from logits [tokens, labels].

    Raises PredictorError if the logits are not finite.
    """

    def __init__(self, logits: Array) -> None:
        columns = np.ascontiguousarray(logits.T, np.float32)
        maxima = columns.max(axis=0)
        require_finite(maxima)
        self.best = columns.argmax(axis=0)
        self.exponentials = np.exp(columns - maxima)
        self.sums = self.exponentials.sum(axis=0)
        # The best label's softmax is exp(0) / sum.
        self.top = 1 / self.sums


class _Text:
    """A sentence and its encoding."""

    def __init__(self, sentence: Sentence, encoding: Encoding) -> None:
        self.ids = encoding.ids
        self.characters = sentence.text
        self._offsets = encoding.offsets or []
        self._word_ids = (encoding.word_ids or []) if sentence.words is not None else None
        self._starts = sentence.starts

    def span(self, index: int) -> tuple[int, int]:
        """A token's start and end in the sentence, in characters."""
        start, end = self._offsets[index]
        if self._word_ids is not None:
            word = self._word_ids[index]
            if word is not None:
                offset = self._starts[word]
                return offset + start, offset + end
        return start, end

    def pieces(self, indices: Sequence[int], vocabulary: TaskTokenizer) -> list[str]:
        """The names of tokens in the vocabulary; an unknown token's characters in the text."""
        ids, unknown, to_token = self.ids, vocabulary.unk_id, vocabulary.id_to_token
        pieces = []
        for index in indices:
            number = ids[index]
            if number == unknown:
                start, end = self.span(index)
                pieces.append(self.characters[start:end])
            else:
                pieces.append(to_token(number) or "")
        return pieces


class EntityFinder:
    """Finds the entities in a text or a window."""

    def __init__(self, vocabulary: TaskTokenizer, labels: Labels) -> None:
        self._vocabulary = vocabulary
        self._labels = labels

    def find(
        self, sentence: Sentence, encoding: Encoding, logits: Array, strategy: Strategy, ignored: Array
    ) -> list[Json]:
        """Returns the entities in text order.

        Args:
            encoding: an encoding with all details.
            logits: floats [tokens, labels].
            ignored: the mask [labels] of labels to omit.

        Raises:
            PredictorError: the logits are not finite.
        """
        scores = _Scores(logits)
        text = _Text(sentence, encoding)
        special = np.frombuffer(bytes(encoding.special_mask or ()), np.bool_)
        if strategy == "none":
            return self._tokens(text, scores, (~(ignored[scores.best] | special)).nonzero()[0])
        kept = (~special).nonzero()[0]
        if not len(kept):
            return []
        if strategy == "simple":
            units = _Units(scores.best[kept], scores.top[kept], kept, kept)
        else:
            units = self._words(text, scores, kept, strategy)
        return self._groups(text, units, ignored)

    def _tokens(self, text: _Text, scores: _Scores, chosen: Array) -> list[Json]:
        names = self._labels.names
        indices = chosen.tolist()
        pieces = text.pieces(indices, self._vocabulary)
        best, top = scores.best[chosen].tolist(), scores.top[chosen].tolist()
        entities = []
        for index, label, score, piece in zip(indices, best, top, pieces, strict=True):
            start, end = text.span(index)
            entities.append(
                {"entity": names[label], "score": score, "index": index, "word": piece, "start": start, "end": end}
            )
        return entities

    def _words(self, text: _Text, scores: _Scores, kept: Array, strategy: Strategy) -> _Units:
        """Joins the tokens at the indices ``kept`` to words."""
        indices = kept.tolist()
        pieces = text.pieces(indices, self._vocabulary)
        starts = self._word_starts(text, indices, pieces)
        ends = _ends(starts, len(kept))
        if strategy == "average":
            shares = (scores.exponentials / scores.sums)[:, kept]
            means = np.add.reduceat(shares, starts, axis=1) / (ends - starts)
            labels, top = means.argmax(axis=0), means.max(axis=0)
        else:
            deciding = kept[starts]
            if strategy == "max":
                token_scores = scores.top[kept]
                highest = np.repeat(np.maximum.reduceat(token_scores, starts), ends - starts)
                # In each word, the first token with the highest score.
                deciding = np.minimum.reduceat(np.where(token_scores == highest, kept, len(scores.best)), starts)
            labels, top = scores.best[deciding], scores.top[deciding]
        join = self._vocabulary.join_tokens
        words = [join(pieces[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return _Units(labels, top, kept[starts], kept[ends - 1], words)

    def _word_starts(self, text: _Text, indices: list[int], pieces: Sequence[str]) -> Array:
        """The positions of tokens that begin a word, by the pipeline's heuristic.

        In a vocabulary with subword prefixes (##), a token continues a word if its name and text differ in length. In
        other vocabularies, a token without a space before or at its start does. An unknown token begins a word.
        """
        unknown, marked = self._vocabulary.unk_id, self._vocabulary.marks_subwords
        starts = [0]
        for position in range(1, len(indices)):
            index = indices[position]
            start, end = text.span(index)
            if marked:
                inside = len(pieces[position]) != end - start
            else:
                inside = start > 0 and " " not in text.characters[start - 1 : start + 1]
            if not inside or text.ids[index] == unknown:
                starts.append(position)
        return np.array(starts)

    def _groups(self, text: _Text, units: _Units, ignored: Array) -> list[Json]:
        """Groups adjacent units with equal tags into entities. A B- label begins a new entity."""
        labels = units.labels
        tags = self._labels.tags[labels]
        begins = self._labels.begins[labels]
        begins[0] = True
        begins[1:] |= tags[1:] != tags[:-1]
        starts = begins.nonzero()[0]
        ends = _ends(starts, len(labels))
        means = np.add.reduceat(units.scores, starts) / (ends - starts)
        kept = (~ignored[labels[starts]]).nonzero()[0]
        firsts, lasts = starts[kept], ends[kept] - 1
        rows = zip(
            labels[firsts].tolist(),
            means[kept].tolist(),
            firsts.tolist(),
            lasts.tolist(),
            units.first[firsts].tolist(),
            units.last[lasts].tolist(),
            strict=True,
        )
        groups, join = self._labels.groups, self._vocabulary.join_tokens
        entities = []
        for label, score, first, last, first_token, last_token in rows:
            if units.words is None:
                indices = units.first[first : last + 1].tolist() if last > first else (first_token,)
                word = join(text.pieces(indices, self._vocabulary))
            else:
                word = join(list(units.words[first : last + 1]))
            start, end = text.span(first_token)[0], text.span(last_token)[1]
            entities.append({"entity_group": groups[label], "score": score, "word": word, "start": start, "end": end})
        return entities


def _ends(starts: Array, length: int) -> Array:
    """The ends of adjacent runs with the given starts and a total length of ``length``."""
    # np.append is slow.
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[-1] = length
    return ends


def merge_entities(entities: Sequence[Json]) -> list[Json]:
    """Removes overlapping entities, as the pipeline's aggregate_overlapping_entities does.

    Keeps the longer entity, or the higher score if both have the same length.
    """
    merged: list[Json] = []
    for entity in sorted(entities, key=lambda entity: entity["start"]):
        if merged and merged[-1]["start"] <= entity["start"] < merged[-1]["end"]:
            last = merged[-1]
            lengths = entity["end"] - entity["start"], last["end"] - last["start"]
            if lengths[0] > lengths[1] or (lengths[0] == lengths[1] and entity["score"] > last["score"]):
                merged[-1] = entity
        else:
            merged.append(entity)
    return merged
