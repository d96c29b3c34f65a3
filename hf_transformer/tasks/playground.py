"""``playground`` in a model's config.json: a note about the model for the playground, and requests to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hf_transformer.types.request import Json

EXPECTED = "an object with a note (text) and examples (bodies with a list of instances, or of a chat's messages)"


def read_playground(
    model_config: Mapping[str, Json], warn: Callable[[str], object] | None = None
) -> tuple[str, list[Json]]:
    """The note and the examples, which may be empty. If a value has a wrong type, both are, since texts of a page must
    not keep a model from its service; ``warn`` gets a message."""
    section = model_config.get("playground", {})
    if isinstance(section, Mapping):
        note, examples = section.get("note", ""), section.get("examples", [])
        if isinstance(note, str) and isinstance(examples, list) and all(map(_is_request, examples)):
            return note, examples
    if warn is not None:
        warn(f"config.json: playground has no effect: expected {EXPECTED}")
    return "", []


def _is_request(example: Json) -> bool:
    if not isinstance(example, Mapping) or not isinstance(example.get("parameters", {}), Mapping):
        return False
    values, messages = example.get("instances", example.get("messages")), example.get("messages", [])
    if not isinstance(values, list) or not values or not isinstance(messages, list):
        return False
    return all(isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in messages)


def fits(example: Mapping[str, Json], parameters: Sequence[str], *, chats: bool) -> bool:
    """Whether a task has an example's parameters: a model can be served for another task than that of its examples."""
    return chats if "messages" in example else example.get("parameters", {}).keys() <= set(parameters)
