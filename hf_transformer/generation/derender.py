"""Token ids that another server has generated back to text and log probabilities, as vLLM's derender routes do.

``TextWindow`` is an incremental detokenizer whose state is JSON, so that a client can carry it from one part of an
answer to the next one.

Sources: vllm/renderers/online_derenderer.py and vllm/tokenizers/detokenizer_utils.py of
https://github.com/vllm-project/vllm, version 0.33
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from hf_transformer.generation.detokenizer import MAX_PENDING_TOKENS, REPLACEMENT, Vocabulary
from hf_transformer.tokenizer.tokenizer import Tokenizer

CONTEXT_TOKENS, READ_TOKENS = 5, 7
"""Number of a prompt's last tokens that the first text continues, and that are read for them."""
REREAD_TOKENS = MAX_PENDING_TOKENS + 8
"""Number of tokens after which a window is the same, whatever was before them."""
LOGPROB_CONTEXT = 4
"""Number of tokens before a token that may have the beginning of its character."""


@dataclass(frozen=True, slots=True)
class EndRules:
    """The tokens and strings that end an answer.

    Attributes:
        end_id: the tokenizer's end token; None for none.
        end_ids: the model's end tokens.
        stop_ids, stops: the request's.
        min_tokens: number of tokens in which no string ends the answer.
        ignores_end: whether end tokens do not end it.
        keeps_stop: whether the text includes the string or token that ended it.
    """

    end_id: int | None
    end_ids: Set[int]
    stop_ids: Sequence[int] = ()
    stops: Sequence[str] = ()
    min_tokens: int = 0
    ignores_end: bool = False
    keeps_stop: bool = False

    def without_end(
        self, ids: Sequence[int], finish: str | None, reason: int | str | None
    ) -> tuple[Sequence[int], int | str | None]:
        """Leaves out the token that ended an answer. Returns the ids, and the reason of its end.

        ``reason`` is a string or a token, if the server that generated the ids names one.
        """
        if finish != "stop" or isinstance(reason, str) or not ids:
            return ids, reason
        last = ids[-1]
        if reason is None:
            is_end = not self.ignores_end and last == self.end_id
            if not is_end and (last in self.stop_ids or (not self.ignores_end and last in self.end_ids)):
                is_end, reason = True, last
        else:
            is_end = last == reason
        return (ids[:-1] if is_end and not self.keeps_stop else ids), reason


class TextWindow:
    """Incremental detokenization of tokens, with the last tokens as its state.

    ``prefix`` and ``read`` are indices of ``tokens``: the text from ``prefix`` to ``read`` is context, the rest is held
    until it ends with a whole character.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[str] = (), prefix: int = 0, read: int = 0) -> None:
        self._join = tokenizer.join_tokens
        self.tokens = list(tokens)
        self.prefix = min(prefix, len(self.tokens))
        self.read = max(min(read, len(self.tokens)), self.prefix)

    @property
    def held(self) -> int:
        """Number of tokens whose text is held."""
        return len(self.tokens) - self.read

    def push(self, tokens: Sequence[str]) -> str:
        """Adds tokens. Returns the text that they complete."""
        texts = []
        for token in tokens:
            self.tokens.append(token)
            before = self._join(self.tokens[self.prefix : self.read])
            after = self._join(self.tokens[self.prefix :])
            end = self.prefix
            if (len(after) > len(before) and not after.endswith(REPLACEMENT)) or self.held > MAX_PENDING_TOKENS:
                texts.append(after[len(before) :])
                end, self.read = self.read, len(self.tokens)
            del self.tokens[:end]
            self.prefix, self.read = 0, self.read - end
        return "".join(texts)


class Derenderer:
    """Ids of one model's answers to texts.

    ``hidden`` are special tokens that texts leave out.
    """

    def __init__(self, tokenizer: Tokenizer, hidden: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._size = tokenizer.vocab_size

    def _tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens of ids that are not hidden. An id that the tokenizer does not have is an empty token."""
        name, size = self._tokenizer.id_to_token, self._size
        return [(name(token) or "") if token < size else "" for token in ids if token not in self._hidden]

    def window(self, prompt: Sequence[int]) -> TextWindow:
        """Returns the window of a text that continues a prompt."""
        tokens = self._tokens(prompt[-READ_TOKENS:])
        return TextWindow(self._tokenizer, tokens, max(len(tokens) - CONTEXT_TOKENS, 0), len(tokens))

    def push(self, window: TextWindow, ids: Sequence[int]) -> str:
        """Adds ids to a window. Returns the text that they complete."""
        return window.push(self._tokens(ids))

    def resume(self, prompt: Sequence[int], ids: Sequence[int]) -> tuple[str, TextWindow]:
        """Returns the text of all ``ids`` after a prompt, and the window at their end.

        The text is decoded in one call, so that it can be made again for each further id.
        """
        head, tail = ids[:-REREAD_TOKENS], ids[-REREAD_TOKENS:]
        window = self.window([*prompt[-READ_TOKENS:], *head] if head else prompt)
        if not head:
            return self.push(window, tail), window
        self.push(window, tail)
        tokens, context = self._tokens(ids), self._tokens(prompt[-CONTEXT_TOKENS:])
        join = self._tokenizer.join_tokens
        text = join([*context, *tokens[: len(tokens) - window.held]])
        return text[len(join(context)) :], window

    def text(
        self, prompt: Sequence[int], ids: Sequence[int], rules: EndRules, finish: str | None, reason: int | str | None
    ) -> tuple[str, int | str | None]:
        """Returns the text of a whole answer up to its end, and the reason of its end; see EndRules.without_end."""
        stops = [reason] if isinstance(reason, str) else rules.stops if reason is None else ()
        ids, reason = rules.without_end(ids, finish, reason)
        window = self.window(prompt)
        head = self.push(window, ids[: rules.min_tokens])
        text = head + self.push(window, ids[rules.min_tokens :])
        if finish != "stop" or len(text) == len(head):
            return text, reason
        ends = []
        for number, stop in enumerate(stops):
            start = text.find(stop, max(0, len(head) - len(stop) + 1))
            if stop and start >= 0:
                ends.append((start + len(stop), number, start))
        if not ends:
            return text, reason
        end, number, start = min(ends)
        return text[: end if rules.keeps_stop else start], stops[number]


class TokenNames:
    """The texts of single tokens, for log probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = Vocabulary(tokenizer)

    def text(self, token: int, context: Sequence[int]) -> str | None:
        """Returns the text of a token after others; None if the tokenizer does not have it.

        A part of a character has no text, but its last part that of the character.
        """
        tokenizer = self._tokenizer
        if token >= tokenizer.vocab_size or tokenizer.id_to_token(token) is None:
            return None
        text, _ = self._vocabulary.text_and_bytes(token)
        return self._completed(token, context) if text.endswith(REPLACEMENT) else text

    def _completed(self, token: int, context: Sequence[int]) -> str:
        size, decode = self._tokenizer.vocab_size, self._tokenizer.decode_unclean
        known = [number for number in context[-LOGPROB_CONTEXT:] if number < size]
        for count in range(1, len(known) + 1):
            before = known[-count:]
            text = decode([*before, token])
            if text.endswith(REPLACEMENT):
                continue
            while before and decode(before[-1:]).endswith(REPLACEMENT):
                before.pop()
            return text[len(_common(decode(before) if before else "", text)) :]
        return ""


def _common(first: str, second: str) -> str:
    """The common beginning of two texts."""
    length = next((index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    return first[: min(len(first), len(second)) if length is None else length]
