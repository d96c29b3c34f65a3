"""The served model's tokenizer over V1, for clients that count tokens or need token ids.

Tokenization does not truncate texts. The response describes the truncation in the predict route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Model, Service
from hf_transformer.api.tokenize import PARAMETERS, PreparedText, decode, off_loop, read_tokenize
from hf_transformer.api.v1 import parse
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.fields import Body, Form, about
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query
from hf_transformer.types.tokenization import Encoding

API = "tokenize"


class DetokenizeParameters(Body):
    skip_special_tokens: Annotated[bool, about("Texts without special tokens.")] = False


DETOKENIZE = Form(DetokenizeParameters)


def endpoints(service: Service) -> dict[str, Endpoint]:

    def read(call: Call) -> tuple[Model, Tokenizer, Query]:
        model = service.models.choose(call.path["model"], call.context)
        query = parse(call.json())
        call.budget.few(query.name, query.instances)
        # ``tokenizer`` raises NotReady until the predictor has reported the maximum length.
        return model, model.tokenizer, query

    async def tokenize(call: Call) -> Response:
        model, tokenizer, query = read(call)
        texts, options = read_tokenize(query, model.task)
        prepared = [text.prepared for text in texts]
        encodings = [encoding for [encoding] in await model.encode(prepared, options, call.context)]
        tokens = sum(map(len, encodings)) if options.detail else 0
        maximum = tokenizer.max_length
        return reply(await off_loop(service.executor, tokens, lambda: render(texts, encodings, maximum)))

    async def detokenize(call: Call) -> Response:
        model, _, query = read(call)
        skip = DETOKENIZE.read(query.parameters, path=PARAMETERS).skip_special_tokens
        return reply(orjson.dumps({"predictions": await decode(model, query, service.executor, skip, call.context)}))

    return {
        "tokenize": Endpoint(API, tokenize, error_json, service),
        "detokenize": Endpoint(API, detokenize, error_json, service),
    }


def render(texts: Sequence[PreparedText], encodings: Sequence[Encoding], max_length: int) -> bytes:
    """Renders a tokenize response. ``max_length`` is the model's maximum tokens, including special tokens."""
    predictions = [_prediction(text, encoding, max_length) for text, encoding in zip(texts, encodings, strict=True)]
    return orjson.dumps({"predictions": predictions})


def _prediction(text: PreparedText, encoding: Encoding, max_length: int) -> Mapping[str, Json]:
    """Renders an encoding. Offsets and spans are null for a tokenizer without offsets."""
    cut = encoding.cut
    if cut is None:
        raise AssertionError("the encoding of a whole text has its truncation")
    to_original = _span_mapping(text)
    detail: dict[str, Json] = {}
    if encoding.tokens is not None:
        offsets = encoding.offsets
        detail = {
            "ids": encoding.ids,
            "tokens": encoding.tokens,
            "offsets": offsets if to_original is None or offsets is None else list(map(to_original, offsets)),
            "special_tokens_mask": encoding.special_mask,
            "type_ids": encoding.type_ids,
        }
        if isinstance(text.original, tuple):
            detail["sequence_ids"] = encoding.sequence_ids
    spans = cut.spans
    if spans is not None and to_original is not None:
        spans = tuple(span and to_original(span) for span in spans)
    return detail | {
        "count": len(encoding),
        "max_length": max_length,
        "kept": len(encoding) - cut.count,
        "truncated": cut.count,
        "truncated_text": spans,
    }


def _span_mapping(text: PreparedText) -> Callable[[tuple[int, int]], tuple[int, int]] | None:
    """Returns a function from prepared to original character spans, or None for an unchanged text.

    Spans in the prompt map to (0, 0). In lower case, the dotted capital I has two characters.
    """
    original, prepared = text.original, text.prepared
    if not isinstance(original, str) or not isinstance(prepared, str) or original == prepared:
        return None
    cased = text.prompt + original
    shift = len(text.prompt)
    if len(cased) == len(prepared):
        return lambda span: (max(0, span[0] - shift), max(0, span[1] - shift))
    # The start and end in the original text, for each prepared character.
    starts = [max(0, index - shift) for index, character in enumerate(cased) for _ in character.lower()]
    ends = [max(0, index + 1 - shift) for index, character in enumerate(cased) for _ in character.lower()]
    return lambda span: (starts[span[0]], ends[span[1] - 1]) if span[1] > span[0] else (0, 0)
