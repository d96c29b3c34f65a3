"""Typed access to a request's ``parameters``, with full validation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from hf_transformer.errors import InvalidInput, TooLarge, describe
from hf_transformer.types.request import Json


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


def typed_prompt(prompts: Mapping[str, str], input_type: str) -> str:
    """The prompt for queries or documents by its name. A model without such a prompt has an empty one, as in
    sentence-transformers' encode_query and encode_document."""
    known = {plain_name(name): text for name, text in prompts.items()}
    return next((known[name] for name in SIDE_NAMES[input_type] if name in known), "")
