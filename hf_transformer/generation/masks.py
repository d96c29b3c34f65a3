"""Masks of the tokens that a constraint allows next, for models that return logits.

llguidance compiles a constraint for the tokenizer's vocabulary, and computes a mask per token (grammars.py). It bounds
the work of a token, but not of the compilation. Therefore a child process compiles a constraint first, with a
vocabulary of bytes: that takes the same time and memory, and the service repeats it only if it stays within the limits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Set
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hf_transformer.errors import InvalidInput, Path
from hf_transformer.extras import install_command
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.grammar_memory import CompiledGrammar, GrammarMemory
from hf_transformer.generation.grammars import (
    LEXER_STATES,
    MAX_LEXER_STATES,
    STATE_BYTES,
    compile_grammar,
    failure,
    needs_states,
    tokenizer_of,
)
from hf_transformer.types.tensors import Array

if TYPE_CHECKING:
    from hf_transformer.generation.detokenizer import Vocabulary  # tokenizer/ imports no generation/
    from hf_transformer.generation.responses.prefix import ReasoningPrefix, TokenPrefix

LIGHT_SECONDS: Final = 0.05
LIGHT_BYTES: Final = 4 << 20
"""Maximum time and memory of a constraint that is compiled beside others. Heavier ones wait for each other."""
ROW_BYTES_PER_SECOND: Final = 256_000_000
"""Upper bound of the growth of a parser's rows, by the CPU time of consuming tokens. Measured: 20 to 106 MB/s."""
ROW_STEP_BYTES: Final = 1 << 20
"""Bytes of rows that a text takes from the memory at a time."""
COSTS_PER_SECOND: Final = 4_000_000
"""Units of the scheduler's INLINE_COST in a second."""


ABSENT: Final = "the service runs without llguidance, which holds texts to a form"
"""The reason for a client; the remedy is in the log, since it may name a folder of the server."""


def extra_hint() -> str:
    """Returns the remedy for a missing llguidance, for the operator."""
    return f"the service needs llguidance for that: {install_command('structured')} (the slim image has none)"


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The limits of work with constraints, which all models of a service share."""

    children: ChildPool = field(default_factory=ChildPool)
    memory: GrammarMemory = field(default_factory=GrammarMemory)
    heavy: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a constraint is compiled that takes long or much memory."""


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, sandbox: Sandbox) -> None:
        self._vocabulary = vocabulary
        self._sandbox = sandbox
        self._tokenizers: dict[frozenset[int], Any] = {}
        self._tokenizer_lock = threading.Lock()
        self._owner = object()

    def __del__(self) -> None:
        self._sandbox.memory.forget(self._owner)

    async def prepare(self, constraint: Constraint, path: Path, executor: Executor) -> CompiledGrammar:
        """Compiles a constraint in a thread, if a child process could. The caller keeps the result until its texts end.

        Raises:
            InvalidInput: the constraint can't be compiled; ``path`` is its field.
            TooLarge: the constraint takes more time or memory than the limits.
            TooManyRequests: the constraints of other requests leave no room.
        """
        found = self.find(constraint)
        if found is not None:
            return found
        size, seconds = await self._sandbox.children.run("compile", constraint, path)
        is_light = seconds < LIGHT_SECONDS and size < LIGHT_BYTES
        loop = asyncio.get_running_loop()
        async with nullcontext() if is_light else self._sandbox.heavy:
            return await loop.run_in_executor(executor, self.compile, constraint, path, size, LEXER_STATES)

    def find(self, constraint: Constraint) -> CompiledGrammar | None:
        """Returns a compiled constraint. One with many states is preferred, because a text has needed them."""
        find, owner, key = self._sandbox.memory.find, self._owner, constraint.key
        return find((owner, key, MAX_LEXER_STATES)) or find((owner, key, LEXER_STATES))

    def compile(self, constraint: Constraint, path: Path, size: int, states: int) -> CompiledGrammar:
        """Compiles a constraint of ``size`` bytes, or returns one that another thread has compiled meanwhile.

        Raises InvalidInput, TooLarge and TooManyRequests.
        """
        memory, key = self._sandbox.memory, (self._owner, constraint.key, states)
        if (found := memory.find(key)) is not None:
            return found
        memory.reserve(size, states, path)
        try:
            with self._tokenizer_lock:
                if (tokenizer := self._tokenizers.get(constraint.shown_tokens)) is None:
                    tokenizer = _tokenizer(self._vocabulary, constraint.shown_tokens)
                    self._tokenizers[constraint.shown_tokens] = tokenizer
            matcher = compile_grammar(tokenizer, constraint, path, states)
            cost = self._check_first(matcher, path)
        except BaseException:
            memory.give_back(size + states * STATE_BYTES)
            raise
        return memory.add(key, matcher, size, states, cost)

    def _check_first(self, matcher: Any, path: Path) -> int:
        """Returns the cost of a text's first mask. Raises InvalidInput if no token can begin a text."""
        began, first = time.thread_time(), matcher.deep_copy()
        bits = np.frombuffer(first.compute_bitmask(), np.uint8)
        if first.is_error() and not needs_states(first):
            raise failure(first, path)
        if not np.unpackbits(bits, count=self._vocabulary.size, bitorder="little").any():
            raise InvalidInput(path, "a constraint that the model's tokens can write")
        return _cost(time.thread_time() - began)

    def prefix(self, prefix: ReasoningPrefix, shown_tokens: Set[int]) -> TokenPrefix | None:
        """Returns the reader of a new text's reasoning, before its constraint; None without any."""
        from hf_transformer.generation.responses.prefix import TokenPrefix  # imports regex, which chats alone need

        return None if prefix.is_over else TokenPrefix.of(prefix, self._vocabulary, shown_tokens)

    def mask(self, constraint: Constraint, path: Path, ends: frozenset[int], min_tokens: int) -> TokenMask:
        """Returns the mask of a new text with a constraint that ``prepare`` has compiled."""
        grammar = self.find(constraint)
        if grammar is None:
            raise LookupError("the constraint of a text has not been prepared")
        more = partial(self.compile, constraint, path, grammar.bytes, MAX_LEXER_STATES)
        return TokenMask(grammar, more, self._sandbox.memory, self._vocabulary.size, path, ends, min_tokens)


class TokenMask:
    """The tokens that may follow in one text, computed in a thread while the model works. ``close`` frees its memory.

    Args:
        more_states: compiles the constraint again, with the maximum number of states.
        ends: tokens that end the text. The mask allows them where the text may end, and after ``min_tokens`` tokens.
            They are allowed earlier if no other token is.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        more_states: Callable[[], CompiledGrammar],
        memory: GrammarMemory,
        size: int,
        path: Path,
        ends: frozenset[int],
        min_tokens: int,
    ) -> None:
        self._grammar: CompiledGrammar | None = grammar
        self._matcher = grammar.matcher.deep_copy()
        self._more_states = more_states
        self._memory = memory
        self._size = size
        self._path = path
        self._ends = np.array(sorted(token for token in ends if token < size), np.int64)
        self._end_ids = ends
        self._remaining = min_tokens
        self._tokens: list[int] = []
        self._row_seconds = 0.0
        self._row_bytes = 0
        self._future: Future[Array] | None = None
        self.is_over = False
        """Whether the text is complete, and can't continue."""
        self.cost = grammar.cost
        """Cost of the last mask, in units of the scheduler's INLINE_COST."""

    def start(self, executor: Executor) -> None:
        """Starts to compute the next mask, if that of the last step was used."""
        if self._future is None:
            self._future = executor.submit(self._compute)

    def apply(self, scores: Array) -> Array:
        """Returns the scores [V] with -inf for tokens that are not allowed. Raises InvalidInput and TooManyRequests."""
        future, self._future = self._future, None
        # A future that has not begun is computed here: the threads may be busy with long texts.
        allowed = self._compute() if future is None or future.cancel() else future.result()
        masked = np.full(scores.shape, -np.inf, np.float32)
        np.copyto(masked[: self._size], scores[: self._size], where=allowed, casting="same_kind")
        return masked

    def accepts(self, tokens: list[int]) -> bool:
        """Whether the text may go on with these tokens."""
        self._settle()
        return bool(self._matcher.validate_tokens(tokens) == len(tokens))

    def _settle(self) -> None:
        """Waits for a mask that was not used: one thread at a time has the matcher."""
        future, self._future = self._future, None
        if future is not None and not future.cancel():
            future.exception()

    def skip(self) -> None:
        """Counts a token before the text with the constraint."""
        self._remaining -= 1

    def add(self, token: int) -> None:
        """Adds a chosen token. Raises TooManyRequests if the text takes more memory than there is."""
        self._remaining -= 1
        if token in self._end_ids:
            return
        self._settle()
        began = time.thread_time()
        self._matcher.consume_token(token)
        self._row_seconds += time.thread_time() - began
        self._tokens.append(token)
        self.is_over = self._matcher.is_stopped() and not self._matcher.is_error()
        while self._row_bytes < self._row_seconds * ROW_BYTES_PER_SECOND - ROW_STEP_BYTES:
            self._memory.take(ROW_STEP_BYTES)
            self._row_bytes += ROW_STEP_BYTES

    def close(self) -> None:
        """Frees the memory of the text. A mask that is being computed fails."""
        self._matcher = self._grammar = self._future = None
        self._memory.give_back(self._row_bytes)
        self._row_bytes = 0

    def _compute(self) -> Array:
        """Computes the allowed tokens, booleans [V]. Raises InvalidInput and TooManyRequests."""
        began = time.thread_time()
        matcher = self._matcher
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if needs_states(matcher) and self._grammar is not None and self._grammar.states < MAX_LEXER_STATES:
            matcher, bits = self._with_more_states()
        self.cost = _cost(time.thread_time() - began)
        if matcher.is_error():
            raise failure(matcher, self._path)
        allowed = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        if self._ends.size:
            allowed[self._ends] = False
            if matcher.is_accepting() and (self._remaining <= 0 or not allowed.any()):
                allowed[self._ends] = True
        if not allowed.any():
            raise InvalidInput(self._path, "a constraint that the model's tokens can write")
        return allowed

    def _with_more_states(self) -> tuple[Any, Array]:
        """Repeats the text with a lexer of more states."""
        self._grammar = self._more_states()
        self._matcher = matcher = self._grammar.matcher.deep_copy()
        matcher.consume_tokens(self._tokens)
        return matcher, np.frombuffer(matcher.compute_bitmask(), np.uint8)


def _cost(seconds: float) -> int:
    return int(seconds * COSTS_PER_SECOND)


def _tokenizer(vocabulary: Vocabulary, shown_tokens: Set[int]) -> Any:
    """llguidance's tokenizer. ``shown_tokens`` are special tokens that are text."""
    ids = range(vocabulary.size)
    special = [token for token in ids if vocabulary.is_special(token) and token not in shown_tokens]
    return tokenizer_of([vocabulary.text_and_bytes(token)[1] for token in ids], special)
