"""The time and memory of one rendering of a chat template, and checks of sizes before a value is built."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.runtime import Context

MAX_SECONDS = 5.0
"""Time limit of one rendering. A typical template takes a millisecond for a long chat."""
MAX_BYTES = 2**28
"""Limit of the memory of all values that one rendering computes, whether it keeps them or not."""
MAX_CHARACTERS = 4_000_000
"""Size limit of a prompt, and of each value that a template computes."""
MAX_SLOW_CHARACTERS = 200_000
"""Input size limit for operations that take seconds for a million characters."""
MAX_BITS = 100_000
"""Size limit of integers. Division of two integers with a million bits takes a second."""
MAX_STEPS = 100_000_000
"""Limit of the comparisons of one search, about 0.1 s."""
MAX_PRECISION = 1000
"""Limit of decimal places. A float has at most 324, and an integer is multiplied by as many tens."""
MAX_FORMAT_CHARACTERS = 1000
"""Size limit of a date's format."""
BUDGET = " budget"
"""Context variable with the RenderBudget. The space in its name makes it inaccessible to templates."""
OBJECT_BYTES = 64
"""Memory of a small object, such as a short text or an empty list."""
TEXT = (str, bytes, bytearray)
SCALARS = (*TEXT, int)
CONTAINERS: tuple[type[Any], ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
SIZED: tuple[type[Any], ...] = (*TEXT, *CONTAINERS)
WITH_WIDTH = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes", "batch", "slice", "indent"})
"""Filters and methods with a width or count as an argument."""
SEARCHING = frozenset({"strip", "lstrip", "rstrip", "trim", "rfind", "rindex", "rsplit", "rpartition"})
"""Filters and methods that compare each character of a text with each character of the argument, in the worst case."""
ENCODINGS = frozenset("ascii latin-1 latin1 iso-8859-1 utf-8 utf8 utf-16 utf-32".split())
"""Encodings in linear time. Those of domain names take minutes for 20,000 characters."""


class OverBudget(Exception):
    """Raised if a template exceeds its time or size limit."""


class RenderBudget:
    """The time and memory that remain for one rendering.

    The time begins with the object, or with ``start``.
    """

    __slots__ = ("_cancelled", "_deadline", "bytes", "seconds")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = MAX_SECONDS if seconds is None else seconds
        self.bytes = MAX_BYTES
        self._cancelled = False
        self.start()

    def start(self) -> None:
        """Begins the time again. A cancelled rendering ends at its first check."""
        self._deadline = 0.0 if self._cancelled else time.monotonic() + self.seconds

    def cancel(self) -> None:
        """Ends the rendering at its next check. Thread-safe."""
        self._cancelled, self._deadline = True, 0.0

    def check_time(self) -> None:
        """Raises OverBudget after the deadline."""
        if time.monotonic() > self._deadline:
            raise OutOfTime(f"more than {self.seconds:g} s")

    def spend(self, size: int) -> None:
        """Charges memory. Raises OverBudget if more is used than there is."""
        self.bytes -= size
        if self.bytes < 0:
            raise OverBudget(f"values of more than {MAX_BYTES} bytes")

    def spend_value(self, value: Any, *, with_items: bool = True) -> None:
        """Charges the memory of a new text, integer or container, with its items if they are new too."""
        if isinstance(value, SCALARS):
            self.spend(sys.getsizeof(value))
        elif isinstance(value, CONTAINERS):
            self.spend(OBJECT_BYTES * (1 + len(value)) if with_items else sys.getsizeof(value))


class OutOfTime(OverBudget):
    """Raised if a template exceeds its time limit."""


def check_time(context: Context) -> None:
    """Raises OutOfTime after the deadline."""
    context[BUDGET].check_time()


def check_size(size: float, limit: float = MAX_CHARACTERS) -> None:
    """Raises OverBudget for a size over the limit. Called before building the string."""
    if size > limit:
        raise OverBudget(f"more than {limit} characters")


def length_of(value: Any, context: Context, limit: float = MAX_CHARACTERS) -> int:
    """Upper bound of the length of ``value`` as text. A shared list counts each time it appears. Raises OverBudget."""
    size, remaining = (len(value), []) if isinstance(value, str) else (0, [value])
    while remaining:
        item = remaining.pop()
        if isinstance(item, TEXT):
            size += len(item)
        elif not isinstance(item, CONTAINERS):
            size += 8
        else:
            size += 8 * len(item) + 8
            check_size(size, limit)
            remaining += item
            if isinstance(item, dict):
                remaining += item.values()
            if len(remaining) > 1000:
                check_time(context)
    check_size(size, limit)
    return size


def check_numbers(name: str, left: Any, right: Any) -> None:
    """Checks the size of two integers before an operation that takes quadratic time. Raises OverBudget."""
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 0) if name == "**" else left.bit_length() + right.bit_length()
        check_size(bits, MAX_BITS)


def check_output(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], context: Context) -> None:
    """Checks the output size of a filter or method, and its time, before it runs. Raises OverBudget."""
    arguments = (*args, *kwargs.values())
    numbers = [abs(argument) for argument in arguments if isinstance(argument, int)]
    longest = max((length_of(argument, context) for argument in arguments if not isinstance(argument, int)), default=0)
    is_text = isinstance(value, TEXT)
    count: Callable[[Any], int] = value.count if is_text else lambda part: 0
    if name in WITH_WIDTH:
        part = {"expandtabs": "\t", "indent": "\n"}.get(name)
        rows = 1 if part is None else 1 + count(part if isinstance(value, str) else part.encode())
        check_size(rows * max(*numbers, longest, 1))
    elif not is_text:
        return
    elif name in SEARCHING:
        check_size(len(value) * longest, MAX_STEPS)
    elif name in ("encode", "decode"):
        if any(isinstance(argument, str) and argument.lower() not in ENCODINGS for argument in arguments[:1]):
            raise OverBudget(f"another encoding than {', '.join(sorted(ENCODINGS))}")
    elif name in ("format", "format_map"):
        check_format(value, arguments, context)
    elif name == "replace":
        old = args[0] if args else kwargs.get("old", kwargs.get("s", ""))
        matches = count(old) if isinstance(old, type(value)) else len(value)
        check_size(len(value) + matches * longest)
    elif name == "join" and not isinstance(args[0] if args else "", TEXT):
        items = len(args[0]) if hasattr(args[0], "__len__") else 0
        check_size(longest + items * len(value))
    elif name in ("join", "wordwrap", "translate"):
        check_size(len(value) * max(longest, 1))


def check_format(template: str | bytes | bytearray, arguments: Iterable[Any], context: Context) -> None:
    """Checks the output size of a format string. Raises OverBudget.

    Assumes that each number in it is a width, and that each field has the length of the longest value.
    """
    text = template if isinstance(template, str) else template.decode("latin-1")
    check_size(sum(int(width) if len(width) < 9 else MAX_CHARACTERS + 1 for width in re.findall(r"\d+", text)))
    values: list[Any] = []
    for argument in arguments:
        is_tuple = isinstance(argument, tuple)
        values += argument.values() if isinstance(argument, Mapping) else argument if is_tuple else (argument,)
    if "*" in text or re.search(r"\{[^{}]*\{", text):
        check_size(sum(abs(value) for value in values if isinstance(value, int)))
    longest = max((length_of(value, context) for value in values), default=0)
    check_size(len(text) + (text.count("%") + text.count("{")) * longest)
