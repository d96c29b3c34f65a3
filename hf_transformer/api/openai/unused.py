"""Fields of the OpenAI API that change nothing here: they say who asks, or ask for what is done anyway.

A value that asks for more is refused. ``metadata`` labels a request that is stored, and none is: any that OpenAI would
take is taken.

Source: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import describe
from hf_transformer.types import Json

STRINGS: Final = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""They say who asks, or what the next request may have in common with this one."""
EVERYWHERE: Final = (*STRINGS, "metadata", "store", "service_tier")
"""Fields of completions, chats and embeddings."""
OF_CHATS: Final = ("modalities", "verbosity", "reasoning_effort")
TIERS: Final = ("auto", "default")
VERBOSITY: Final = "medium"
"""OpenAI's default."""
MOST_LABELS, LONGEST_KEY, LONGEST_LABEL = 16, 64, 512
"""Of metadata, as with OpenAI: keys, and characters of a key and of what it has."""


def check_unused(fields: Mapping[str, Json]) -> None:
    """Raises InvalidInput for what is not of its type, or asks for something that is not done here."""
    for name, value in fields.items():
        check = _CHECKS.get(name)
        if check is not None:
            check(name, value)


def _string(name: str, value: Json) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name}: expected a string, got {describe(value)}")


def _metadata(name: str, value: Json) -> None:
    if not isinstance(value, dict):
        raise InvalidInput(f"{name}: expected an object of strings, got {describe(value)}")
    if len(value) > MOST_LABELS:
        raise InvalidInput(f"{name}: {len(value)} keys, at most {MOST_LABELS} are taken")
    for key, label in value.items():
        if len(key) > LONGEST_KEY:
            raise InvalidInput(f"{name}: a key has {len(key)} characters, at most {LONGEST_KEY} are taken")
        if not isinstance(label, str):
            raise InvalidInput(f"{name}: the key {key!r} has {describe(label)}, expected a string")
        if len(label) > LONGEST_LABEL:
            raise InvalidInput(
                f"{name}: the key {key!r} has {len(label)} characters, at most {LONGEST_LABEL} are taken"
            )


def _store(name: str, value: Json) -> None:
    if value is not False:
        got = "true" if value is True else describe(value)
        raise InvalidInput(f"{name}: nothing is stored here, expected false, got {got}")


def _service_tier(name: str, value: Json) -> None:
    if value not in TIERS:
        raise InvalidInput(f"{name}: there is one here, expected {' or '.join(TIERS)}, got {_shown(value)}")


def _modalities(name: str, value: Json) -> None:
    if value != ["text"]:
        raise InvalidInput(f'{name}: the model writes text alone, expected ["text"], got {describe(value)}')


def _verbosity(name: str, value: Json) -> None:
    if value != VERBOSITY:
        raise InvalidInput(f"{name}: it can't be asked for here, expected {VERBOSITY}, got {_shown(value)}")


def _reasoning_effort(name: str, value: Json) -> None:
    """There is no value that asks for nothing: OpenAI's default differs between its models."""
    raise InvalidInput(
        f"{name}: it can't be asked for here; a chat template that knows it takes it in chat_template_kwargs"
    )


def _shown(value: Json) -> str:
    return repr(value[:40]) if isinstance(value, str) else describe(value)


_CHECKS: Final[Mapping[str, Callable[[str, Json], None]]] = {
    **dict.fromkeys(STRINGS, _string),
    "metadata": _metadata,
    "store": _store,
    "service_tier": _service_tier,
    "modalities": _modalities,
    "verbosity": _verbosity,
    "reasoning_effort": _reasoning_effort,
}
