"""What a model's config.json has for the playground: a note about the model, and requests to try."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hf_transformer.types.request import Json


def read_playground(
    model_config: Mapping[str, Json], warn: Callable[[str], object] = lambda text: None
) -> tuple[str | None, list[Json]]:
    """The ``note`` and the ``examples`` of ``playground`` in config.json, None and [] if it has none.

    An example is the body of a V1 request, or has the ``messages`` of a chat. Invalid values are left out, since
    texts of a page must not keep a model from its service; ``warn`` gets a message for each.
    """
    section = model_config.get("playground", {})
    if not isinstance(section, Mapping):
        warn("config.json: playground is not an object")
        return None, []
    note, examples = section.get("note"), section.get("examples", [])
    if not isinstance(note, str | None):
        warn("config.json: playground.note is not text")
        note = None
    if not isinstance(examples, list):
        warn("config.json: playground.examples is not a list")
        examples = []
    valid = [example for example in examples if _is_request(example)]
    if len(valid) < len(examples):
        warn("config.json: playground.examples has a value without a list of instances, or of messages with content")
    return note, valid


def fits(example: Mapping[str, Json], parameters: Sequence[str], *, chats: bool) -> bool:
    """Whether a task has the parameters of an example: a model can be served for another task than its examples'."""
    return chats if "messages" in example else example.get("parameters", {}).keys() <= set(parameters)


def _is_request(example: Json) -> bool:
    if not isinstance(example, Mapping):
        return False
    instances, messages = example.get("instances"), example.get("messages")
    if isinstance(instances, list):
        return bool(instances) and isinstance(example.get("parameters", {}), Mapping)
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(message, Mapping) and isinstance(message.get("content"), str) for message in messages)
    )
