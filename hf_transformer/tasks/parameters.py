"""Typed access to a request's ``parameters``, with full validation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.tasks.base import LOGITS, OutputFormat, TaskSettings
from hf_transformer.types.request import Json

Form = Literal["plain", "probabilities", "raw_logits", "pipeline"]
"""The forms of a prediction: three forms of the kserve format, and the pipeline format."""
MAX_PROMPT_LENGTH = 2000
"""Maximum number of characters. The service may tokenize a prompt on the event loop."""


class Parameters:
    """A request's parameters by name. A null parameter counts as absent.

    Raises InvalidInput for a name outside ``known``.
    """

    def __init__(self, parameters: Mapping[str, Json], known: Sequence[str]) -> None:
        for name in parameters:
            if name not in known:
                raise InvalidInput(("parameters", name[:40]), f"one of {', '.join(known)}", "an unknown name")
        self._values = {name: value for name, value in parameters.items() if value is not None}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether the request has one of these parameters."""
        return not self._values.keys().isdisjoint(names)

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise InvalidInput(("parameters", name), "true or false", describe(value))
        return value

    def integer(self, name: str, default: int, minimum: int) -> int:
        """Returns an integer of at least ``minimum``."""
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInput(("parameters", name), "a whole number", describe(value))
        if value < minimum:
            raise InvalidInput(("parameters", name), f"{minimum} or more", str(value))
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Returns a number from ``least`` to ``most``."""
        value = self._values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise InvalidInput(("parameters", name), f"a number from {least:g} to {most:g}", describe(value))
        # This form of the condition rejects NaN too.
        if not least <= value <= most:
            raise InvalidInput(("parameters", name), f"a number from {least:g} to {most:g}", f"{value:g}")
        return float(value)

    def get(self, name: str) -> Json:
        """Returns the value without validation; None if absent."""
        return self._values.get(name)

    def one_of(self, *names: str) -> str | None:
        """Returns the alias that the request uses, if any. Raises InvalidInput for more than one alias."""
        present = [name for name in names if name in self._values]
        if len(present) > 1:
            first, second, *_ = present
            raise InvalidInput(("parameters", second), f"{first} or {second}", "both", "they mean the same")
        return present[0] if present else None

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        """Returns a member of ``choices``."""
        value = self._values.get(name, default)
        if value not in choices:
            raise InvalidInput(("parameters", name), f"one of {', '.join(choices)}", describe(value, quote=True))
        return str(value)

    def string(self, name: str) -> str | None:
        """Returns a string, possibly empty; None if absent."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(("parameters", name), "a string", describe(value))
        return value

    def strings(self, name: str, *, empty: bool = False, most: int | None = None) -> list[str] | None:
        """Returns a string or a list of strings as a list; None if absent. ``empty`` allows an empty list.

        Raises:
            InvalidInput: the value has an invalid form.
            TooLarge: the list has more than ``most`` elements.
        """
        value = self._values.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if most is not None and isinstance(value, list) and len(value) > most:
            raise TooLarge(("parameters", name), f"at most {most} strings", str(len(value)))
        if isinstance(value, list) and (value or empty) and all(isinstance(item, str) for item in value):
            return value
        raise InvalidInput(("parameters", name), "a string or a list of strings", describe(value))


def read_output_format(parameters: Parameters, settings: TaskSettings) -> OutputFormat:
    """Reads ``output_format``; the default is the service's format."""
    chosen = parameters.choice("output_format", settings.output_format, ("kserve", "pipeline"))
    return "pipeline" if chosen == "pipeline" else "kserve"


def read_form(parameters: Parameters, settings: TaskSettings, pipeline_only: Sequence[str] = ()) -> Form:
    """Determines the form from ``output_format``, ``return_probabilities`` and ``return_raw_logits``.

    Args:
        pipeline_only: parameters that require the pipeline format.

    Raises:
        InvalidInput: parameters contradict each other, or don't apply to the format.
    """
    probabilities = parameters.flag("return_probabilities", settings.return_probabilities)
    raw_logits = parameters.flag("return_raw_logits", settings.return_raw_logits)
    # Either parameter of a request overrides the service's flag for the other parameter.
    if "return_raw_logits" in parameters and raw_logits and "return_probabilities" not in parameters:
        probabilities = False
    if "return_probabilities" in parameters and probabilities and "return_raw_logits" not in parameters:
        raw_logits = False
    if probabilities and raw_logits:
        raise InvalidInput(("parameters", "return_raw_logits"), "return_probabilities or return_raw_logits", "both")
    output_format = read_output_format(parameters, settings)
    for name in LOGITS if output_format == "pipeline" else pipeline_only:
        if name in parameters:
            needed = "kserve" if output_format == "pipeline" else "pipeline"
            raise InvalidInput(
                ("parameters", name),
                f"no value in the {output_format} format",
                hint=f'set "output_format": "{needed}" in the parameters',
            )
    if output_format == "pipeline":
        return "pipeline"
    return "probabilities" if probabilities else "raw_logits" if raw_logits else "plain"


def read_prompt(parameters: Parameters, prompts: Mapping[str, str], default_name: str | None) -> str:
    """Returns the prefix for texts: ``prompt``, or the element ``prompt_name`` of ``prompts``, or the model's default.

    Raises:
        InvalidInput: the request has both parameters, or an unknown ``prompt_name``.
        TooLarge: ``prompt`` exceeds MAX_PROMPT_LENGTH.
    """
    prompt, name = parameters.string("prompt"), parameters.string("prompt_name")
    if prompt is not None and name is not None:
        raise InvalidInput(("parameters", "prompt_name"), "prompt or prompt_name", "both")
    if prompt is not None:
        if len(prompt) > MAX_PROMPT_LENGTH:
            expected = f"at most {MAX_PROMPT_LENGTH} characters"
            raise TooLarge(("parameters", "prompt"), expected, str(len(prompt)), "put a longer prompt into the texts")
        return prompt
    if name is not None and name not in prompts:
        expected = f"one of {', '.join(prompts)}" if prompts else "no value for a model without prompts"
        raise InvalidInput(("parameters", "prompt_name"), expected, repr(name[:40]))
    return prompts.get(name or default_name or "", "")


QUERY_NAMES = ("query", "search_query", "retrieval_query", "s2p_query", "web_search_query")
DOCUMENT_NAMES = ("document", "passage", "search_document", "retrieval_document", "retrieval_passage", "corpus")
"""The names of prompts for queries and documents in model folders, in lower case with underscores, the preferred
first."""
SIDE_NAMES: Mapping[str, Sequence[str]] = {"query": QUERY_NAMES, "document": DOCUMENT_NAMES}
INPUT_TYPES: Mapping[str, str] = {name: kind for kind, names in SIDE_NAMES.items() for name in names}
"""The names by ``input_type``, and the other way."""


def plain_name(name: str) -> str:
    """A name of a prompt or purpose in lower case with underscores."""
    return re.sub(r"[-. ]", "_", name.lower())


def input_type_of(name: str) -> str | None:
    """``query`` or ``document`` for a name of either in model folders and APIs, such as search_query or passage. The
    name may follow a subject, as in nl2code.passage."""
    return INPUT_TYPES.get(plain_name(name)) or INPUT_TYPES.get(plain_name(name.rpartition(".")[2]))


def prompt_for_purpose(prompts: Iterable[str], purpose: str) -> str | None:
    """The name of the prompt for a purpose; None without one. All names of queries, and all of documents, are equal
    behind a subject: nl2code.passage finds nl2code_document."""
    known = {plain_name(name): name for name in prompts}
    subject, _, side = plain_name(purpose).rpartition("_")
    names = [plain_name(purpose), *(f"{subject}_{name}" for name in SIDE_NAMES.get(INPUT_TYPES.get(side, ""), ()))]
    return next((known[name] for name in names if name in known), None)


def read_input_type(parameters: Parameters) -> str | None:
    """Reads ``input_type``, ``query`` or ``document``; None if absent.

    Raises InvalidInput for another value, and for a prompt in addition.
    """
    if "input_type" not in parameters:
        return None
    for name in ("prompt", "prompt_name"):
        if name in parameters:
            raise InvalidInput(("parameters", "input_type"), f"input_type or {name}", "both", "each chooses the prompt")
    return parameters.choice("input_type", "", ("query", "document"))


def typed_prompt(prompts: Mapping[str, str], input_type: str) -> str:
    """The prompt for queries or documents by its name. A model without such a prompt has an empty one, as in
    sentence-transformers' encode_query and encode_document."""
    known = {plain_name(name): text for name, text in prompts.items()}
    return next((known[name] for name in SIDE_NAMES[input_type] if name in known), "")
