"""The budget of one request: everything that may become more than its body is counted here before it is made.

    a field --times--> texts, characters, sequences, windows, tokens --times--> values and bytes of the answer

Whoever makes more of something asks first. The counts of a request add up, whichever of its fields or bodies they come
from. A count over a limit is TooLarge (413), with the flag that raises the limit. Tokens and bytes also count in
Admission, where a request that would fit alone may have to come again (429). docs/limits.md has the table of all
multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final

from hf_transformer.core.limits import AdmissionTicket, Limits
from hf_transformer.errors import ContextLengthExceeded, Path, TooLarge
from hf_transformer.tokenizer.engine import characters
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import TextInput

WINDOW_BYTES, TOKEN_BYTES, DETAILED_TOKEN_BYTES = 1000, 16, 48
"""Bytes of a window, and of each of its tokens: pointers in two lists, or in six with offsets and words."""
SPAN_BYTES: Final = 160
"""Bytes of a span's range of tokens in a window."""
FEWER: Final = "send fewer instances or ask for less about each"


class Budget:
    """Counts what one request becomes, within ``limits`` and its admission. ``ticket`` None has no admission.

    Use it on the event loop. Only ``windows`` and ``spans`` are called by the threads that tokenize, too, and
    ``hold_parsed`` by those that parse.

    Attributes:
        instances, sequences, characters, tokens, values: the counts so far.
    """

    __slots__ = (
        *("_expected", "_lock", "_window_tokens", "_windows"),
        *("characters", "instances", "limits", "sequences", "ticket", "tokens", "values"),
    )

    def __init__(self, limits: Limits, ticket: AdmissionTicket | None = None) -> None:
        self.limits = limits
        self.ticket = ticket
        self._lock = nullcontext() if ticket is None else ticket.admission.lock
        self.instances = self.sequences = self.characters = self.tokens = self.values = 0
        self._expected = self._windows = self._window_tokens = 0

    # Texts

    def few(self, path: Path | str, items: Sequence[Json], earlier: int = 0) -> None:
        """Raises TooLarge for a longer list than any request may have beside ``earlier`` texts. Callers ask before they
        read the items."""
        limit = self.limits.max_texts - earlier
        if len(items) > limit:
            expected = f"at most {limit} in a request (--max_instances, --max_sequences)"
            raise TooLarge(path, expected, str(len(items)))

    def add_instances(self, count: int, path: Path | str) -> None:
        """Counts instances: the elements of the list ``path``."""
        self.instances += count
        if self.instances > self.limits.max_instances:
            expected = f"at most {self.limits.max_instances} in a request (--max_instances)"
            raise TooLarge(path, expected, str(self.instances))

    def add_sequences(self, count: int, path: Path | str) -> None:
        """Counts texts, pairs and continuations, each of which the model reads by itself."""
        self.sequences += count
        if self.sequences + self._windows > self.limits.max_sequences:
            limit = self.limits.max_sequences
            expected = f"at most {limit} sequences (texts, pairs and windows) in a request (--max_sequences)"
            raise TooLarge(path, expected, str(self.sequences + self._windows))

    def add_characters(self, count: int, path: Path | str) -> None:
        """Counts characters of sequences. A text counts once for each sequence that contains it."""
        self.characters += count
        if self.characters > self.limits.max_total_length:
            expected = f"at most {self.limits.max_total_length} characters in all texts (--max_total_length)"
            raise TooLarge(path, expected, str(self.characters))

    def check_text(self, length: int, path: Path | str, max_length: int) -> None:
        """Raises ContextLengthExceeded for a text of too many characters. The model reads ``max_length`` tokens."""
        if length > self.limits.max_text_length:
            expected = f"at most {self.limits.max_text_length} characters (--max_text_length)"
            raise ContextLengthExceeded(path, expected, str(length), limit=max_length, counted=False)

    def check_copies(self, count: int, path: Path | str, name: str) -> None:
        """Raises TooLarge for copies of texts of more than --max_total_length, counted in the unit ``name``."""
        if count > self.limits.max_total_length:
            raise TooLarge(path, f"at most {self.limits.max_total_length} {name} (--max_total_length)", str(count))

    def add_texts(
        self, texts: Sequence[TextInput], path: Path, max_length: int, *, single: bool = False, times: int = 1
    ) -> int:
        """Counts texts that become ``times`` sequences each. Returns the number of characters of all texts, once each.

        ``path`` is the field of the list, or of its only text if ``single`` is set. The model reads ``max_length``
        tokens.
        """
        self.add_instances(len(texts), path)
        total = 0
        for index, text in enumerate(texts):
            length = characters(text)
            if length > self.limits.max_text_length:
                self.check_text(length, path if single else (*path, index), max_length)
            total += length
        self.add_characters(total * times, path)
        return total

    def check(self, name: str, path: Path | str, sequences: int, characters: int, values: int = 0) -> None:
        """Raises TooLarge if the request can't have so many more sequences, characters and values of the answer.

        ``name`` is the list of instances, and ``path`` the last one that was read.
        """
        limits = self.limits
        if sequences + self.sequences + self._windows > limits.max_sequences:
            self.add_sequences(sequences, name)
        if characters + self.characters > limits.max_total_length:
            self.add_characters(characters, path)
        if values + self.values > limits.max_answer_values:
            self.add_values(values, 0, path)

    # Tokens

    def expect(self, count: int) -> None:
        """Estimates the tokens of texts with ``count`` characters in Admission, until they are counted."""
        self._expected += count
        if self.ticket is not None:
            self.ticket.expect(self._expected)

    def add_tokens(self, count: int) -> None:
        """Counts the tokens of sequences, in place of their estimate. The tokens of windows are in Admission before."""
        self.tokens += count
        if self.ticket is not None:
            windowed = self._window_tokens
            self.ticket.charge(max(self.tokens - windowed, 0) if windowed else self.tokens)

    def for_threads(self) -> Budget:
        """Returns the budget for ``windows`` and ``spans`` in threads."""
        if self.ticket is not None:
            self.ticket.in_threads = True
        return self

    def windows(self, count: int, tokens: int, *, detail: bool) -> None:
        """Counts the windows of a text, and all their ``tokens``, before they are cut.

        Raises TooManyRequests if the other requests in flight leave no room for these tokens or their bytes.
        """
        limits, hint = self.limits, "send shorter texts, or share fewer tokens between windows"
        with self._lock:
            self._windows += count - 1  # the text itself is a sequence already
            self._window_tokens += tokens
            total, all_tokens = self.sequences + self._windows, self._window_tokens
        if total > limits.max_sequences:
            expected = f"at most {limits.max_sequences} windows in a request (--max_sequences)"
            raise TooLarge("instances", expected, str(total), hint)
        if all_tokens > limits.max_window_tokens:
            expected = f"at most {limits.max_window_tokens} tokens in all windows of a request (--max_window_tokens)"
            raise TooLarge("instances", expected, str(all_tokens), hint)
        self._reserve(tokens, count * WINDOW_BYTES + tokens * (DETAILED_TOKEN_BYTES if detail else TOKEN_BYTES))

    def spans(self, count: int) -> None:
        """Counts the bytes of spans in windows, before they are made. Raises TooManyRequests as ``windows`` does."""
        self._reserve(0, count * SPAN_BYTES)

    def hold_parsed(self, size: int) -> None:
        """Counts the bytes that a body takes in addition once it is parsed. Raises TooLarge and TooManyRequests as
        ``hold`` does."""
        self.for_threads()._reserve(0, size, "body")

    def _reserve(self, tokens: int, size: int, path: Path | str = "instances") -> None:
        if self.ticket is not None:
            self._require_bytes(size, path)
            self.ticket.reserve(tokens, size)

    # Answers

    def add_values(self, count: int, size: int, path: Path | str) -> None:
        """Counts about ``count`` values of the answer, and the ``size`` bytes that they take, before they are made.

        Raises TooManyRequests if the other requests in flight leave no room for these bytes.
        """
        self.values += count
        if self.values > self.limits.max_answer_values:
            expected = f"at most {self.limits.max_answer_values} values in an answer (--max_answer_values)"
            raise TooLarge(path, expected, f"about {self.values}", FEWER)
        if size:
            self.hold(size, path)

    def check_values(self, count: int, path: Path | str, name: str) -> None:
        """Raises TooLarge for more values than an answer may have, which messages call ``name``."""
        if count > self.limits.max_answer_values:
            raise TooLarge(path, f"at most {self.limits.max_answer_values} {name} (--max_answer_values)", str(count))

    def most_tokens(self, values: int) -> int:
        """The number of tokens that an answer may have with ``values`` values of each."""
        return (self.limits.max_answer_values - self.values) // values

    def hold(self, size: int, path: Path | str) -> None:
        """Counts bytes that the request takes until it is answered: copies, and the answer itself.

        Raises TooLarge if they would not fit alone, and TooManyRequests if the other requests in flight leave no room.
        """
        ticket = self.ticket
        if ticket is not None:
            if ticket.bytes + size > ticket.admission.max_bytes:
                self._require_bytes(size, path)
            ticket.hold(size)

    def _require_bytes(self, size: int, path: Path | str) -> None:
        ticket = self.ticket
        if ticket is not None and ticket.held + size > (most := ticket.admission.max_bytes):
            expected = f"a request that takes at most {most} bytes with its copies and its answer"
            raise TooLarge(path, f"{expected} (--max_bytes_in_flight)", f"about {ticket.held + size}", FEWER)
