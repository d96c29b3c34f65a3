"""Where the text of a text model begins and ends: behind the prompt, and at the last token that there may be."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Encoding, Tokenization

_COUNTED: Final = Tokenization(whole=True, special_tokens=False)
_LOCATED: Final = Tokenization(whole=True, special_tokens=False, detail=True)


class Leading:
    """Leaves the prompt out of a text that comes in parts, where it is what the text begins with.

    Args:
        prompt: as it was sent.
        read_back: gives it as it reads once a tokenizer has encoded it and decoded it without special tokens, which a
            chat is full of. It is called once at most, and only where the text does not begin with ``prompt``.
    """

    def __init__(self, prompt: str, read_back: Callable[[], str] | None = None) -> None:
        self._prompt = prompt
        self._read_back = read_back
        self._held = ""
        self._decided = not prompt

    def take(self, text: str) -> str:
        """The part that is certainly not the prompt's."""
        if self._decided:
            return text
        self._held += text
        while not self._held.startswith(self._prompt):
            if self._prompt.startswith(self._held):
                return ""
            if self._read_back is None:
                break
            self._prompt, self._read_back = self._read_back(), None
        self._decided = True
        return self._held.removeprefix(self._prompt)

    def rest(self) -> str:
        """What was held back, and is the whole text: no prompt, unless that ends with special tokens and is read back
        without them."""
        if self._decided:
            return ""
        if self._read_back is None or not self._held:
            return self._held
        return self._held.removeprefix(self._read_back())


class TokenCounter:
    """Counts the tokens of new text, by the service's own tokenizer; long texts in a thread."""

    def __init__(self, tokenizer: Tokenizer, executor: Executor) -> None:
        self._tokenizer = tokenizer
        self._executor = executor

    async def count(self, text: str) -> int:
        """How many tokens. Raises InvalidInput for a text that can't be encoded."""
        return len((await self._encoded(text, _COUNTED)).ids)

    async def cut(self, text: str, most: int) -> int | None:
        """How many characters ``most`` tokens have; None where the text has no more than these."""
        if len(text.encode()) <= most:
            return None
        encoding = await self._encoded(text, _LOCATED)
        if len(encoding.ids) <= most:
            return None
        if encoding.offsets is not None:
            return encoding.offsets[most - 1][1]
        return len(self._tokenizer.decode(encoding.ids[:most]))

    async def _encoded(self, text: str, how: Tokenization) -> Encoding:
        [[encoding]] = await self._tokenizer.encode_off_loop([text], self._executor, how)
        return encoding


def leading_token(tokenizer: Tokenizer) -> str:
    """The special token that the tokenizer puts in front of every text, as text; empty if it has none, or if that can't
    be told."""
    try:
        [[bare]] = tokenizer.encode_windows(["a"], _COUNTED)
        [[whole]] = tokenizer.encode_windows(["a"], Tokenization(whole=True))
    except InvalidInput:  # as above
        return ""
    added = len(whole.ids) - len(bare.ids)
    if added < 1 or whole.ids[1 : 1 + len(bare.ids)] != bare.ids:
        return ""
    return tokenizer.id_to_token(whole.ids[0]) or ""
