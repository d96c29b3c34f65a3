"""Verification of finished texts against their constraint (--verify_structured_output).

jsonschema validates JSON. Regular expressions and grammars, also the patterns in a schema, are matched by llguidance,
in linear time: Python's ``re`` could block the service for ever. A schema with patterns is therefore matched as a
whole, which requires the properties in the order of the schema.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from importlib.util import find_spec
from itertools import count
from typing import Any, Final

import orjson

from hf_transformer.errors import ConfigError, InvalidInput, PredictorError
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.masks import IS_INSTALLED, ByteMatcher, extra_hint
from hf_transformer.generation.tools import ToolCallParser
from hf_transformer.protocol.json_text import MAX_NESTING, nesting_of
from hf_transformer.types.request import Json

MAX_STEPS: Final = 100_000
"""Maximum number of schemas to apply to parts of a text, about 2 s. References can multiply them without end."""
_PATTERNS = (b'"pattern"', b'"patternProperties"')


def require_extra() -> None:
    """Raises ConfigError without the extra ``structured``."""
    if not IS_INSTALLED or find_spec("jsonschema") is None:
        raise ConfigError(f"--verify_structured_output: {extra_hint()}")


class TooManySteps(Exception):
    """A text takes more than MAX_STEPS."""


class BrokenForm(PredictorError):
    """The predictor's text does not have the form that the request asks for."""


class Verifier:
    """Verifies texts in threads."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._bytes = ByteMatcher()

    async def prepare(self, constraint: Constraint, path: str) -> None:
        """Raises InvalidInput for a constraint that can't be verified."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._check, constraint, path)

    async def verify(self, constraint: Constraint, text: str) -> None:
        """Raises BrokenForm for a text without the form."""
        problem = await asyncio.get_running_loop().run_in_executor(self._executor, self.problem, constraint, text)
        if problem:
            raise BrokenForm(f"the predictor did not hold the text to the form that the request asks for: {problem}")

    def _check(self, constraint: Constraint, path: str) -> None:
        schema = constraint.schema
        if constraint.kind in ("regex", "grammar") or (schema is not None and _has_patterns(schema)):
            self._bytes.check(constraint, path)
        elif schema is not None:
            from jsonschema import SchemaError

            try:
                _validator(schema).check_schema(schema)
            except SchemaError as error:
                raise InvalidInput(path, "a valid JSON schema", hint=error.message[:200]) from None

    def problem(self, constraint: Constraint, text: str) -> str:
        """Describes how a text breaks its form; empty if it has the form."""
        if constraint.kind == "choice":
            return "" if text in constraint.choices else "it is none of the choices"
        if constraint.kind == "tool":
            return self._tool_problem(constraint, text)
        if constraint.schema is not None:
            return self._json_problem(constraint.schema, text)
        return "" if self._bytes.accepts(constraint, text) else f"it does not match the {constraint.kind}"

    def _json_problem(self, schema: Json, text: str) -> str:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return f"invalid JSON: {error}"
        if nesting_of(text.encode()) > MAX_NESTING:  # orjson writes at most 254 levels
            return f"its lists and objects are nested deeper than {MAX_NESTING}"
        if _has_patterns(schema):
            constraint = Constraint.of("json_schema", schema)
            return (
                "" if self._bytes.accepts(constraint, orjson.dumps(value).decode()) else "it does not match the schema"
            )
        try:
            first = next(_validator(schema).iter_errors(value), None)
        except RecursionError:
            return "the schema refers to itself without end"
        except TooManySteps:
            return f"it takes more than {MAX_STEPS:,} steps to apply the schema"
        return "" if first is None else f"{first.json_path}: the value breaks the schema's {first.validator!r}"

    def _tool_problem(self, constraint: Constraint, text: str) -> str:
        tools, answer = constraint.tool_parts
        parser = ToolCallParser()
        (content, calls), (rest, more) = parser.push(text), parser.flush()
        for call in (*calls, *more):
            if call.name not in tools:
                return "it calls a tool that the request does not have"
            if problem := self._json_problem(tools[call.name], call.arguments):
                return f"the arguments of {call.name}: {problem}"
        if calls or more or answer is None:
            return ""
        return self._json_problem(answer, content + rest)


def _validator(schema: Json) -> Any:
    """A validator of jsonschema for the schema's dialect, which raises TooManySteps."""
    from attrs import evolve
    from jsonschema.validators import extend, validator_for

    steps = count(1)

    def next_step(validator: Any, **changes: Any) -> Any:
        if next(steps) > MAX_STEPS:
            raise TooManySteps
        return evolve(validator, **changes)

    kind: Any = extend(validator_for(schema))  # type: ignore[no-untyped-call]
    kind.evolve = next_step  # jsonschema calls it for each schema, also below a "$schema" of another dialect
    return kind(schema)


def _has_patterns(schema: Json) -> bool:
    text = orjson.dumps(schema)
    return any(pattern in text for pattern in _PATTERNS)
