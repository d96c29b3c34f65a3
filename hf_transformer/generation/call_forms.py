"""Forms of calls for grammars, which hold the arguments of a model's call to the tool's schema."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

_QUOTED = '"{name}"'


@dataclass(frozen=True, slots=True)
class CallForm:
    """The texts around the arguments of a call, which are a JSON object.

    Attributes:
        trigger: the beginning that no other text has.
        head: the text from there to the arguments, with ``{name}`` for the tool's name.
        tail: the text after the arguments.
    """

    trigger: str
    head: str
    tail: str

    def begin(self, name: str) -> str:
        """The text before the arguments of a call."""
        if _QUOTED in self.head:
            return self.trigger + self.head.replace(_QUOTED, orjson.dumps(name).decode())
        return self.trigger + self.head.replace("{name}", name)


HERMES = CallForm("<tool_call>", '\n{"name": "{name}", "arguments": ', "}\n</tool_call>")
"""The form of Hermes and Qwen models: https://github.com/NousResearch/Hermes-Function-Calling"""
