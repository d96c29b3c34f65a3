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

from collections.abc import AsyncGenerator

import orjson

from hf_transformer.apis.base import Model, error_json
from hf_transformer.apis.generation import generating
from hf_transformer.apis.streaming import LINES, Stream
from hf_transformer.generation.types import GenerationRequest
from hf_transformer.types import Context, Json, Query


def stream(model: Model, query: Query, context: Context) -> Stream:
    """The answer to one request. Raises RequestError for one that is wrong in itself."""
    request = generating(model, "a stream").request(query)
    return Stream(_lines(model, request, context), LINES, lambda message, status: error_json(message, status) + b"\n")


async def _lines(model: Model, request: GenerationRequest, context: Context) -> AsyncGenerator[bytes, None]:
    texts = [[""] * request.sampling.n for _ in request.prompts]
    several = request.sampling.n > 1
    async with await model.generate(request, context) as running:
        async for piece in running:
            so_far = texts[piece.prompt]
            so_far[piece.choice] += piece.text
            if not piece.text and piece.finish is None:
                continue
            line: dict[str, Json] = {"instance": piece.prompt}
            if several:
                line["choice"] = piece.choice
            line["text"] = piece.text
            if piece.finish is not None:
                line |= {"finish_reason": piece.finish, "generated_text": so_far[piece.choice]}
            yield orjson.dumps(line) + b"\n"
