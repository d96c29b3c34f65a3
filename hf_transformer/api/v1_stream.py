"""V1's predict as a stream, with ``"parameters": {"stream": true}``: a JSON object per line (application/jsonl).

    {"instance": 0, "text": " paris"}
    {"instance": 0, "text": ".", "finish_reason": "stop", "generated_text": "The capital of france is paris."}

``instance`` counts the instances, ``choice`` beside it the texts of one where num_return_sequences asks for several.
Lines of different texts come as they are made, those of one text in their order; its last one has ``finish_reason``
(stop, length) and ``generated_text``, which all of its ``text`` make together. An error in the middle is {"error": ...}
and the last line.

The runtime guide of KServe reads such a stream line by line (Streaming Responses), and leaves their content open.
"""

from __future__ import annotations

import orjson

from hf_transformer.api.base import Model, error_json
from hf_transformer.api.generation import TextStream, generating
from hf_transformer.api.streaming import LINES
from hf_transformer.generation.types import Piece
from hf_transformer.types import Context, Json, Query


class V1Stream(TextStream):
    """The answer to one request."""

    __slots__ = ("_several", "_so_far")

    content_type = LINES

    def __init__(self, model: Model, query: Query, context: Context) -> None:
        """Raises RequestError for a request that is wrong in itself."""
        request = generating(model, "a stream").request(query)
        super().__init__(model, request, context)
        self._so_far = [[""] * request.sampling.n for _ in request.prompts]
        self._several = request.sampling.n > 1

    def piece(self, piece: Piece) -> bytes:
        so_far = self._so_far[piece.prompt]
        so_far[piece.choice] += piece.text
        if not piece.text and piece.finish is None:
            return b""
        line: dict[str, Json] = {"instance": piece.prompt}
        if self._several:
            line["choice"] = piece.choice
        line["text"] = piece.text
        if piece.finish is not None:
            line |= {"finish_reason": piece.finish, "generated_text": so_far[piece.choice]}
        return orjson.dumps(line) + b"\n"

    def error(self, message: str, status: int) -> bytes:
        return error_json(message, status) + b"\n"
