"""What a predictor says of itself and of its models over REST: bodies -> shapes. No sockets."""

from __future__ import annotations

import orjson

from hf_transformer.errors import PredictorError
from hf_transformer.protocol.datatypes import Malformed, shorten
from hf_transformer.types import Json, RepositoryEntry, ServerDescription


def parse_server(body: bytes | memoryview) -> ServerDescription:
    """The answer of GET /v2. Raises PredictorError where it is none."""
    try:
        about = _parsed(body)
        if not isinstance(about, dict) or not isinstance(about.get("name"), str):
            raise Malformed(f"{shorten(about)} is not the description of a server")
        extensions = about.get("extensions") or []
        if not isinstance(extensions, list):
            raise Malformed("extensions is no list")
        return ServerDescription(about["name"], str(about.get("version", "")), tuple(map(str, extensions)))
    except Malformed as exc:
        raise PredictorError(f"the predictor's description of itself is malformed: {exc}") from exc


def parse_index(body: bytes | memoryview) -> list[RepositoryEntry]:
    """The answer of POST /v2/repository/index, Triton's extension. Raises PredictorError where it is none."""
    try:
        entries = _parsed(body)
        if not isinstance(entries, list):
            raise Malformed("the index is no list")
        return [_entry(entry) for entry in entries]
    except Malformed as exc:
        raise PredictorError(f"the predictor's list of models is malformed: {exc}") from exc


def _entry(entry: Json) -> RepositoryEntry:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise Malformed(f"{shorten(entry)} is not a model with a name")
    version, state, reason = (str(entry.get(key, "")) for key in ("version", "state", "reason"))
    return RepositoryEntry(entry["name"], version, state, reason)


def _parsed(body: bytes | memoryview) -> Json:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise Malformed(f"body: not JSON: {exc}") from exc
