"""The served model's tokenizer, for clients that count tokens or need token ids.

    POST /v1/models/{m}:tokenize    {"instances": [text | {"text", "text_pair"}]} -> {"predictions": [{"ids", ...}]}
    POST /v1/models/{m}:detokenize  {"instances": [[id, ...]]}                    -> {"predictions": [text]}

Tokenization does not truncate texts. The response describes the truncation in the predict route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json, expect
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Model, Service
from hf_transformer.api.v1 import parse
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import Servable, Task
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import read_text_or_pair
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.http import Response
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds, Tokenization

API = "tokenize"
TOKEN_VALUES = 7
"""The number of response values per token: id, token, two offsets, special mask, type id and sequence id."""
PROMPTS = ("prompt", "prompt_name")
"""The predict parameters that prepend a prompt, for models with prompts."""
MAX_INLINE_TOKENS = 2000
"""The maximum tokens per call on the event loop, for up to 1 ms. Calls with more tokens use a thread."""
DECODED_BYTES = 4
"""Bytes of a decoded character, as text and as JSON. Most tokens are far shorter than the longest one."""
VALUES_PER_TOKEN = 100
"""The components of vectors whose comparison or quantization takes as long as rendering a token, about 0.5 us."""

Result = TypeVar("Result")


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
        skip = Parameters(query.parameters, ("skip_special_tokens",)).flag("skip_special_tokens", False)
        return reply(orjson.dumps({"predictions": await decode(model, query, service.executor, skip, call.context)}))

    return {
        "tokenize": Endpoint(API, tokenize, error_json, service),
        "detokenize": Endpoint(API, detokenize, error_json, service),
    }


async def off_loop(executor: Executor | None, tokens: int, function: Callable[[], Result]) -> Result:
    """Calls a function, in a thread for more than MAX_INLINE_TOKENS."""
    if tokens <= MAX_INLINE_TOKENS:
        return function()
    return await asyncio.get_running_loop().run_in_executor(executor, function)


async def decode(
    model: Model, query: Query, executor: Executor | None, skip_special_tokens: bool, context: Context
) -> list[str]:
    """Returns the text of each list of ids. Raises InvalidInput for anything else."""
    texts, tokenizer = read_lists(query), model.tokenizer
    # For ids, ``encode`` only counts tokens, to check the limits of texts.
    await model.encode(texts, Tokenization(whole=True, token_values=1), context)
    tokens = sum(len(text.ids) for text in texts)
    await off_loop(executor, tokens, lambda: check_ids(texts, query.name, tokenizer))
    ids = [text.ids for text in texts]
    length = await off_loop(executor, tokens, lambda: tokenizer.decoded_length(ids))
    budget = context.budget
    if budget is not None:
        budget.hold(length * DECODED_BYTES, query.name)
    return await tokenizer.decode_off_loop(ids, executor, skip_special_tokens)


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A client's text or pair, and its form for the model with the ``prompt`` and in lower case."""

    original: TextInput
    prepared: TextInput
    prompt: str = ""


def read_tokenize(query: Query, task: Servable) -> tuple[list[PreparedText], Tokenization]:
    """Parses the texts and options of a request. Raises InvalidInput for an invalid instance or parameter."""
    # Only tasks that read sentence-transformers files change a text before tokenization. A reranker's prompt depends on
    # the side, which a text alone doesn't have.
    prompts = PROMPTS if task.reads_sentence_transformers and not isinstance(task, Rerank) else ()
    parameters = Parameters(query.parameters, ("add_special_tokens", "return_tokens", *prompts))
    special = parameters.flag("add_special_tokens", True) if "add_special_tokens" in parameters else None
    tokens = parameters.flag("return_tokens", True)
    inputs = [read_text_or_pair(value, (query.name, index)) for index, value in enumerate(query.instances)]
    texts = [PreparedText(text, text) for text in inputs]
    if isinstance(task, Task) and prompts:
        options = task.options({name: query.parameters[name] for name in prompts if name in query.parameters})
        # These tasks don't support pairs, so pairs remain unchanged.
        texts = [
            PreparedText(text, task.texts(text, options)[0], options.prompt)
            if isinstance(text, str)
            else PreparedText(text, text)
            for text in inputs
        ]
    return texts, Tokenization(tokens, whole=True, special_tokens=special, token_values=TOKEN_VALUES if tokens else 0)


def read_lists(query: Query) -> list[TokenIds]:
    """Reads the lists of ids in a request, without a check of the ids. Raises InvalidInput for other types."""
    texts = []
    for index, instance in enumerate(query.instances):
        if isinstance(instance, dict) and instance.keys() == {"token_ids"}:
            instance = instance["token_ids"]
        expect(instance, list, (query.name, index), 'a list of token ids or {"token_ids": list}')
        texts.append(TokenIds(tuple(instance)))
    return texts


def check_ids(texts: Sequence[TokenIds], name: str, tokenizer: Tokenizer) -> None:
    """Raises InvalidInput for an element that is not a token id."""
    for index, text in enumerate(texts):
        path = (name, index)
        ids = read_token_ids(list(text.ids), path, tokenizer.vocab_size).ids if text.ids else ()
        for token in set(ids):
            if tokenizer.id_to_token(token) is None:
                raise InvalidInput((*path, ids.index(token)), "the id of a token", str(token))


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
