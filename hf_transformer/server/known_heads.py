"""Heads of requests that were there before: a client that keeps its connection sends the same bytes again and again.

Nothing is parsed here. What is kept of a head is what the parser of HTTP, or plain_heads.py, said of exactly these
bytes; a request with any other byte in its head is read as if it were the first.

Measured in process with 32 connections: a fifth of the CPU of a short request. A client that puts something new into
each head pays about 1 us for what is looked up in vain.
"""

from __future__ import annotations

from typing import Final

from hf_transformer.server.plain_heads import PlainHeads
from hf_transformer.short_way import Begin, Headers

END: Final = b"\r\n\r\n"
"""How a head ends."""
LONGEST = 2048
"""Bytes of a head that is kept."""
MOST_FIELDS = 32
"""Header fields of one."""
MOST = 512
"""Heads in one of the two generations. Both together were seen to take 1.4 MiB with heads of a usual client (five
fields, 180 bytes), and 15 MiB at most: 32 fields, all of which the predictor gets too."""
MOST_SEEN = 1024
"""Heads of which only is known that they were there, by their hashes; 64 KiB."""
_ODD = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
"""Fields by which the end of a request, or what is done at it, follows from more than its length."""


class KnownHead:
    """What is known of a head: a request with it is one of HTTP/1.1 that goes a short way and keeps the connection.

    ``length`` is that of its body, in bytes; ``begin`` is where it goes.
    """

    __slots__ = ("begin", "length")

    def __init__(self, begin: Begin, length: int) -> None:
        self.begin = begin
        self.length = length


class KnownHeads:
    """The heads that clients of this process send again and again.

    A head is kept when it comes for the second time: one with a field that is new in each request, such as the id of a
    trace, costs a look-up and no more. What is held is bounded: two generations of ``most`` heads each. Those that are
    asked for are in the young one; when that is full it becomes the old one, and the one before is forgotten.

    Heads are kept as they came, with whatever authorization is in them, until others take their places.

    Args:
        most: heads in a generation; with none nothing is ever kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._young: dict[bytes, KnownHead] = {}
        self._old: dict[bytes, KnownHead] = {}
        self._seen: set[int] = set()
        self.plain = PlainHeads()
        """Reads those that are not known."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def find(self, head: bytes) -> KnownHead | None:
        """What is known of a head: the bytes from the first to the empty line, without that."""
        known = self._young.get(head)
        if known is None and head in self._old:
            known = self._old.pop(head)
            self._add(head, known)
        return known

    def comes_again(self, head: bytes) -> bool:
        """Whether an unknown head was asked for before, and may be kept. A wrong yes, for two heads of one hash, does
        no harm."""
        key = hash(head)
        if key in self._seen:
            return self._most > 0
        if len(self._seen) >= MOST_SEEN:
            self._seen.clear()
        self._seen.add(key)
        return False

    def keep(self, head: bytes, headers: Headers, known: KnownHead) -> None:
        """Keeps what was found out of a head, unless its form is not the usual one.

        Args:
            head: of LONGEST bytes at most, in a request in which nothing but the body stood behind it, or will.
            headers: what was found in it.
        """
        lengths = [value for name, value in headers if name == b"content-length"]
        if (
            lengths == [b"%d" % known.length]
            and len(headers) <= MOST_FIELDS
            and _ODD.isdisjoint([name for name, _ in headers])
        ):
            self._add(head, known)

    def _add(self, head: bytes, known: KnownHead) -> None:
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[head] = known
