"""How many bytes the key-value caches of all texts may have together, and which of them may grow.

A cache is counted with what there is memory for by now, and not with all that it may come to: most texts end long
before. So there may be more texts than could all come to their largest size, and one that may not grow now waits until
others have ended. That they never all wait for each other is the banker's algorithm (E. W. Dijkstra, EWD 623): nothing
is granted that does not leave an order in which each text could go on to its end, with what those before it have given
back. The first one of that order is never refused anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hf_transformer.errors import TooLarge, TooManyRequests

FLAG = "--max_cache_bytes"

Wake = Callable[[], object]


class Share:
    """One text's part of the budget: ``size`` bytes by now, and at most ``most``."""

    __slots__ = ("_budget", "most", "size")

    def __init__(self, budget: CacheBudget, size: int, most: int) -> None:
        self._budget = budget
        self.size = size
        self.most = most

    def grow(self, size: int, wake: Wake) -> bool:
        """Takes so many bytes in all, no more than ``most``.

        Returns:
            Whether they are its own now. If not ``wake`` is called once they are, unless it is closed before.
        """
        return size <= self.size or self._budget.grow(self, size, wake)

    def close(self) -> None:
        """Gives all of it back. To be called once."""
        self._budget.close(self)


class CacheBudget:
    """``limit`` bytes for the caches of all texts. For one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shares: set[Share] = set()
        self._waiting: dict[Share, tuple[int, Wake]] = {}
        self._promised = 0
        self.held = 0
        """Bytes that are taken."""

    def check(self, caches: Sequence[tuple[int, int]]) -> None:
        """Raises TooLarge for texts of one request that could not be written at the same time if there were no others.

        Args:
            caches: bytes of each that it begins with, and at most has.
        """
        needed = least(caches)
        if needed > self._limit:
            raise TooLarge(
                f"the key-value caches of this request need {needed} bytes, {FLAG} allows {self._limit}: ask for fewer "
                "texts, or for fewer tokens"
            )

    def open(self, size: int, most: int) -> Share:
        """A part for another text.

        Raises:
            TooLarge: it may come to more than there ever is.
            TooManyRequests: there is no room now, or texts that are being written wait for some.
        """
        self.check([(size, most)])
        begun = [(one.size, one.most) for one in self._shares]
        if self._waiting or not self._fits(self._promised + most, [*begun, (size, most)]):
            raise TooManyRequests(
                f"the key-value caches of the texts in flight have {self.held} bytes, {FLAG} allows {self._limit}: "
                f"there is no room now for one of {size} bytes that may come to {most}; try again"
            )
        share = Share(self, size, most)
        self._shares.add(share)
        self._promised += most
        self.held += size
        return share

    def grow(self, share: Share, size: int, wake: Wake) -> bool:
        """See Share.grow."""
        more = size - share.size
        caches = ((one.size + (more if one is share else 0), one.most) for one in self._shares)
        if self.held + more > self._limit or not self._fits(self._promised, caches):
            self._waiting[share] = size, wake
            return False
        self._waiting.pop(share, None)
        self.held += more
        share.size = size
        return True

    def close(self, share: Share) -> None:
        """See Share.close. Those that wait get theirs, who has waited longest first; what one takes never makes room
        for another, so that one look at each is enough."""
        self._shares.remove(share)
        self._waiting.pop(share, None)
        self._promised -= share.most
        self.held -= share.size
        for waiting, (size, wake) in [*self._waiting.items()]:
            if waiting in self._waiting and self.grow(waiting, size, wake):
                wake()

    def _fits(self, promised: int, caches: Iterable[tuple[int, int]]) -> bool:
        """Whether these could all be written to their ends; ``promised`` is what they come to together."""
        return promised <= self._limit or least(caches) <= self._limit


def least(caches: Iterable[tuple[int, int]]) -> int:
    """The fewest bytes with which texts can all be written to their ends, if each of those that have the least before
    them can go first.

    Args:
        caches: bytes that each has now, and that it may come to.
    """
    ordered = sorted(caches, key=lambda one: one[1] - one[0])
    held = sum(size for size, _ in ordered)
    needed = held
    for size, most in ordered:
        needed = max(needed, held + most - size)
        held -= size
    return needed
