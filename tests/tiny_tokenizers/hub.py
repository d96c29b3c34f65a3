"""A hub's cache on disk, and a small hub on 127.0.0.1 that records its requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


def lay_out_cache(cache: Path, repo: str, commit: str, refs: list[str], files: Mapping[str, bytes]) -> Path:
    """Write files as one commit of a repository into a hub cache: refs, blobs and snapshots of links."""
    storage = cache / ("models--" + repo.replace("/", "--"))
    snapshot = storage / "snapshots" / commit
    for name, content in files.items():
        blob = storage / "blobs" / hashlib.sha1(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(*[".."] * (len(link.relative_to(storage).parts) - 1)) / "blobs" / blob.name)
    for ref in refs:
        path = storage / "refs" / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    return snapshot


@dataclass
class Hub:
    """A hub with one repository. ``revisions`` are commits by name, ``requests`` are (method, path, authorization)."""

    repo: str
    revisions: Mapping[str, str]
    files: Mapping[str, bytes]
    token: str | None = None
    gated: bool = False
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    endpoint: str = ""

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the response, as in the hub's API."""
        if f"/{self.repo}/" not in f"{path}/":
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if self.token and authorization != f"Bearer {self.token}":
            return (403, {"X-Error-Code": "GatedRepo"}, b"") if self.gated else (401, {}, b"")
        kind, _, rest = path.split(f"{self.repo}/")[1].partition("/")
        revision, _, name = rest.partition("/")
        commit = self.revisions.get(revision, revision if revision in self.revisions.values() else None)
        if commit is None:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        if kind == "resolve":
            content = self.files[name]
            etag = f'"{hashlib.sha1(content).hexdigest()}"'
            return 200, {"X-Repo-Commit": commit, "ETag": etag}, content
        listing: Any = {"id": self.repo, "sha": commit, "siblings": [{"rfilename": key} for key in self.files]}
        if kind == "tree":
            listing = [
                {"type": "file", "path": key, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for key, data in self.files.items()
            ]
        return 200, {"Content-Type": "application/json"}, json.dumps(listing).encode()


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Runs the hub on a free port, and sets ``hub.endpoint``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            path = unquote(urlsplit(self.path).path)
            authorization = self.headers.get("Authorization")
            hub.requests.append((self.command, path, authorization))
            status, headers, body = hub.answer(path, authorization)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = reply

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
