"""Memory of compiled constraints: those in use, and a cache of those that were used last.

The bytes are upper bounds. A child process measures a compiled constraint (child.py). The states of its lexer are added
while texts are generated, and all texts of the constraint share them: their maximum counts from the start. The parser's
rows are a text's own, and count by the time that they take.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from hf_transformer.errors import Path, TooLarge, TooManyRequests
from hf_transformer.generation.grammars import STATE_BYTES

Key: TypeAlias = tuple[object, bytes, int]
"""Owner, key and number of states of a constraint."""
MAX_GRAMMARS: Final = 64
"""Maximum number of cached constraints."""


class CompiledGrammar:
    """A compiled constraint, which counts in a GrammarMemory until the last text with it ends.

    Attributes:
        matcher: llguidance's matcher at its start, to be copied.
        bytes: the measured memory, without states of the lexer.
        states: the maximum number of states of its lexer.
        cost: the cost of a text's first mask, in units of the scheduler's INLINE_COST.
    """

    def __init__(self, memory: GrammarMemory, matcher: Any, size: int, states: int, cost: int) -> None:
        self.matcher = matcher
        self.bytes = size
        self.states = states
        self.cost = cost
        self._memory = memory

    def __del__(self) -> None:
        self._memory.give_back(self.bytes + self.states * STATE_BYTES)


class GrammarMemory:
    """Bytes for compiled constraints of all models (--max_constraint_bytes). Thread-safe."""

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        self.max_bytes = max_bytes
        self.used = 0
        self._lock = threading.RLock()  # reentrant: a grammar can be freed while the lock is held
        self._recent: OrderedDict[Key, CompiledGrammar] = OrderedDict()
        self._alive: WeakValueDictionary[Key, CompiledGrammar] = WeakValueDictionary()

    def find(self, key: Key) -> CompiledGrammar | None:
        """Returns a cached constraint, or one in use."""
        with self._lock:
            found = self._alive.get(key)
            if found is not None and key in self._recent:
                self._recent.move_to_end(key)
            return found

    def reserve(self, size: int, states: int, path: Path) -> None:
        """Takes the bytes of a constraint that will be compiled. ``add`` or ``give_back`` follows.

        Raises:
            TooLarge: the constraint never fits.
            TooManyRequests: the constraints of other requests leave no room.
        """
        size += states * STATE_BYTES
        if size > self.max_bytes:
            expected = f"a constraint that takes at most {self.max_bytes} bytes compiled (--max_constraint_bytes)"
            raise TooLarge(path, expected, str(size))
        self.take(size)

    def take(self, size: int) -> None:
        """Takes bytes, and drops cached constraints for them. Raises TooManyRequests."""
        with self._lock:
            while self.used + size > self.max_bytes and self._recent:
                self._recent.popitem(last=False)
            if self.used + size > self.max_bytes:
                raise TooManyRequests(
                    f"the constraints of the requests in flight take {self.max_bytes} bytes (--max_constraint_bytes)"
                )
            self.used += size

    def give_back(self, size: int) -> None:
        """Returns bytes."""
        with self._lock:
            self.used -= size

    def forget(self, owner: object) -> None:
        """Drops the cached constraints of an owner."""
        with self._lock:
            for key in [key for key in self._recent if key[0] is owner]:
                del self._recent[key]

    def add(self, key: Key, matcher: Any, size: int, states: int, cost: int) -> CompiledGrammar:
        """Keeps a compiled constraint, whose bytes are reserved."""
        made = CompiledGrammar(self, matcher, size, states, cost)
        with self._lock:
            self._alive[key] = self._recent[key] = made
            if len(self._recent) > MAX_GRAMMARS:
                self._recent.popitem(last=False)
        return made
