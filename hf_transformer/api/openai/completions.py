"""OpenAI's completions API: generates continuations of prompts, complete or streamed.

Choice i * n + k is continuation k of prompt i. See generated_answers.py for other fields and streaming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import orjson

from hf_transformer.api.bodies import Prompts, choose_model, read_declared, read_texts
from hf_transformer.api.call import Call
from hf_transformer.api.generated_answers import (
    DEFAULTS,
    ChoicesBody,
    GeneratedAnswer,
    logprob,
    prompt_logprobs,
    read_stream,
)
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, Path
from hf_transformer.generation.parameters import TopTokens
from hf_transformer.generation.sampling import read_sampling
from hf_transformer.generation.task import GENERATIVE, TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece, Sampling, TokenText
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.types.fields import Form, Natural, Positive, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import TokenIds

_TEXT = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}'
"""The choice of a chunk with text alone."""
DEFAULT_MAX_TOKENS = 16
"""OpenAI's default number of new tokens."""


class CompletionRequest(ChoicesBody, kw_only=True):
    """A request for completions."""

    prompt: Prompts
    max_tokens: Annotated[Natural | None, about("Maximum number of new tokens of a text; 0 needs echo.")] = None
    logprobs: TopTokens = None
    echo: Annotated[bool | None, about("Whether the text includes the prompt.", schema={"default": False})] = None
    suffix: Annotated[Json, only("", because="the service can't insert text; leave it out")] = None
    best_of: Annotated[Positive | None, about("The value of n.")] = None
    add_special_tokens: Annotated[Json, only(True, because="the service adds them (--disable_special_tokens)")] = None


FORM: Final = Form(CompletionRequest)


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a missing, invalid or unsupported field."""
    body = read_declared(call, FORM)
    model = generative(choose_model(service, call, body.model, GENERATIVE), "completions")
    task = model.task
    sampling = _read_sampling(body, task)
    stream, usage = read_stream(body)

    def read_ids(ids: list[Json], path: Path) -> TokenIds:
        limit = task.settings.max_length
        if len(ids) > limit:  # refuse long lists before reading each id
            raise ContextLengthExceeded(path, f"a prompt of at most {limit} tokens", str(len(ids)), limit=limit)
        return read_token_ids(ids, path, task.settings.vocabulary.vocab_size)

    prompts, single = read_texts(("prompt",), body.prompt, call.budget, read_ids)
    request = GenerationRequest(
        prompts=prompts, sampling=sampling, echo=body.echo or False, name="prompt", single=single
    )
    answer = CompletionAnswer(model, request, call.context, usage)
    return answer if stream else await answer.whole()


def _read_sampling(body: CompletionRequest, task: TextGeneration) -> Sampling:
    """Converts the sampling parameters. Raises InvalidInput or TooLarge."""
    if body.echo and not task.knows_full_text:
        raise InvalidInput("echo", "false", "true", f"{task.name} returns the new text only")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidInput("max_tokens", "1 or more", "0")
    logprobs = None if body.logprobs is None else (body.logprobs, "logprobs")
    limit = task.settings.generation.max_new_tokens
    sampling = read_sampling(
        body,
        DEFAULTS,
        task.settings.vocabulary.vocab_size,
        n=body.n,
        default_tokens=DEFAULT_MAX_TOKENS if limit is None else min(DEFAULT_MAX_TOKENS, limit),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs(body) or (logprobs if body.echo else None),
        max_schema_bytes=task.settings.generation.max_schema_bytes,
    )
    if body.best_of not in (None, sampling.n):
        raise InvalidInput(
            "best_of", f"{sampling.n}, the value of n", str(body.best_of), "the service returns all texts"
        )
    return sampling


class CompletionAnswer(GeneratedAnswer):
    """A completions response. Choices contain log probabilities only if the request sets ``logprobs``."""

    __slots__ = ()
    prefix = "cmpl"
    object = chunk_object = "text_completion"

    def choice(self, index: int, whole: Piece) -> Json:
        top = self._request.sampling.logprobs
        tokens = [*whole.prompt_tokens, *whole.tokens] if self._request.echo else whole.tokens
        choice = {"index": index, "text": whole.text, "logprobs": None if top is None else _logprobs(tokens, top)}
        return {**choice, "finish_reason": whole.finish, **self.prompt_logprobs(whole)}

    def choices(self, index: int, piece: Piece) -> Sequence[bytes]:
        if self._request.sampling.logprobs is not None or piece.finish is not None:
            is_empty = not piece.text and not piece.tokens and piece.finish is None
            return () if is_empty else (orjson.dumps(self.choice(index, piece)),)
        return (_TEXT % (index, orjson.dumps(piece.text)),) if piece.text else ()


def _logprobs(tokens: Sequence[TokenText], top: int) -> Json:
    """Renders log probabilities of tokens and of the ``top`` likeliest alternatives to each token.

    ``text_offset`` counts characters in the choice's text. As in OpenAI's API, alternatives include the chosen token,
    and are null for a prompt's first token.
    """
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [logprob(token) for token in tokens],
        **({"top_logprobs": [_alternatives(token) for token in tokens]} if top else {}),
        "text_offset": [token.offset for token in tokens],
    }


def _alternatives(token: TokenText) -> dict[str, Json] | None:
    """Returns the likeliest tokens and the chosen token. Equal texts share an entry for the likeliest token."""
    if token.logprob is None:
        return None
    alternatives: dict[str, Json] = {}
    for candidate in (*token.top, token):
        alternatives.setdefault(_name(candidate), logprob(candidate))
    return alternatives


def _name(token: TokenText) -> str:
    r"""Returns a token's text. As in OpenAI's API, incomplete UTF-8 becomes ``bytes:\xe2\x80`` instead of U+FFFD."""
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return f"bytes:{repr(token.bytes)[2:-1]}"
    return token.text
