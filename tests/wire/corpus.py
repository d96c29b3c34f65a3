"""Valid and invalid requests of clients."""

from __future__ import annotations

from tests.support.raw_http import HOST_LINE, post, request

GET = request("GET /g?a=1&b=%20 HTTP/1.1", "X-Empty:", "X-Test:  a b ")
CHUNKS = b"4;ext=1\r\ntext\r\nA\r\n0123456789\r\n0\r\n"
CHUNKED_LINE = "Transfer-Encoding: chunked"
CHUNKED = request("POST /c HTTP/1.1", CHUNKED_LINE, body=CHUNKS + b"X-Behind: 1\r\n\r\n")
HIDDEN, HEAD = request("GET /hidden HTTP/1.1"), request("HEAD /h HTTP/1.1")
GZIP = request("POST /z HTTP/1.1", "Transfer-Encoding: gzip, chunked", body=CHUNKS + b"\r\n")
BAD_CHUNK = request("POST /z HTTP/1.1", CHUNKED_LINE, body=b"2\r\nte\r\nzz\r\n")
NO_HOST = b"GET /hidden HTTP/1.1\r\nX: y\r\n\r\n"
UPGRADE = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"

SEQUENCES = {
    "GET": GET,
    "POST": post(b"text"),
    "POST without a body": post(b""),
    "chunked with trailers": CHUNKED,
    "expect": post(b"text", "Expect: 100-continue"),
    "expect of 1.0": request("POST /e HTTP/1.0", "Content-Length: 4", "Expect: 100-continue", body=b"text"),
    "pipelined": b"".join((GET, post(b"one"), CHUNKED, HEAD, post(b"two", "Expect: 100-continue"), GET)),
    "pipelined, the last one closes": GET + post(b"one", "Connection: close") + HIDDEN,
    "HTTP/1.0": request("GET /g HTTP/1.0") + HIDDEN,
    "HTTP/1.0, keep-alive": post(b"a", "Connection: keep-alive", version="1.0") + HIDDEN,
    "HTTP/1.0, chunked": request("POST /p HTTP/1.0", CHUNKED_LINE, body=CHUNKS + b"\r\n") + HIDDEN,
    "HEAD": HEAD * 2,
    "empty lines": b"\r\n\r\n" + GET + b"\r\n" + GET,
    "absolute": request("GET http://other/%61bs?q HTTP/1.1") * 2,
    "absolute, without a path": request("GET http://other HTTP/1.1") + request("GET http://other?q HTTP/1.1"),
    "absolute, without a host": GET + request("GET http:///abs HTTP/1.1") + HIDDEN,
    "OPTIONS *": request("OPTIONS * HTTP/1.1") + GET,
    "CONNECT": request("CONNECT other:443 HTTP/1.1") + HIDDEN,
    "CONNECT with a length": request("CONNECT other:443 HTTP/1.1", f"Content-Length: {len(HIDDEN)}") + HIDDEN,
    "upgrade": request("GET /u HTTP/1.1", *UPGRADE) + GET,
    "upgrade with a body": post(b"text", *UPGRADE) + CHUNKED.replace(b"Host: x", "\r\n".join(UPGRADE).encode()) + GET,
    "upgrade with a request as its body": post(HIDDEN, *UPGRADE) + GET,
    "upgrade of 1.0": request("GET /u HTTP/1.0", *UPGRADE) + HIDDEN,
    "upgrade, gzip": request("POST /u HTTP/1.1", *UPGRADE, "Transfer-Encoding: gzip") + HIDDEN,
    "gzip, chunked": GZIP + HIDDEN,
    "gzip, chunked after another": GET + GZIP + HIDDEN,
    "two codings": request("POST /z HTTP/1.1", CHUNKED_LINE, CHUNKED_LINE) + CHUNKS,
    "length and chunks": request("POST /z HTTP/1.1", "Content-Length: 4", CHUNKED_LINE) + CHUNKS + HIDDEN,
    "two lengths": request("POST /z HTTP/1.1", "Content-Length: 4", "Content-Length: 5") + b"text" + HIDDEN,
    "no HTTP": b"EHLO test\r\n" + HIDDEN,
    "no HTTP after good ones": GET + post(b"one") + b"nonsense\r\n\r\n" + HIDDEN,
    "a bad chunk": BAD_CHUNK + HIDDEN,
    "a bad chunk after another": GET + BAD_CHUNK + HIDDEN,
    "a bad header": request("GET /g HTTP/1.1", "X-Bad : 1") + HIDDEN,
    "a folded header": request("GET /g HTTP/1.1", "X-Long: a", " b") + HIDDEN,
    "no host": NO_HOST + HIDDEN,
    "no host after another": GET + post(b"one") + NO_HOST + HIDDEN,
    "no host, HTTP/1.0": NO_HOST.replace(b"/hidden HTTP/1.1", b"/g HTTP/1.0") + HIDDEN,
    "no host, absolute": NO_HOST.replace(b"/hidden", b"http://other/hidden"),
    "no host, upgrade": NO_HOST.replace(b"X: y", "\r\n".join(UPGRADE).encode()) + HIDDEN,
    "two hosts": request("GET /hidden HTTP/1.1", "Host: y") + HIDDEN,
    "a host twice": request("POST /hidden HTTP/1.1", HOST_LINE, "Content-Length: 4", body=b"text") + HIDDEN,
    "two hosts, HTTP/1.0": request("GET /hidden HTTP/1.0", HOST_LINE) + HIDDEN,
    "two hosts after another": GET + request("GET /hidden HTTP/1.1", "Host:") + HIDDEN,
    "a host that is none": GET + HIDDEN.replace(HOST_LINE.encode(), b"Host: a/b") + HIDDEN,
    "an empty host": GET.replace(HOST_LINE.encode(), b"Host:") * 2,
    "half a head": GET + b"GET /half HTTP/1.1\r\nHo",
    "half a body": GET + post(b"text")[:-1],
}
