"""Bodies that register and list regions of system shared memory over HTTP. No sockets.

A region's key is the name of its file in /dev/shm after a slash; a region is its whole file.

Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_shared_memory.md
"""

from __future__ import annotations

import orjson

from hf_transformer.errors import PredictorError


def encode_registration(key: str, byte_size: int) -> bytes:
    """The body of a request that registers a file; the region's name is in the path."""
    return orjson.dumps({"key": key, "offset": 0, "byte_size": byte_size})


def parse_region_names(body: bytes | memoryview) -> list[str]:
    """The names in the status of all regions. Raises PredictorError where the body is no such thing."""
    try:
        return [str(entry["name"]) for entry in orjson.loads(body)]
    except (ValueError, TypeError, KeyError) as exc:
        raise PredictorError(f"the predictor's list of shared-memory regions is malformed: {exc}") from exc
