"""OpenAI's completions: prompts in, what continues them out, whole or as a stream.

    {"model": "m", "prompt": string | [string] | [int] | [[int]], "max_tokens": 16, "n": 1, "stop": [...],
     "echo": false, "logprobs": null | 0 to 20, "stream": false, ...}
    -> {"id": "cmpl-...", "object": "text_completion", "created", "model",
        "choices": [{"index": 0, "text": " paris", "logprobs": null, "finish_reason": "stop" | "length"}],
        "usage": {"prompt_tokens", "completion_tokens", "total_tokens"}}

Choice number i * n + k is the k-th of prompt i. See generation.py for the other fields and the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.api.call import Call
from hf_transformer.api.errors import renamed
from hf_transformer.api.openai.fields import as_sent, read_request, read_texts, unused
from hf_transformer.api.openai.generation import DEFAULTS, SHARED, GeneratedAnswer, logprob, read_stream
from hf_transformer.api.service import Service, generative
from hf_transformer.api.streaming import TextStream
from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.sampling import read_sampling
from hf_transformer.generation.task import TextGeneration
from hf_transformer.generation.types import GenerationRequest, Piece, Sampling, TokenText
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import TokenIds

FIELDS = (*SHARED, *unused("completions"), "prompt", "max_tokens", "logprobs", "echo", "suffix", "best_of")
USUAL_TOKENS = 16  # OpenAI's default of max_tokens


async def create(service: Service, call: Call) -> Response | TextStream:
    """Answers one request. Raises RequestError for a field that is missing, wrong, or can't be honoured."""
    with renamed(as_sent):
        served, given = read_request(service, call, "completions", FIELDS)
        model = generative(served, "completions")
        task = model.task
        sampling, echo = _read_sampling(given, task)
        stream, usage = read_stream(given)

        def read_ids(ids: list[Json], where: str) -> TokenIds:
            most = task.settings.max_length
            if len(ids) > most:  # millions of them are refused before each is looked at
                raise TooLarge.of(f"{where}: the prompt has {len(ids)} tokens, and the model takes {most}")
            return read_token_ids(ids, where, task.settings.vocabulary.vocab_size)

        prompts, single = read_texts("prompt", given.get("prompt"), service.max_texts, read_ids)
    request = GenerationRequest(prompts=prompts, sampling=sampling, echo=echo, name="prompt", single=single)
    answer = CompletionAnswer(model, request, call.context, usage)
    return answer if stream else await answer.whole()


def _read_sampling(given: Parameters, task: TextGeneration) -> tuple[Sampling, bool]:
    """How texts are continued, and whether they begin with their prompts."""
    if given.string("suffix"):
        raise InvalidInput.of(
            "parameters.suffix: text in front of something else can't be generated here; leave it out"
        )
    echo = given.flag("echo", False)
    if echo and not task.knows_full_text:
        raise InvalidInput.of(f"parameters.echo: {task.name} gives the new text alone, expected false")
    logprobs = given.integer("logprobs", 0, 0) if "logprobs" in given else None
    if echo and logprobs is not None:
        raise InvalidInput.of("parameters.logprobs: those of the prompt are not known, so they can't go with echo")
    limit = task.settings.generation.max_new_tokens
    sampling = read_sampling(
        given,
        DEFAULTS,
        task.settings.vocabulary.vocab_size,
        tokens=given.one_of("max_tokens"),
        default_tokens=USUAL_TOKENS if limit is None else min(USUAL_TOKENS, limit),
        logprobs=None if logprobs is None else (logprobs, "logprobs"),
    )
    if "best_of" in given and (best := given.integer("best_of", 1, 1)) != sampling.n:
        raise InvalidInput.of(
            f"parameters.best_of: {best}, expected as many as n, {sampling.n}: all that is generated is given, and "
            "nothing is chosen"
        )
    return sampling, echo


class CompletionAnswer(GeneratedAnswer):
    """The answer of completions; without ``logprobs`` in the request its tokens are not told."""

    __slots__ = ()
    prefix = "cmpl"
    object = chunk_object = "text_completion"

    def choice(self, index: int, whole: Piece) -> Json:
        top = self._request.sampling.logprobs
        logprobs = None if top is None else _logprobs(whole.tokens, top)
        return {"index": index, "text": whole.text, "logprobs": logprobs, "finish_reason": whole.finish}

    def chunks(self, index: int, piece: Piece) -> Sequence[Json]:
        is_empty = not piece.text and not piece.tokens and piece.finish is None
        return () if is_empty else (self.choice(index, piece),)


def _logprobs(tokens: Sequence[TokenText], top: int) -> Json:
    """Log probabilities of tokens, with the ``top`` likeliest beside each.

    ``text_offset`` counts characters from the beginning of the choice's text. A chosen token is told beside the
    likeliest ones too where it is none of them, as with OpenAI.
    """
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [logprob(token) for token in tokens],
        **({"top_logprobs": [_beside(token) for token in tokens]} if top else {}),
        "text_offset": [token.offset for token in tokens],
    }


def _beside(token: TokenText) -> dict[str, float]:
    """The likeliest tokens and the chosen one; of several with the same text the likeliest."""
    found: dict[str, float] = {}
    for one in (*token.top, token):
        found.setdefault(_name(one), logprob(one))
    return found


def _name(token: TokenText) -> str:
    r"""Its text; one that is no text by itself is told in bytes, as with OpenAI (``bytes:\xe2\x80``), which keeps those
    apart that would all read U+FFFD."""
    try:
        token.bytes.decode()
    except UnicodeDecodeError:
        return f"bytes:{repr(token.bytes)[2:-1]}"
    return token.text
