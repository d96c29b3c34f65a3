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

from hf_transformer.apis.base import Model, error_json
from hf_transformer.apis.generation import generating, stream_of
from hf_transformer.apis.streaming import LINES, Stream
from hf_transformer.generation.types import GenerationRequest, Piece
from hf_transformer.types import Context, Json, Query


def stream(model: Model, query: Query, context: Context) -> Stream:
    """The answer to one request. Raises RequestError for one that is wrong in itself."""
    request = generating(model, "a stream").request(query)
    lines = _Lines(request)
    return stream_of(
        model, request, context, LINES, lines.line, lambda message, status: error_json(message, status) + b"\n"
    )


class _Lines:
    """One request's."""

    def __init__(self, request: GenerationRequest) -> None:
        self._texts = [[""] * request.sampling.n for _ in request.prompts]
        self._several = request.sampling.n > 1

    def line(self, piece: Piece) -> bytes:
        """What tells of a piece; nothing where there is nothing to tell."""
        so_far = self._texts[piece.prompt]
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
