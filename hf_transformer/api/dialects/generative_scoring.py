"""vLLM's generative scoring: the probability of a token after a text, by a model that generates text.

The prompt of an item is the query's tokens and the item's. The score is the probability of the first label: among all
labels, or with ``apply_softmax: false`` in the whole vocabulary. It needs a model whose logits the service reads, which
runs one step for each item, without a loop.

Source: vllm/entrypoints/generate/generative_scoring of https://github.com/vllm-project/vllm
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf
from typing import Annotated, Any, Final

from msgspec import Meta

from hf_transformer.api.bodies import ModelBody, Priority, TextOrIds, Unused
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import listed
from hf_transformer.api.service import Model, Service, generative
from hf_transformer.errors import InvalidInput, Path, PredictorError
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.sampling import MAX_SCORED_IDS
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.types.fields import Form, Natural, about, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.paths import TOP_LEVEL
from hf_transformer.types.request import Context, Json, RequestBudget
from hf_transformer.types.tokenization import TokenIds, Tokenization

LABELS = "label_token_ids"
TOKEN_BYTES, SCORE_BYTES = 40, 300
"""Bytes of a token in a prompt and in the model's input, and of a score with its token."""


TEXT_OR_IDS = (str, list[Natural])


class ScoringRequest(ModelBody, kw_only=True):
    """A request for scores."""

    query: Annotated[
        Json,
        about("Text or token ids before each item.", expected="a string or a list of token ids", shown=TEXT_OR_IDS),
    ]
    items: Annotated[
        Annotated[list[Json], Meta(min_length=1)],
        about(
            "Texts, or lists of their token ids.",
            expected="a list of texts or of lists of token ids",
            shown=(Annotated[list[str | list[Natural]], Meta(min_length=1)],),
        ),
    ]
    label_token_ids: Annotated[
        Json,
        about(
            "Tokens to compare; the first one is scored.",
            expected="a list of token ids",
            shown=(Annotated[list[Natural], Meta(min_length=1)],),
        ),
    ]
    apply_softmax: Annotated[bool, about("Whether the labels share the probability, or the whole vocabulary.")] = True
    item_first: Annotated[bool, about("Whether an item precedes the query.")] = False
    add_special_tokens: Annotated[bool, about("Whether the query gets special tokens.")] = True
    user: Unused = None
    request_id: Unused = None
    priority: Priority = None


FORM: Final = Form(ScoringRequest)


async def score(service: Service, call: Call, served: Model, body: ScoringRequest) -> Response:
    """Returns the score of each item. Raises RequestError, also for a model without logits."""
    model = generative(served, "generative_scoring")
    labels = _read_labels(body.label_token_ids, model)
    items = body.items
    call.budget.few("items", items)
    [query] = await _to_ids([body.query], [("query",)], model, body.add_special_tokens, call.context)
    paths: list[Path] = [("items", index) for index in range(len(items))]
    texts = await _to_ids(items, paths, model, False, call.context)
    _count(query, texts, labels, call.budget)
    prompts = [TokenIds(text + query if body.item_first else query + text) for text in texts]
    names = {"logprobs": LABELS, "score_ids": LABELS}
    sampling = Sampling(max_tokens=1, greedy=True, ignore_eos=True, logprobs=0, score_ids=labels, names=names)
    call.context.field_names = TOP_LEVEL
    request = GenerationRequest(prompts=prompts, sampling=sampling, name="items")
    async with await model.generate(request, call.context) as running:
        pieces = [choices[0] for choices in await running.collect()]
    data = []
    for index, piece in enumerate(pieces):
        scores = [token.logprob for token in piece.tokens[0].top]
        data.append({"index": index, "object": "score", "score": first_share(scores, body.apply_softmax)})
    return await listed(service, call, "generative-scoring", data, call.context.tokens, len(pieces))


def _count(query: Sequence[int], texts: Sequence[Sequence[int]], labels: Sequence[int], budget: RequestBudget) -> None:
    """Counts tokens and scores, before the query's tokens are repeated for each item. Raises TooLarge for too many."""
    tokens, scores = len(query) * len(texts) + sum(map(len, texts)), len(texts) * len(labels)
    budget.check_copies(tokens, "items", "tokens in all, the query's counted for each item")
    budget.check_values(scores, LABELS, "scores, one for each item and label")
    budget.add_values(scores, tokens * TOKEN_BYTES + scores * SCORE_BYTES, "items")


def _read_labels(value: Json, model: GenerativeModel) -> tuple[int, ...]:
    """Reads the ids of the labels, each once. Raises InvalidInput for none, too many, or one outside the vocabulary."""
    ids = tuple(dict.fromkeys(read_token_ids(value, (LABELS,), model.task.settings.vocabulary.vocab_size).ids))
    if len(ids) > MAX_SCORED_IDS:
        raise InvalidInput(LABELS, f"at most {MAX_SCORED_IDS} token ids", str(len(ids)))
    return ids


async def _to_ids(
    texts: Sequence[Any], paths: Sequence[Path], model: GenerativeModel, special: bool, context: Context
) -> list[tuple[int, ...]]:
    """Tokenizes texts; lists of token ids stay as they are. Raises InvalidInput for other types."""
    size = model.task.settings.vocabulary.vocab_size
    token_ids: dict[Path, tuple[int, ...]] = {}
    strings: dict[Path, str] = {}
    for text, path in zip(texts, paths, strict=True):
        if isinstance(read_value(text, TextOrIds, path), str):
            strings[path] = text
        else:
            token_ids[path] = read_token_ids(text, path, size).ids
    texts_of: dict[Path, Path] = {("instances", index): path for index, path in enumerate(strings)}
    context.field_names = TOP_LEVEL.then({**texts_of, ("instances",): ("items",)})
    options = Tokenization(whole=True, special_tokens=special)
    encodings = await model.encode(list(strings.values()), options, context) if strings else []
    token_ids |= {path: tuple(encoding.ids) for path, [encoding] in zip(strings, encodings, strict=True)}
    return [token_ids[path] for path in paths]


def first_share(logprobs: Sequence[float | None], softmax: bool) -> float:
    """The probability of the first label, among the labels or in the vocabulary.

    Raises PredictorError if all labels are impossible: then none has a share.
    """
    values = [value for value in logprobs if value is not None]
    if not softmax:
        return exp(values[0])
    best = max(values)
    if best == -inf:
        raise PredictorError(f"the model gives none of {LABELS} a probability; apply_softmax: false answers 0")
    return exp(values[0] - best) / sum(exp(value - best) for value in values)
