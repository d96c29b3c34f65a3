"""uvicorn's connection, with a way past ASGI for requests that are there; see hf_transformer/short_way.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from hf_transformer.server import plain_heads
from hf_transformer.server.known_heads import END, LONGEST, KnownHead, KnownHeads
from hf_transformer.server.short_cycle import ShortRequest
from hf_transformer.short_way import Begin, ShortWay, short_ways_of

PATIENCE, PAUSE = 256, 32
"""Where so many heads of one connection were not known in a row, one in 32 is looked up: its client puts something new
into each, and a look-up costs 2 us. A client that sends requests of many lengths is known by then."""

MOST_HELD: Final = 4096
"""Bytes of a body that is waited for, where its head came without all of it: many clients write the two by themselves.
--max_bytes_in_flight counts them once they are whole; until then so many for each connection are not counted. An answer
that needs no body, as that to a wrong API key, comes behind it all the same."""


class DefaultHeaders:
    """The lines that begin every response. uvicorn makes a new list of headers every second."""

    def __init__(self) -> None:
        self.headers: Sequence[tuple[bytes, bytes]] | None = None
        """Those that the lines are of."""
        self.lines = b""
        self.close = False
        """Whether they end the connection, as they do when the server ends."""

    def update(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes over uvicorn's."""
        self.headers = headers
        self.lines = b"".join(b"%s: %s\r\n" % pair for pair in headers)
        self.close = any(name == b"connection" and b"close" in value.lower() for name, value in headers)


class Held:
    """A request of which some of the body is missing: what there is of it, and the ``length`` that the body will have.

    Whoever looks at the connection meanwhile sees a request that has begun and is not all there, as with any other.
    """

    __slots__ = ("begin", "body", "head", "length")

    def __init__(self, begin: Begin, head: bytes, body: bytes, length: int) -> None:
        self.begin = begin
        self.head = head
        self.body = body
        self.length = length


class ShortWayProtocol(HttpToolsProtocol):
    """One connection. The first request of a read goes its short way, if the application has one for it, all of it is
    there and no other request is before it; any other goes uvicorn's.

    Where such a request is all that was read, it is not parsed if its head was there before, or is a plain one. Then it
    may also come in several reads, if its body is a small one. Where something else than the rest of it comes, the
    parser gets it as if it had from the beginning.
    """

    def __init__(self, config: Any, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self._default_headers: DefaultHeaders = config.default_headers
        self._ways: Mapping[bytes, ShortWay] = short_ways_of(self.app)
        self._known: KnownHeads = config.known_heads
        self._plain = self._known.plain
        self._longest = min(plain_heads.LONGEST, config.client_limits.header_bytes)
        self._learning: tuple[bytes, int] | None = None
        """A head that this read begins with and is worth keeping, and how many bytes stand behind it."""
        self._held: Held | None = None
        # A longer one is refused at once, by its head.
        self._most_held = min(MOST_HELD, config.client_limits.body_bytes)
        self._unknown = 0
        """Reads in a row that began with heads that are not known."""
        self._way: ShortWay | None = None
        self._first = True
        self._body = b""
        self._refused = False
        """Whether the client was told off: nothing that it has sent is begun any more."""
        self.running: RequestResponseCycle | ShortRequest | None = None
        """The request that was begun last, on whichever way."""

    @property
    def on_short_way(self) -> bool:
        """Whether the request that is being read may still be short."""
        return self._way is not None

    def on_headers_complete(self) -> None:
        way = self._ways.get(self.url)
        if way is not None and self._first and self._may_be_short():
            # Of many that come in one read the others take their turns: they are work without a pause otherwise.
            self._first = False
            self._way = way
            self._body = b""
        else:
            # Set by one that was answered within this read: it would end this one.
            self._unset_keepalive_if_required()
            super().on_headers_complete()

    def _may_be_short(self) -> bool:
        parser, before = self.parser, self.cycle
        return (
            (before is None or before.response_complete)
            and parser.get_method() == b"POST"
            and parser.get_http_version() == "1.1"
            and not (self.expect_100_continue or parser.should_upgrade() or self.flow.write_paused)
            and not self.transport.is_closing()
        )

    def on_body(self, body: bytes) -> None:
        if self._way is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        way = self._way
        if way is None:
            super().on_message_complete()
            return
        self._way = None
        body, self._body = self._body, b""
        begin, keep_alive = way(self.headers), self.parser.should_keep_alive()
        if self._learning is not None:
            head, behind = self._learning
            if behind == len(body) and keep_alive:  # so the body is all that stands there
                self._known.keep(head, self.headers, KnownHead(begin, behind))
        self._begin(begin, body, keep_alive)

    def _begin(self, begin: Begin, body: bytes, keep_alive: bool) -> None:
        request = ShortRequest(self, keep_alive)
        self.cycle = self.scope = request  # type: ignore[assignment]  # has what is used of one
        self.running = request
        cancel = begin(body, "http" if self.scheme is None else self.scheme, request)
        if not request.response_complete:
            request.cancel = cancel

    def data_received(self, data: bytes) -> None:
        self._learning = None
        before: Any = self.cycle
        # Nothing was read yet, or a short request last and no byte behind it: the parser is where a request begins.
        if (
            (before is None or before.response_complete)
            and before is self.scope
            and not self._refused
            and self._takes(data)
        ):
            return
        if self._held is None or not self._goes_on(self._held, data):
            self.parse(data)

    def parse(self, data: bytes) -> None:
        """Has the parser of HTTP go on with what was read."""
        self._first = True
        super().data_received(data)
        if self._way is not None:
            self._go_long()

    def _takes(self, data: bytes) -> bool:
        """Begins the request that a read is, or holds what there is of one, if its head is known or plain. One that may
        be kept is noted."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        if self._unknown < PATIENCE or not (self._unknown + 1) % PAUSE:
            head, end, body = data.partition(END)
            if end and len(head) <= LONGEST:
                known = self._known.find(head)
                if known is not None:
                    if len(body) == known.length:
                        self._unknown = 0
                        if self.timeout_keep_alive_task is not None:
                            self._unset_keepalive_if_required()
                        self._begin(known.begin, body, True)
                        return True
                    if len(body) < known.length <= self._most_held:
                        self._unknown = 0
                        self._hold(Held(known.begin, head + END, body, known.length))
                        return True
                    self._unknown += 1
                    return False
                if self._known.comes_again(head):
                    self._learning = head, len(body)
        self._unknown += 1
        return self._takes_plain(data)

    def _takes_plain(self, data: bytes) -> bool:
        """The same for a head that can be read without the parser; see plain_heads.py."""
        if not self._ways or (data.endswith(END) and not plain_heads.says_short(data, self._longest)):
            return False
        plain = self._plain.read(data, self._longest, self._most_held)
        way = None if plain is None else self._ways.get(plain[0])
        if plain is None or way is None:
            return False
        _, headers, end, length = plain
        begin = way(headers)
        if self._learning is not None:
            self._known.keep(self._learning[0], headers, KnownHead(begin, length))
        if len(data) - end < length:
            self._hold(Held(begin, data[:end], data[end:], length))
        else:
            self._unset_keepalive_if_required()
            self._begin(begin, data[end:], True)
        return True

    def _hold(self, held: Held) -> None:
        """Waits for the rest of a body."""
        self._unset_keepalive_if_required()
        self._held = self.scope = held  # type: ignore[assignment]  # a request that is not the one before

    def _goes_on(self, held: Held, data: bytes) -> bool:
        """Begins the request that is held, or holds it on. Not if it is not alone: the parser has had it then."""
        body = held.body + data
        missing = held.length - len(body)
        if missing < 0 or self.flow.write_paused or self.transport.is_closing():
            self.let_go()
            return False
        if missing:
            held.body = body
        else:
            self._held = None
            self._begin(held.begin, body, True)
        return True

    def let_go(self) -> None:
        """Has the parser read what is held: the request goes uvicorn's way, as if it had from the beginning."""
        held, self._held = self._held, None
        if held is not None:
            self.parse(held.head + held.body)

    def _go_long(self) -> None:
        """The body is not whole: the request goes uvicorn's way, as if it had from the beginning."""
        body, self._way, self._body = self._body, None, b""
        if self._refused or self.transport.is_closing():
            return
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def send_response(self, request: ShortRequest, status: int, lines: bytes, body: bytes) -> None:
        """Writes it, and goes on with whatever comes next."""
        defaults = self._default_headers
        headers = self.server_state.default_headers
        if headers is not defaults.headers:
            defaults.update(headers)
        keep = request.keep_alive and not defaults.close
        said = b"" if keep or defaults.close else b"connection: close\r\n"
        length = b"content-length: %d\r\n\r\n" % len(body)
        self.transport.write(b"".join((STATUS_LINE[status], defaults.lines, lines, said, length, body)))
        if not keep:
            self.transport.close()
        self._answered()

    def begin_response(self, request: ShortRequest, status: int, lines: bytes, body: bytes) -> None:
        """Writes the head of one that is sent in chunks, and the first chunk unless it is empty."""
        defaults = self._default_headers
        headers = self.server_state.default_headers
        if headers is not defaults.headers:
            defaults.update(headers)
        said = b"" if request.keep_alive or defaults.close else b"connection: close\r\n"
        if defaults.close:
            request.keep_alive = False
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        head = (STATUS_LINE[status], defaults.lines, lines, said, b"transfer-encoding: chunked\r\n\r\n", chunk)
        self.transport.write(b"".join(head))

    def end_response(self, request: ShortRequest, chunks: bytes) -> None:
        """Writes the last chunks and their end, and goes on as after any response."""
        self.transport.write(chunks + b"0\r\n\r\n")
        if not request.keep_alive:  # the server may have begun to end meanwhile
            self.transport.close()
        self._answered()

    def _answered(self) -> None:
        """What uvicorn does after a response, without its timer for idle connections: the sweeper finds them."""
        if self.pipeline or not self.timeout_keep_alive:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.flow.read_paused and not self.transport.is_closing():
            self.flow.resume_reading()
