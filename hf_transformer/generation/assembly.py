"""From a generator's steps to the pieces of text that a client gets: one continuation of one prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hf_transformer.generation.detokenizer import Detokenizer, Vocabulary
from hf_transformer.generation.stops import StopSearch
from hf_transformer.generation.types import FinishReason, Piece, Prompt, Sampling, Step, TokenScore, TokenText


class Assembler:
    """Puts one continuation together; it is used up with the text's end.

    Args:
        place: the number of the prompt and of the choice.
        before: what the text begins with (echo).
        continues: whether the new text goes on from the prompt's last token, which decides on a space between them.

    Attributes: ``count``, new tokens so far, those that are held back included; ``written``, the whole text so far
    where the model gives text and no ids.
    """

    _detokenizer: Detokenizer | None = None
    _uncounted = _known = _given = _offset = 0

    def __init__(
        self,
        vocabulary: Vocabulary,
        prompt: Prompt,
        sampling: Sampling,
        place: tuple[int, int],
        before: str = "",
        continues: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._prompt = prompt.ids if continues else ()
        self._stops = StopSearch(sampling.stop)
        self._min_tokens = sampling.min_tokens
        # Nothing to look for in the text, and nothing to show beside or before it: takes a third of the time.
        self._plain = not sampling.stop and sampling.logprobs is None and not before
        self._place = place
        self._before = before
        self._waiting: deque[tuple[int, TokenScore]] = deque()
        self.count = 0
        self.written: list[str] = []

    def prepare(self) -> Detokenizer:
        """What makes text of ids; who expects some has it made before the first ones come."""
        if self._detokenizer is None:
            self._detokenizer = self._vocabulary.continue_text(self._prompt)
        return self._detokenizer

    @property
    def text_only(self) -> bool:
        """Whether the tokens are still to be counted, because the model gives text alone."""
        return not self.count and bool(self.written)

    def add(self, step: Step) -> Piece | None:
        """What a step adds to the text; None while all of it is held back. The last piece has ``finish``."""
        if not self._plain:
            return self._add(step)
        text, ids, finish = step.text, step.ids, step.finish
        if ids:
            count = len(ids)
            self.count += count
            self._uncounted += count
            if not text:
                push = (self._detokenizer or self.prepare()).push
                text = push(ids[0]) if count == 1 else "".join([push(number) for number in ids])
        if step.text:
            self.written.append(text)
        if finish is not None:
            if not self.written:
                text += self.prepare().flush()
        elif not text:
            return None
        count, self._uncounted = self._uncounted, 0
        prompt, choice = self._place
        return Piece(prompt, choice, text, (), count, finish)

    def _add(self, step: Step) -> Piece | None:
        """``add`` for texts that are looked through or told of in tokens, or begin with an echo."""
        free, text = self._text(step)
        finish = step.finish
        text, stopped = self._stops.push(text)
        if stopped:
            finish = "stop"
        elif finish is not None:
            text += self._stops.flush()
        text = free + text
        self._given += len(text)
        tokens = self._tokens(all_of_them=finish is not None and not stopped)
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
        """The step's text, of its ids where the model does not write it itself: the part that comes before the text may
        end (min_tokens), and the rest."""
        push, ids = self.prepare().push, step.ids
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
        if step.finish is not None:
            parts.append(self.prepare().flush())
        if earlier <= 0 or not ids:
            return "", "".join(parts)
        return "".join(parts[:earlier]), "".join(parts[earlier:])

    def _begin(self, number: int, new: int) -> int:
        """Where a token begins that has just made ``new`` characters certain: as many before the end as it has itself,
        what is held back included. Part of a character has fewer, or none yet: it stands where nothing is complete."""
        before, self._known = self._known, self._known + new
        end = self._known + self.prepare().held
        self._offset = max(self._offset, before, end - len(self._vocabulary.show(number)[0]))
        return self._offset

    def _shown(self, score: TokenScore, offset: int) -> TokenText:
        show = self._vocabulary.show
        top = tuple(TokenText(*show(number), logprob) for number, logprob in score.top)
        return TokenText(*show(score.id), score.logprob, top, offset)

    def _tokens(self, all_of_them: bool) -> Sequence[TokenText]:
        """The tokens whose text has begun to be given; of a text that was stopped, no others are shown."""
        waiting = self._waiting
        if not waiting:
            return ()
        tokens = []
        while waiting and (all_of_them or waiting[0][0] < self._given):
            offset, score = waiting.popleft()
            # Spaces that the end has cleaned up were counted.
            tokens.append(self._shown(score, min(offset, self._given)))
        return tokens
