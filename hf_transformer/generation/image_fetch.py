"""Fetching of images from the hosts of --allowed_image_hosts.

A client must not make the service ask other servers. So the host and port of a URL are compared with the list before a
name is resolved, redirects are errors, and a name that leads to a private address is refused: the connection goes to
the address that was checked. An address itself in the list may be private.

Source: https://cheatsheetseries.owasp.org/cheatsheets/Server_Side_Request_Forgery_Prevention_Cheat_Sheet.html
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import SplitResult, urlsplit

import httptools

from hf_transformer import __version__
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.generation.images import ImageLimits

PORT: Final = 443
READ_BYTES: Final = 2**16
MAX_HEAD_BYTES: Final = 2**15
MAX_URL: Final = 4096
NAT64: Final = IPv6Network("64:ff9b::/96")
GLOBAL: Final = IPv6Network("2000::/3")
"""Public addresses of IPv6 (RFC 4291). Others may contain an address of IPv4, such as 64:ff9b:1::/48."""


async def fetch_image(url: str, limits: ImageLimits, path: Path) -> bytes:
    """Fetches a file over https. The caller bounds the time.

    Raises:
        InvalidInput: the URL's host is not allowed, or does not answer with the file.
        TooLarge: the file has too many bytes.
    """
    parts, host, port = _read_url(url, limits.hosts, path)
    address = await _resolve(host, port, path)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == PORT else f"{shown}:{port}"
    head = f"GET {target} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: hf_transformer/{__version__}\r\n"
    head += "Accept: image/*\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
    reader = _Reader(limits, path)
    try:
        context = await asyncio.to_thread(ssl.create_default_context)
        source, sink = await asyncio.open_connection(address, port, ssl=context, server_hostname=host)
        try:
            sink.write(head.encode("ascii"))
            while not reader.is_complete and (data := await source.read(READ_BYTES)):
                reader.feed(data)
            reader.end()
        finally:
            sink.close()
            with suppress(OSError, ssl.SSLError):
                await sink.wait_closed()
    except (OSError, ssl.SSLError, httptools.HttpParserError, UnicodeEncodeError) as error:
        raise _unanswered(path, type(error).__name__) from None
    if not reader.is_complete:
        raise _unanswered(path, "a part of it")
    return b"".join(reader.parts)


def _unanswered(path: Path, got: str) -> InvalidInput:
    return InvalidInput(path, "a URL whose host answers with an image", got)


def _read_url(url: str, hosts: tuple[str, ...], path: Path) -> tuple[SplitResult, str, int]:
    """Returns a URL in parts, its host and its port. Raises InvalidInput unless its host is allowed."""
    expected = "an image as a data URL (data:image/png;base64,...)"
    if hosts:
        expected += f", or an https URL of {', '.join(hosts)[:200]} (--allowed_image_hosts)"
    hint = "" if hosts else "the service fetches no images without --allowed_image_hosts"
    try:
        parts = urlsplit(url[:MAX_URL])
        host, port = (parts.hostname or "").rstrip("."), parts.port or PORT
    except ValueError:
        raise InvalidInput(path, expected, "no valid URL", hint) from None
    if parts.scheme != "https":
        raise InvalidInput(path, expected, f"the scheme {parts.scheme[:20]!r}" if parts.scheme else "no URL", hint)
    known = {one.lower().removesuffix(f":{PORT}") for one in hosts}
    shown = f"[{host}]" if ":" in host else host
    if (shown if port == PORT else f"{shown}:{port}") not in known:
        raise InvalidInput(path, expected, "another host", hint)
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url or parts.username is not None:
        raise InvalidInput(path, f"a URL in ASCII of at most {MAX_URL} characters, without a user", "another one")
    return parts, host, port


async def _resolve(host: str, port: int, path: Path) -> str:
    """Returns an address of a host. Raises InvalidInput for a name with a private address."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _unanswered(path, "no address of the host") from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not _is_public(ip_address(address.partition("%")[0])):
            hint = "an operator may allow the address itself"
            raise InvalidInput(path, "a host with public addresses", "a private address", hint)
    return addresses[0]


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address, and the IPv4 address that it may contain, is public."""
    if isinstance(address, IPv6Address):
        if address in NAT64:
            return _is_public(IPv4Address(address.packed[-4:]))
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if inner and not _is_public(inner):
            return False
        if address not in GLOBAL and not address.ipv4_mapped:
            return False
        address = address.ipv4_mapped or address
    return address.is_global and not address.is_multicast


class _Reader:
    """Callbacks of httptools: collects the body of a response."""

    def __init__(self, limits: ImageLimits, path: Path) -> None:
        self._limits = limits
        self._path = path
        self._parser = httptools.HttpResponseParser(self)
        self._head = self._size = 0
        self._fault: Exception | None = None
        self._has_head = self._has_length = self.is_complete = False
        self.parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Reads bytes. Raises InvalidInput for another status, and TooLarge."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._fault is None:
                raise
        if not self._has_head:
            self._head += len(data)
            if self._head > MAX_HEAD_BYTES:
                raise _unanswered(self._path, "a head that is too long")
        if self._fault is not None:
            raise self._fault

    def end(self) -> None:
        """The end of the connection, which is that of a body without a length."""
        self.is_complete = self.is_complete or (self._has_head and not self._has_length)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._has_length = self._has_length or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._has_head = True
        status = self._parser.get_status_code()
        if status != 200:
            redirect = "; the service follows no redirects" if 300 <= status < 400 else ""
            self._fault = _unanswered(self._path, f"the status {status}{redirect}")

    def on_body(self, body: bytes) -> None:
        if self._fault is not None:
            return
        self._size += len(body)
        try:
            self._limits.check_bytes(self._size, self._path)
        except Exception as error:
            self._fault = error
            return
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
