"""Verification of finished texts against their constraint (--verify_structured_output), in child processes.

Validation has no bound of its own in time: validation.py does it in a child (children.py).
"""

from __future__ import annotations

from importlib.util import find_spec

from hf_transformer.errors import ConfigError, Path, PredictorError
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.grammars import IS_INSTALLED
from hf_transformer.generation.masks import extra_hint
from hf_transformer.protocol.json_text import MAX_NESTING, Shape


def require_extra() -> None:
    """Raises ConfigError without the extra ``structured``."""
    if not IS_INSTALLED or find_spec("jsonschema") is None:
        raise ConfigError(f"--verify_structured_output: {extra_hint()}")


class BrokenForm(PredictorError):
    """The predictor's text does not have the form that the request asks for."""


class Verifier:
    """Verifies texts in child processes."""

    def __init__(self, children: ChildPool) -> None:
        self._children = children

    async def prepare(self, constraint: Constraint, path: Path) -> None:
        """Raises InvalidInput for a constraint that can't be verified, and TooLarge for one that takes too much time or
        memory."""
        if constraint.kind != "choice":
            await self._children.run("check", constraint, path)

    async def verify(self, constraint: Constraint, text: str, path: Path) -> None:
        """Raises BrokenForm for a text without the form, and InvalidInput or TooLarge for a constraint that can't be
        applied to it."""
        if constraint.kind == "choice":
            problem = "" if text in constraint.choices else "it is none of the choices"
        elif constraint.kind in ("json_schema", "json_object") and Shape.of(text.encode()).depth > MAX_NESTING:
            problem = f"its lists and objects are nested deeper than {MAX_NESTING}"
        else:
            problem = await self._children.run("verify", constraint, path, text)
        if problem:
            raise BrokenForm(f"the predictor did not hold the text to the form that the request asks for: {problem}")
