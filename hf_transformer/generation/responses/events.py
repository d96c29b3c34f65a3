"""Events of an answer that is read with a response template. This file imports no parser and no pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hf_transformer.types.request import Json

Role: TypeAlias = Literal["content", "reasoning", "calls", ""]
"""Meaning of a field in APIs; empty for none."""


@dataclass(slots=True)
class CallDelta:
    """A part of a call, the answer's call number ``index`` from 0. ``name`` is set in its first part.

    ``arguments`` continue a JSON object as text. ``id`` is the model's own name of the call, if its format has one.
    """

    index: int
    name: str | None
    arguments: str
    id: str | None = None


@dataclass(slots=True)
class CallEnd:
    """The end of a call. ``is_complete``: its arguments are a whole JSON object."""

    index: int
    is_complete: bool


@dataclass(slots=True)
class TextDelta:
    """New text of the content or the reasoning, without the white space around it."""

    role: Role
    text: str


@dataclass(slots=True)
class RegionOpened:
    """A region of the field ``name`` begins."""

    name: str


@dataclass(slots=True)
class RegionClosed:
    """A region ends. ``value`` and ``text``, its value and its raw text, are set if the parser collects them."""

    name: str
    value: Json = None
    text: str = ""


@dataclass(slots=True)
class Unreadable:
    """A region that does not have the form that the template describes; its text is content."""

    name: str


Event: TypeAlias = TextDelta | CallDelta | CallEnd | RegionOpened | RegionClosed | Unreadable
