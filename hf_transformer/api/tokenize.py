"""The served model's own tokenizer, for clients that count tokens or need ids.

    POST /v1/models/{m}:tokenize    {"instances": [text | {"text", "text_pair"}]} -> {"predictions": [{"ids", ...}]}
    POST /v1/models/{m}:detokenize  {"instances": [[id, ...]]}                    -> {"predictions": [text]}

Texts are tokenized whole, and beside that stands what the predict route would cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.endpoint import Endpoint
from hf_transformer.api.errors import error_json, expect, require_few
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Model, Service
from hf_transformer.api.v1 import parse
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import Servable, Task
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.sequence_classification import read_text_or_pair
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query
from hf_transformer.types.tokenization import Encoding, TextInput, TokenIds, Tokenization

API = "tokenize"
TOKEN_VALUES = 7
"""Values in an answer for each token: the id, the token, two offsets, the mask, the type and the text's number."""
PROMPTS = ("prompt", "prompt_name")
"""Parameters of the predict route that put something in front of the text, for models that have that."""
INLINE_TOKENS = 2000
"""More tokens than these are looked at in a thread; that takes up to 1 ms."""

Result = TypeVar("Result")


def endpoints(service: Service) -> list[tuple[str, Endpoint]]:
    """The endpoints of this API, by the templates of their paths."""

    def read(call: Call) -> tuple[Model, Tokenizer, Query]:
        model = service.models[call.path["model"]]
        query = parse(call.json())
        require_few(query.name, query.instances, service.max_texts)
        # NotReady comes here: the tokenizer may still have to learn from the predictor how long a text can be.
        return model, model.tokenizer, query

    async def off_loop(tokens: int, function: Callable[[], Result]) -> Result:
        """Calls a function, in a thread if it is about many tokens."""
        if tokens <= INLINE_TOKENS:
            return function()
        return await asyncio.get_running_loop().run_in_executor(service.executor, function)

    async def tokenize(call: Call) -> Response:
        model, tokenizer, query = read(call)
        texts, how = read_tokenize(query, model.task)
        encodings = [one for [one] in await model.encode([text.sent for text in texts], how)]
        tokens = sum(map(len, encodings)) if how.detail else 0
        return reply(await off_loop(tokens, lambda: render(texts, encodings, tokenizer.max_length)))

    async def detokenize(call: Call) -> Response:
        model, tokenizer, query = read(call)
        skip = Parameters(query.parameters, ("skip_special_tokens",)).flag("skip_special_tokens", False)
        texts = read_lists(query)
        # Ids are not encoded, but counted: they are under the limits of texts.
        await model.encode(texts, Tokenization(whole=True, token_values=1))
        await off_loop(sum(len(one.ids) for one in texts), lambda: check_ids(texts, query.name, tokenizer))
        predictions = await tokenizer.decode_off_loop([one.ids for one in texts], service.executor, skip)
        return reply(orjson.dumps({"predictions": predictions}))

    return [
        ("/v1/models/{model}:tokenize", Endpoint(API, tokenize, error_json, service)),
        ("/v1/models/{model}:detokenize", Endpoint(API, detokenize, error_json, service)),
    ]


@dataclass(frozen=True, slots=True)
class SentText:
    """A text or a pair, as the client gave it and as the model gets it, maybe with a prompt in front."""

    given: TextInput
    sent: TextInput
    prompt: str = ""


def read_tokenize(query: Query, task: Servable) -> tuple[list[SentText], Tokenization]:
    """The texts of a request, and how they are tokenized. Raises InvalidInput for a wrong instance or parameter."""
    # Only a task that reads sentence-transformers' files changes a text before it is tokenized.
    prompts = PROMPTS if task.reads_sentence_transformers else ()
    parameters = Parameters(query.parameters, ("add_special_tokens", "return_tokens", *prompts))
    special = parameters.flag("add_special_tokens", True) if "add_special_tokens" in parameters else None
    tokens = parameters.flag("return_tokens", True)
    given = [read_text_or_pair(one, f"{query.name}[{index}]") for index, one in enumerate(query.instances)]
    texts = [SentText(text, text) for text in given]
    if isinstance(task, Task) and prompts:
        options = task.options({name: query.parameters[name] for name in prompts if name in query.parameters})
        # Such a task takes no pairs, which stay as they are.
        texts = [
            SentText(text, task.texts(text, options)[0], options.prompt) if isinstance(text, str) else one
            for text, one in zip(given, texts, strict=True)
        ]
    how = Tokenization(tokens, whole=True, special_tokens=special, token_values=TOKEN_VALUES if tokens else 0)
    return texts, how


def read_lists(query: Query) -> list[TokenIds]:
    """The lists of ids in a request; their elements are not looked at. Raises InvalidInput for anything but a list."""
    texts = []
    for index, instance in enumerate(query.instances):
        if isinstance(instance, dict) and instance.keys() == {"token_ids"}:
            instance = instance["token_ids"]
        expect(instance, list, f"{query.name}[{index}]", 'a list of token ids or {"token_ids": list}')
        texts.append(TokenIds(tuple(instance)))
    return texts


def check_ids(texts: Sequence[TokenIds], name: str, tokenizer: Tokenizer) -> None:
    """Raises InvalidInput where something is not the id of one of the tokenizer's tokens."""
    for index, text in enumerate(texts):
        where = f"{name}[{index}]"
        found = read_token_ids(list(text.ids), where, tokenizer.vocab_size) if text.ids else text
        for number in set(found.ids):
            if tokenizer.id_to_token(number) is None:
                raise InvalidInput.of(f"{where}: token {found.ids.index(number)} is {number}, which is no token's id")


def render(texts: Sequence[SentText], encodings: Sequence[Encoding], max_length: int) -> bytes:
    """The response to a tokenize request; ``max_length`` is the tokens that the model takes, special ones included."""
    predictions = [_prediction(text, one, max_length) for text, one in zip(texts, encodings, strict=True)]
    return orjson.dumps({"predictions": predictions})


def _prediction(text: SentText, encoding: Encoding, max_length: int) -> Mapping[str, Json]:
    """Spans and offsets are null if the tokenizer has none."""
    cut = encoding.cut
    if cut is None:
        raise AssertionError("a whole text is told what would be cut off of it")
    place = _places(text)
    found: dict[str, Json] = {}
    if encoding.tokens is not None:
        offsets = encoding.offsets
        found = {
            "ids": encoding.ids,
            "tokens": encoding.tokens,
            "offsets": offsets if place is None or offsets is None else list(map(place, offsets)),
            "special_tokens_mask": encoding.special_mask,
            "type_ids": encoding.type_ids,
        }
        if isinstance(text.given, tuple):
            found["sequence_ids"] = encoding.sequence_ids
    spans = cut.spans
    if spans is not None and place is not None:
        spans = tuple(span and place(span) for span in spans)
    return found | {
        "count": len(encoding),
        "max_length": max_length,
        "kept": len(encoding) - cut.count,
        "truncated": cut.count,
        "truncated_text": spans,
    }


def _places(text: SentText) -> Callable[[tuple[int, int]], tuple[int, int]] | None:
    """From characters of what is sent to those of what was given; None if they are the same.

    A prompt's tokens get (0, 0). Lower-casing makes one character (the dotted capital I) two.
    """
    given, sent = text.given, text.sent
    if not isinstance(given, str) or not isinstance(sent, str) or given == sent:
        return None
    plain = text.prompt + given
    shift = len(text.prompt)
    if len(plain) == len(sent):
        return lambda span: (max(0, span[0] - shift), max(0, span[1] - shift))
    # Where each character sent comes from.
    owners = [max(0, index - shift) for index, one in enumerate(plain) for _ in one.lower()]
    after = [max(0, index + 1 - shift) for index, one in enumerate(plain) for _ in one.lower()]
    return lambda span: (owners[span[0]], after[span[1] - 1]) if span[1] > span[0] else (0, 0)
