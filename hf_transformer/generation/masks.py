"""Masks of the tokens that a constraint allows next, for models that return logits.

llguidance compiles a constraint for the tokenizer's vocabulary, and computes a mask per token. It has wheels for x86-64
and arm64 and no dependencies (the extra ``structured``). XGrammar needs torch. outlines-core follows references three
levels deep, and compiles less than half of the schemas of tests/generation/schemas.py.

Source: https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from hf_transformer.errors import InvalidInput
from hf_transformer.extras import install_command
from hf_transformer.generation.constraint import ANY_OBJECT, Constraint, call_text
from hf_transformer.generation.tools import BEGIN
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array

if TYPE_CHECKING:
    from hf_transformer.generation.detokenizer import Vocabulary  # tokenizer/ imports no generation/

IS_INSTALLED: Final = find_spec("llguidance") is not None
"""Whether the extra ``structured`` is installed. The first constraint imports it."""
COMPILE_SECONDS: Final = 10.0
"""Maximum time for which a request waits for its compiled constraint. llguidance's own limits end sooner."""
MAX_GRAMMARS: Final = 64
MAX_SOURCE_BYTES: Final = 2**20
"""Limits of the cache of compiled constraints: their number, and the bytes of their sources."""
MAX_LEXER_STATES: Final = 20_000
"""Maximum number of states of a constraint's lexer, of 1 to 2 kB each. They are added while texts are generated."""
_JSON: Final[Any] = {"whitespace_pattern": r"( |\n {0,16})"}
"""Options of JSON: a space, or a line break with an indent. A model could write unlimited white space for ever."""
MAX_REASON: Final = 300
"""Maximum number of characters of the library's reason in an error message."""


ABSENT: Final = "the service runs without llguidance, which holds texts to a form"
"""The reason for a client; the remedy is in the log, since it may name a folder of the server."""


def extra_hint() -> str:
    """Returns the remedy for a missing llguidance, for the operator."""
    return f"the service needs llguidance for that: {install_command('structured')} (the slim image has none)"


class GrammarCompiler:
    """Compiles constraints for one vocabulary. Caches the most recently used ones. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: Any = None
        self._tokenizer_lock = threading.Lock()
        self._lock = threading.Lock()  # held briefly: the event loop takes it too
        self._compiled: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()
        self._source_bytes = 0

    async def prepare(self, constraint: Constraint, path: str, executor: Executor) -> None:
        """Compiles a constraint in a thread. Raises InvalidInput for the field ``path`` if that fails."""
        if self._cached(constraint) is None:
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(COMPILE_SECONDS):
                    await loop.run_in_executor(executor, self.compile, constraint, path)
            except TimeoutError:
                raise InvalidInput(path, f"a constraint that compiles in {COMPILE_SECONDS:g} s", "more") from None

    def compile(self, constraint: Constraint, path: str = "") -> Any:
        """Returns the matcher of a constraint at its start, to be copied. Raises InvalidInput."""
        matcher = self._cached(constraint)
        if matcher is not None:
            return matcher
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = _tokenizer(self._vocabulary)
        matcher = _matcher(self._tokenizer, constraint, path)
        first = matcher.deep_copy()
        bits = np.frombuffer(first.compute_bitmask(), np.uint8)
        if first.is_error():
            raise InvalidInput(path, "a constraint within the limits of llguidance", hint=_reason(first.get_error()))
        if not np.unpackbits(bits, count=self._vocabulary.size, bitorder="little").any():
            raise InvalidInput(path, "a constraint that the model's tokens can write")
        with self._lock:
            size = len(constraint.source)
            self._source_bytes += size - self._compiled.pop(constraint.key, (None, 0))[1]
            self._compiled[constraint.key] = matcher, size
            while len(self._compiled) > MAX_GRAMMARS or self._source_bytes > MAX_SOURCE_BYTES:
                self._source_bytes -= self._compiled.popitem(last=False)[1][1]
        return matcher

    def _cached(self, constraint: Constraint) -> Any:
        with self._lock:
            entry = self._compiled.get(constraint.key)
            if entry is None:
                return None
            self._compiled.move_to_end(constraint.key)
            return entry[0]

    def mask(self, constraint: Constraint, path: str, ends: frozenset[int], min_tokens: int) -> TokenMask:
        """Returns the mask of a new text. Raises InvalidInput if the constraint can't be compiled."""
        return TokenMask(self.compile(constraint, path).deep_copy(), self._vocabulary.size, path, ends, min_tokens)


class TokenMask:
    """The tokens that may follow in one text, computed in a thread while the model works.

    Args:
        ends: tokens that end the text. The mask allows them where the text may end, and after ``min_tokens`` tokens.
            They are allowed earlier if no other token is.
    """

    def __init__(self, matcher: Any, size: int, path: str, ends: frozenset[int], min_tokens: int) -> None:
        self._matcher = matcher
        self._size = size
        self._path = path
        self._ends = np.array(sorted(token for token in ends if token < size), np.int64)
        self._end_ids = ends
        self._remaining = min_tokens
        self._future: Future[Array] | None = None
        self.is_over = False
        """Whether the text is complete, and can't continue."""

    def start(self, executor: Executor) -> None:
        """Starts to compute the next mask."""
        self._future = executor.submit(self._compute)

    def apply(self, scores: Array) -> Array:
        """Returns the scores [V] with -inf for tokens that are not allowed. Raises InvalidInput."""
        future, self._future = self._future, None
        # A future that has not begun is computed here: the threads may be busy with long texts.
        allowed = self._compute() if future is None or future.cancel() else future.result()
        masked = np.full(scores.shape, -np.inf, np.float32)
        np.copyto(masked[: self._size], scores[: self._size], where=allowed, casting="same_kind")
        return masked

    def add(self, token: int) -> None:
        """Adds a chosen token."""
        self._remaining -= 1
        if token not in self._end_ids:
            self._matcher.consume_token(token)
            self.is_over = self._matcher.is_stopped() and not self._matcher.is_error()

    def _compute(self) -> Array:
        """Computes the allowed tokens, booleans [V]. Raises InvalidInput."""
        matcher = self._matcher
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            expected = "a constraint that llguidance can follow to its end"
            raise InvalidInput(self._path, expected, hint=_reason(matcher.get_error()))
        allowed = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        if self._ends.size:
            allowed[self._ends] = False
            if matcher.is_accepting() and (self._remaining <= 0 or not allowed.any()):
                allowed[self._ends] = True
        if not allowed.any():
            raise InvalidInput(self._path, "a constraint that the model's tokens can write")
        return allowed


class ByteMatcher:
    """Matches whole texts against constraints, byte by byte. Thread-safe."""

    def __init__(self) -> None:
        self._tokenizer = _tokenizer_of([bytes((byte,)) for byte in range(256)], [])

    def check(self, constraint: Constraint, path: str) -> None:
        """Raises InvalidInput for a constraint that can't be compiled."""
        _matcher(self._tokenizer, constraint, path)

    def accepts(self, constraint: Constraint, text: str) -> bool:
        """Whether a text has the form. Raises InvalidInput for a constraint that can't be compiled."""
        matcher, data = _matcher(self._tokenizer, constraint, ""), list(text.encode())
        return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


class _Tokens:
    """The vocabulary in the form that llguidance reads: the bytes of each token.

    llguidance needs one end token. It is the last one, beyond the model's vocabulary: TokenMask decides on the model's.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special_ids: Sequence[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special_ids
        self.eos_token_id = len(tokens) - 1
        special = frozenset(special_ids)
        self._ids = {data: token for token, data in enumerate(tokens) if data and token not in special}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        """Splits a text into the longest tokens. llguidance asks for the tokens of text that a grammar forces."""
        data = text.encode() if isinstance(text, str) else text
        ids, start = [], 0
        while start < len(data):
            for end in range(min(start + self._longest, len(data)), start, -1):
                if (token := self._ids.get(data[start:end])) is not None:
                    ids.append(token)
                    break
            else:
                break  # the vocabulary has no token of this byte
            start = end
        return ids


def _tokenizer(vocabulary: Vocabulary) -> Any:
    ids = range(vocabulary.size)
    special = [token for token in ids if vocabulary.is_special(token)]
    return _tokenizer_of([vocabulary.text_and_bytes(token)[1] for token in ids], special)


def _tokenizer_of(tokens: Sequence[bytes], special_ids: Sequence[int]) -> Any:
    from llguidance import LLTokenizer

    made: Any = _Tokens([*tokens, b"<end>"], [*special_ids, len(tokens)])
    return LLTokenizer(made, n_vocab=len(tokens) + 1)


def _matcher(tokenizer: Any, constraint: Constraint, path: str) -> Any:
    """Compiles a constraint. Raises InvalidInput with the library's reason."""
    from llguidance import LLMatcher, LLParserLimits

    try:
        grammar = _grammar(constraint)
    except ValueError as error:
        raise InvalidInput(path, "a grammar in Lark's or GBNF's form", hint=_reason(str(error))) from None
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    if matcher.is_error():
        raise InvalidInput(path, "a constraint that llguidance compiles", hint=_reason(matcher.get_error()))
    return matcher


def _reason(text: str) -> str:
    """The library's message on one line."""
    return " ".join(text.split())[:MAX_REASON]


def _grammar(constraint: Constraint) -> str:
    """Converts a constraint to llguidance's form. Raises ValueError."""
    from llguidance import LLMatcher, grammar_from

    match constraint.kind:
        case "json_schema" | "json_object":
            schema = constraint.source if constraint.kind == "json_schema" else orjson.dumps(ANY_OBJECT).decode()
            return LLMatcher.grammar_from_json_schema(schema, defaults=_JSON)
        case "regex":
            return LLMatcher.grammar_from_regex(constraint.source)
        case "choice":
            choices = " | ".join(orjson.dumps(choice).decode() for choice in constraint.choices)
            return LLMatcher.grammar_from_lark(f"start: {choices}")
        case "grammar":
            return grammar_from("grammar", constraint.source)
        case "tool":
            return LLMatcher.grammar_from_lark(_tool_grammar(constraint))


def _tool_grammar(constraint: Constraint) -> str:
    """Lark grammar of calls of tools next to free text, or next to an answer of a schema."""
    tools, answer = constraint.tool_parts
    bodies = []
    for name, schema in tools.items():
        begin, end = call_text(name)
        head, tail = (orjson.dumps(text).decode() for text in (begin.removeprefix(BEGIN), end))
        bodies.append(f"{head} {_json_rule(schema)} {tail}")
    trigger, lines = orjson.dumps(BEGIN).decode(), ["%llguidance {}", f"call: {' | '.join(bodies)}"]
    if answer is None:
        lines += [
            "start: (begin call)* rest",
            f"begin[lazy]: TEXT {trigger}",
            "rest: TEXT",
            r"TEXT: /(.|\n)*/",
        ]
    else:
        lines += [f'start: answer | {trigger} call ("\\n" {trigger} call)*']
        lines += [f"answer: {_json_rule(answer)}"]
    return "\n".join(lines)


def _json_rule(schema: Json) -> str:
    return f"%json {orjson.dumps({'x-guidance': _JSON, **schema}).decode()}"
