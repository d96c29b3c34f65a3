"""All operations of the HTTP APIs."""

from __future__ import annotations

from hf_transformer.api.document import anthropic, dialects, openai, service, tokenization, v1, v2
from hf_transformer.api.document.operation import PREFIX, Operation

OPERATIONS: tuple[Operation, ...] = (
    *v1.OPERATIONS,
    *tokenization.OPERATIONS,
    *v2.OPERATIONS,
    *openai.OPERATIONS,
    *anthropic.OPERATIONS,
    *service.OPERATIONS,
    *dialects.OPERATIONS,
)
BY_ID = {one.id: one for one in OPERATIONS}


def served(root: str) -> list[Operation]:
    """The operations under the OpenAI API's path ``root``, with their whole paths.

    Without a prefix, the OpenAI API shares paths with the dialects, whose operations have them.
    """
    own = {one.path for one in dialects.OPERATIONS}
    found = [one.at(one.path.replace(PREFIX, root), one.id) for one in OPERATIONS if root or not one.only_with_prefix]
    return [one for one in found if one.path not in own or not BY_ID[one.id].path.startswith(PREFIX)]
