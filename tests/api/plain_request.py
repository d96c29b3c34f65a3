"""A request without a connection, for tests of the layers behind the server."""

from __future__ import annotations

from hf_transformer.types.http import ClientGone, HeaderLines, Request


class PlainRequest(Request):
    """A request whose body comes in pieces; with ``leaves`` its client disconnects after the last piece.

    ``reads`` counts the calls of ``read``.
    """

    def __init__(
        self,
        *pieces: bytes,
        method: str = "POST",
        path: str = "/path",
        fields: HeaderLines | None = None,
        scheme: str = "http",
        leaves: bool = False,
    ) -> None:
        super().__init__(method, path, path.encode(), b"", fields or [], "1.1", scheme)
        self._pieces = list(pieces)
        self._leaves = leaves
        self.reads = 0

    async def read(self) -> bytes:
        self.reads += 1
        if self._pieces:
            return self._pieces.pop(0)
        if self._leaves:
            raise ClientGone
        return b""

    @property
    def client(self) -> tuple[str, int] | None:
        return "10.0.0.9", 4711

    @property
    def server(self) -> tuple[str, int] | None:
        return None
