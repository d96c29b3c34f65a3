"""Pieces on their way from several continuations to the one that reads them."""

from __future__ import annotations

import asyncio
from collections import deque

from hf_transformer.generation.types import Piece


class Channel:
    """A queue of so many pieces: who writes waits while it is full, who reads while it is empty. Of one event loop.

    Once it is closed, what is in it is read, then the error if there is one.
    """

    def __init__(self, size: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._size = size
        self._pieces: deque[Piece] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._error: BaseException | None = None
        self.closed = False

    @property
    def full(self) -> bool:
        """Whether it is the reader that others wait for."""
        return len(self._pieces) >= self._size

    async def put(self, piece: Piece) -> None:
        """Adds a piece as soon as there is room; one that comes after the end is dropped."""
        while self.full and not self.closed:
            await self._wait(self._writers)
        if self.closed:
            return
        self._pieces.append(piece)
        self._wake_reader()

    async def _wait(self, writers: deque[asyncio.Future[None]]) -> None:
        turn = self._loop.create_future()
        writers.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake_writer()  # its turn is another's
            raise
        finally:
            if turn in writers:
                writers.remove(turn)

    async def get(self) -> Piece | None:
        """The next piece, or None at the end. Raises the error that it was closed with, once."""
        while not self._pieces:
            if self.closed:
                self._raise_error()
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        piece = self._pieces.popleft()
        if self._writers:
            self._wake_writer()
        return piece

    def close(self, error: BaseException | None = None) -> None:
        """Nothing more comes. Only the first call counts."""
        if self.closed:
            return
        self.closed = True
        self._error = error
        self._wake_reader()
        for turn in self._writers:
            if not turn.done():
                turn.set_result(None)

    def _raise_error(self) -> None:
        """Keeps it no longer: its traceback leads to who reads, and from there to this channel."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        while self._writers:
            turn = self._writers.popleft()
            if not turn.done():
                turn.set_result(None)
                return
