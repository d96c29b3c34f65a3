"""Grammars of llguidance: a constraint in its form, compiled within its limits, with a sentence for each failure.

llguidance has wheels for x86-64 and arm64 and no dependencies (the extra ``structured``). XGrammar needs torch.
outlines-core follows references three levels deep, and compiles less than half of the schemas of
tests/generation/schemas.py.

This module imports no numpy, because child processes import it (child.py).

Source: https://github.com/guidance-ai/llguidance
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import orjson

from hf_transformer.errors import InvalidInput, Path
from hf_transformer.generation.constraint import ANY_OBJECT, Constraint
from hf_transformer.types.request import Json

IS_INSTALLED: Final = find_spec("llguidance") is not None
"""Whether the extra ``structured`` is installed. The first constraint imports it."""
LEXER_STATES: Final = 2_000
"""Number of states of a constraint's lexer. They are added while texts are generated. Schemas of JSONSchemaBench's kind
need less than 1,000."""
MAX_LEXER_STATES: Final = 20_000
"""Maximum number of states of a constraint that needs more, such as one for a string of bounded length."""
STATE_BYTES: Final = 1_200
"""Largest memory of a state in bytes, measured with the constraints of tests/generation/hostile_constraints.py."""
MAX_ROW_ITEMS: Final = 1_000
"""Maximum number of rules that apply at one place of a text. The time of a token grows with its square: 10 ms."""
MAX_REASON: Final = 300
"""Maximum number of characters of the library's reason in an error message."""
_JSON: Final[Any] = {"whitespace_pattern": r"( |\n {0,16})"}
"""Options of JSON: a space, or a line break with an indent. A model could write unlimited white space for ever."""
_INTERNAL: Final = re.compile(r"<non-verbose/>|^(Parser Error|parser error|lexer error): *")
_TOO_MANY_STATES: Final = "too many states"


class Tokens:
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


def tokenizer_of(tokens: Sequence[bytes], special_ids: Sequence[int]) -> Any:
    """Makes llguidance's tokenizer of a vocabulary, and adds an end token."""
    from llguidance import LLTokenizer

    made: Any = Tokens([*tokens, b"<end>"], [*special_ids, len(tokens)])
    return LLTokenizer(made, n_vocab=len(tokens) + 1)


def byte_tokenizer() -> Any:
    """Makes a tokenizer of single bytes. Constraints take as long to compile with it as with a model's."""
    return tokenizer_of([bytes((byte,)) for byte in range(256)], [])


def compile_grammar(tokenizer: Any, constraint: Constraint, path: Path, states: int = LEXER_STATES) -> Any:
    """Compiles a constraint to a matcher. Raises InvalidInput with the library's reason.

    llguidance bounds neither the time nor the memory of this: a child process tries it first.
    """
    from llguidance import LLMatcher, LLParserLimits

    try:
        grammar = _grammar(constraint)
    except ValueError as error:
        raise InvalidInput(path, "a grammar in Lark's or GBNF's form", hint=_reason(str(error))) from None
    limits = LLParserLimits(max_lexer_states=states, max_items_in_row=MAX_ROW_ITEMS, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, limits=limits, log_level=0)
    if matcher.is_error():
        raise InvalidInput(path, "a constraint that llguidance compiles", hint=_reason(matcher.get_error()))
    return matcher


def needs_states(matcher: Any) -> bool:
    """Whether a matcher failed because its lexer has the maximum number of states."""
    return bool(matcher.is_error() and _TOO_MANY_STATES in matcher.get_error())


def failure(matcher: Any, path: Path) -> InvalidInput:
    """The error of a matcher that failed after it was compiled, as a sentence."""
    reason = _reason(matcher.get_error())
    if reason.startswith("NoExtension"):
        hint = "no text can go on here and meet it, as with a schema that refers to itself without end"
        return InvalidInput(path, "a constraint that some text can meet", hint=hint)
    if "items" in reason:
        hint = f"more than {MAX_ROW_ITEMS:,} rules apply at one place of the text"
        return InvalidInput(path, "a constraint with fewer alternatives", hint=hint)
    if _TOO_MANY_STATES in reason:
        hint = f"its regular expressions and bounded strings take more than {MAX_LEXER_STATES:,} states"
        return InvalidInput(path, "a constraint within the limits of llguidance", hint=hint)
    return InvalidInput(path, "a constraint within the limits of llguidance", hint=reason)


def _reason(text: str) -> str:
    """The library's message on one line, without its marks."""
    return " ".join(_INTERNAL.sub("", text.strip()).split())[:MAX_REASON]


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
    (tools, answer), form = constraint.tool_parts, constraint.call_form
    bodies = []
    for name, schema in tools.items():
        head, tail = (orjson.dumps(text).decode() for text in (form.begin(name)[len(form.trigger) :], form.tail))
        bodies.append(f"{head} {_json_rule(schema)} {tail if form.tail else ''}".rstrip())
    trigger, lines = orjson.dumps(form.trigger).decode(), ["%llguidance {}", f"call: {' | '.join(bodies)}"]
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
