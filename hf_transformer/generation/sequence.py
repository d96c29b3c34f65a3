"""One sequence (one continuation of one prompt): from a generator's steps to the pieces of text that a client gets."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.stops import StopSearch
from hf_transformer.generation.types import FinishReason, Piece, Prompt, Sampling, Step, TokenScore, TokenText


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What one sequence is made from; ``assembler`` puts its text together."""

    prompt: Prompt
    sampling: Sampling
    assembler: Assembler


class Assembler:
    """Puts the text of one sequence together: detokenizes, ends it before stop strings, and shows its tokens.

    Args:
        place: the number of the prompt and of the choice.
        before: the beginning of the text (echo).
        continues: whether the new text goes on from the prompt's last token, which decides on a space between them.

    Attributes: ``count``, new tokens so far, those that are held back included; ``written``, the whole text so far
    where the model gives text and no ids.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Prompt,
        sampling: Sampling,
        place: tuple[int, int],
        before: str = "",
        continues: bool = True,
    ) -> None:
        self._show = vocabulary.show
        self._detokenizer = vocabulary.continue_text(prompt.ids if continues else ())
        self._stops = StopSearch(sampling.stop)
        self._min_tokens = sampling.min_tokens
        self._place = place
        self._before = before
        self._waiting: deque[tuple[int, TokenScore]] = deque()
        """Tokens that are not shown yet, each with its offset."""
        self._uncounted = self._known = self._given = self._offset = 0
        self.count = 0
        self.written: list[str] = []

    @property
    def text_only(self) -> bool:
        """Whether the tokens are still to be counted, because the model gives text alone."""
        return not self.count and bool(self.written)

    def add(self, step: Step) -> Piece | None:
        """The new piece of text; None while all of it is held back. The last piece has ``finish``."""
        unsearched, text = self._text(step)
        finish = step.finish
        text, stopped = self._stops.push(text)
        if stopped:
            finish = "stop"
        elif finish is not None:
            text += self._stops.flush()
        text = unsearched + text
        self._given += len(text)
        tokens = self._tokens(all_of_them=finish is not None and not stopped) if self._waiting else ()
        if not text and not tokens and finish is None and not self._before:
            return None
        return self._piece(text, tokens, finish)

    def nothing(self) -> Piece:
        """The only piece of a text that may not have any new token."""
        return self._piece("", (), "length")

    def _piece(self, text: str, tokens: Sequence[TokenText], finish: FinishReason | None) -> Piece:
        text, self._before = self._before + text, ""
        count, self._uncounted = self._uncounted, 0
        return Piece(*self._place, text, tokens, count, finish)

    def _text(self, step: Step) -> tuple[str, str]:
        """The step's text, in two parts: before the text may end (min_tokens), and the rest."""
        push, ids = self._detokenizer.push, step.ids
        earlier = self._min_tokens - self.count
        self.count += len(ids)
        self._uncounted += len(ids)
        if step.text:
            self.written.append(step.text)
            parts = [step.text]
        elif step.scores:
            parts = []
            for number, score in zip(ids, step.scores, strict=True):
                parts.append(push(number))
                self._waiting.append((self._begin(number, len(parts[-1])), score))
        else:
            parts = [push(number) for number in ids]
        if step.finish is not None and not self.written:
            parts.append(self._detokenizer.flush())
        if earlier <= 0 or not ids:
            return "", "".join(parts)
        return "".join(parts[:earlier]), "".join(parts[earlier:])

    def _begin(self, number: int, new: int) -> int:
        """The offset of a token that has just made ``new`` characters certain: as many before the end as it has itself,
        those that are held back included. Part of a character has fewer, or none yet, and stands where the last
        complete one ends."""
        before, self._known = self._known, self._known + new
        end = self._known + self._detokenizer.held
        self._offset = max(self._offset, before, end - len(self._show(number)[0]))
        return self._offset

    def _tokens(self, all_of_them: bool) -> Sequence[TokenText]:
        """The tokens whose text has begun to be given; of a text that was stopped, no others are shown."""
        waiting, show = self._waiting, self._show
        tokens = []
        while waiting and (all_of_them or waiting[0][0] < self._given):
            offset, score = waiting.popleft()
            top = tuple(TokenText(*show(number), logprob) for number, logprob in score.top)
            # Spaces that the end has cleaned up were counted.
            tokens.append(TokenText(*show(score.id), score.logprob, top, min(offset, self._given)))
        return tokens
