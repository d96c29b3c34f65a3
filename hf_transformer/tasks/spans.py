"""Start and end logits to spans of tokens, and those to characters of the context.

After pipelines/question_answering.py of transformers 4.57, except that only spans of the allowed length are computed:
[longest, tokens] products in place of [tokens, tokens].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_transformer.tasks.numerics import require_numbers, softmax, top_k
from hf_transformer.types import Array, Encoding


def probabilities(start_logits: Array, end_logits: Array, allowed: Sequence[slice]) -> Array:
    """How likely each token is the first one of the answer, and how likely the last one.

    Args:
        start_logits: floats [tokens].
        end_logits: floats [tokens].
        allowed: the tokens that may be; the others don't count in the softmax.

    Returns:
        float32 [2, tokens], 0 where a token is not allowed. Each row adds up to 1, or to 0 if no token is allowed.

    Raises:
        PredictorError: logits of allowed tokens are not finite.
    """
    logits = np.full((2, len(start_logits)), -np.inf, np.float32)
    for tokens in allowed:
        logits[0, tokens] = start_logits[tokens]
        logits[1, tokens] = end_logits[tokens]
    if not any(tokens.stop > tokens.start for tokens in allowed):
        return np.zeros_like(logits)
    require_numbers(logits)
    return softmax(logits)


def best_spans(starts: Array, ends: Array, count: int, longest: int) -> tuple[Array, Array, Array]:
    """The spans with the highest starts[first] * ends[last], where first <= last < first + longest.

    Args:
        starts: float32 probabilities [tokens].
        ends: float32 probabilities [tokens].
        count: at most so many spans.
        longest: tokens of the longest span.

    Returns:
        first tokens, last tokens and scores, the best span first; no span of score 0.
    """
    tokens = len(starts)
    width = min(longest, tokens)
    padded = np.zeros(tokens + width - 1, np.float32)
    padded[:tokens] = ends
    # Column f of this view is ends[f], ends[f + 1], ...; building it costs nothing.
    last = np.ndarray((width, tokens), np.float32, padded, strides=(padded.itemsize, padded.itemsize))
    scores = starts * last
    # The best ``count`` spans begin at no more than so many tokens, which are those with the best span of their own.
    begins = np.sort(top_k(scores.max(axis=0), count))
    among = scores[:, begins].T.ravel()
    best = top_k(among, count)
    best = best[among[best] > 0]
    row, beyond = np.divmod(best, width)
    first = begins[row]
    return first, first + beyond, among[best]


class Characters:
    """Where the tokens of one window lie in the context.

    Args:
        encoding: the window, with details.
        context: its tokens of the context.
        whole_words: whether a span that begins or ends inside a word takes in all of it, as far as it is in the window.
    """

    def __init__(self, encoding: Encoding, context: slice, *, whole_words: bool) -> None:
        self._offsets = encoding.offsets or []
        self._word_ids = (encoding.word_ids or []) if whole_words else []
        self._context = context
        self._words: dict[int, tuple[int, int] | None] = {}

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """The characters from one token to another; None if these are none of the context."""
        found = self._word(first), self._word(last)
        if found[0] is not None and found[1] is not None:
            start, end = found[0][0], found[1][1]
        elif first >= self._context.start and last < self._context.stop:
            # Tokenizers that know of no words, and tokens that belong to none.
            start, end = self._offsets[first][0], self._offsets[last][1]
        else:
            return None
        return (start, end) if start <= end else None

    def _word(self, token: int) -> tuple[int, int] | None:
        """The characters of the context's word with the number of the token's word.

        The token of a [CLS] that the client wrote into the question has the number of a word in the question. The
        pipeline takes the context's word of that number, and so does this.
        """
        number = self._word_ids[token] if self._word_ids else None
        if number is None:
            return None
        if number not in self._words:
            self._words[number] = self._find(number, token)
        return self._words[number]

    def _find(self, number: int, token: int) -> tuple[int, int] | None:
        words, lowest, end = self._word_ids, self._context.start, self._context.stop
        if not lowest <= token < end:
            try:
                token = words.index(number, lowest, end)
            except ValueError:
                return None
        first = last = token
        while first > lowest and words[first - 1] == number:
            first -= 1
        while last + 1 < end and words[last + 1] == number:
            last += 1
        return self._offsets[first][0], self._offsets[last][1]
