"""Reads one request's ``parameters``: each is checked, and none is ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.tasks.base import OutputFormat, Overflow, TaskSettings
from hf_transformer.types.request import Json

Form = Literal["plain", "probabilities", "raw_logits", "pipeline"]
"""The forms of a prediction: three of the kserve format, and the pipeline format."""


class Parameters:
    """Typed access to a request's parameters.

    Args:
        parameters: as the client sent them.
        known: the names that the task takes.

    Raises:
        InvalidInput: a parameter has a name that the task does not know.
    """

    def __init__(self, parameters: Mapping[str, Json], known: Sequence[str]) -> None:
        for name in parameters:
            if name not in known:
                raise InvalidInput.of(f"parameters.{name[:40]}: unknown, expected one of {', '.join(known)}")
        self._given = {name: value for name, value in parameters.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._given.get(name, default)
        if not isinstance(value, bool):
            raise InvalidInput.of(f"parameters.{name}: expected true or false, got {describe(value)}")
        return value

    def integer(self, name: str, default: int, minimum: int) -> int:
        """A whole number of at least ``minimum``."""
        value = self._given.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput.of(f"parameters.{name}: expected a whole number, got {describe(value)}")
        if value < minimum:
            raise InvalidInput.of(f"parameters.{name}: {value} is too small, expected {minimum} or more")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """A number from ``least`` to ``most``."""
        value = self._given.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput.of(f"parameters.{name}: expected a number, got {describe(value)}")
        # Written so that NaN, which is in no range, is refused too.
        if not least <= value <= most:
            raise InvalidInput.of(f"parameters.{name}: {value:g} is out of range, expected {least:g} to {most:g}")
        return float(value)

    def get(self, name: str) -> Json:
        """The value as the client sent it; None if it did not."""
        return self._given.get(name)

    def one_of(self, *names: str) -> str | None:
        """The given one of several names of one parameter, or None. Raises InvalidInput for two."""
        found = [name for name in names if name in self._given]
        if len(found) > 1:
            raise InvalidInput.of(f"parameters.{found[1]}: means the same as {found[0]}, expected one of them")
        return found[0] if found else None

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """One of ``choices``."""
        value = self._given.get(name, default)
        if value not in choices:
            shown = repr(value[:40]) if isinstance(value, str) else describe(value)
            raise InvalidInput.of(f"parameters.{name}: {shown} is not one of {', '.join(choices)}")
        return str(value)

    def string(self, name: str) -> str | None:
        """A string, which may be empty; None if it was not given."""
        value = self._given.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInput.of(f"parameters.{name}: expected a string, got {describe(value)}")
        return value

    def strings(self, name: str, *, empty: bool = False, most: int | None = None) -> list[str] | None:
        """A string or a list of strings, which may be empty if ``empty`` is true; None if it was not given.

        Raises:
            InvalidInput: it is something else.
            TooLarge: a list of more than ``most``.
        """
        value = self._given.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if most is not None and isinstance(value, list) and len(value) > most:
            raise TooLarge.of(f"parameters.{name}: {len(value)} strings, at most {most} are taken")
        if isinstance(value, list) and (value or empty) and all(isinstance(item, str) for item in value):
            return value
        raise InvalidInput.of(f"parameters.{name}: expected a string or a list of strings, got {describe(value)}")


MAX_PROMPT_LENGTH = 2000
"""Characters. A prompt may have to be tokenized by itself, on the event loop."""


def read_output_format(given: Parameters, settings: TaskSettings) -> OutputFormat:
    """``output_format`` of a request, or the service's own."""
    found = given.choice("output_format", settings.output_format, ("kserve", "pipeline"))
    return "pipeline" if found == "pipeline" else "kserve"


def read_form(given: Parameters, settings: TaskSettings, pipeline_only: Sequence[str] = ()) -> Form:
    """``output_format``, ``return_probabilities`` and ``return_raw_logits`` of a request, or the service's own.

    Args:
        pipeline_only: parameters of the pipeline format alone.

    Raises:
        InvalidInput: they contradict each other, or one of ``pipeline_only`` is given with the kserve format.
    """
    probabilities = given.flag("return_probabilities", settings.return_probabilities)
    raw_logits = given.flag("return_raw_logits", settings.return_raw_logits)
    # A parameter of the request replaces the other flag of the service.
    if "return_raw_logits" in given and raw_logits and "return_probabilities" not in given:
        probabilities = False
    if "return_probabilities" in given and probabilities and "return_raw_logits" not in given:
        raw_logits = False
    if probabilities and raw_logits:
        raise InvalidInput.of("parameters.return_raw_logits: can't be combined with return_probabilities")
    if read_output_format(given, settings) == "pipeline":
        for name in ("return_probabilities", "return_raw_logits"):
            if name in given:
                raise InvalidInput.of(f'parameters.{name}: belongs to "output_format": "kserve"')
        return "pipeline"
    for name in pipeline_only:
        if name in given:
            raise InvalidInput.of(
                f'parameters.{name}: only the pipeline format has it; add "output_format": "pipeline" to the parameters'
            )
    return "probabilities" if probabilities else "raw_logits" if raw_logits else "plain"


def read_prompt(given: Parameters, prompts: Mapping[str, str], default_name: str | None) -> str:
    """The text in front: the parameter ``prompt``, the one of ``prompts`` that ``prompt_name`` names, or the model's
    default.

    Raises:
        InvalidInput: both are given, or there is none of that name.
        TooLarge: more than MAX_PROMPT_LENGTH characters.
    """
    prompt, name = given.string("prompt"), given.string("prompt_name")
    if prompt is not None and name is not None:
        raise InvalidInput.of("parameters.prompt_name: can't be combined with prompt, which says the text itself")
    if prompt is not None:
        if len(prompt) > MAX_PROMPT_LENGTH:
            raise TooLarge.of(
                f"parameters.prompt: {len(prompt)} characters, at most {MAX_PROMPT_LENGTH} are taken; "
                "put a longer one in front of the texts"
            )
        return prompt
    if name is not None and name not in prompts:
        known = ", ".join(prompts) or "the model has none"
        raise InvalidInput.of(f"parameters.prompt_name: {name[:40]!r} is unknown, expected one of {known}")
    return prompts.get(name or default_name or "", "")


def read_truncation(given: Parameters, settings: TaskSettings) -> Overflow:
    """``truncation`` of a request for a task without windows: a text that is too long is cut or refused."""
    return "truncate" if given.flag("truncation", settings.on_overflow != "error") else "error"
