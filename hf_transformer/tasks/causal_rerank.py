"""rerank with a causal language model, asked once for each pair: the logits of "yes" and "no" make the score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_transformer.errors import LoadError, PredictorError
from hf_transformer.tasks.base import TOKENS, Axis, OutputRole, Outputs, TaskSettings
from hf_transformer.tasks.rerank import Rerank, RerankItem, RerankOptions
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TaskTokenizer


class CausalRerank(Rerank):
    """Reads ``logits`` [tokens, vocabulary], or [1] from a model that makes the score's logit itself.

    The logit of a pair is read at its last token: the logit of "yes" minus that of "no", whose sigmoid is the softmax
    of both (Qwen3-Reranker), or the logit of a single token (BGE). BGE's layerwise model has [tokens], a logit each.

    Sources: the model card of Qwen3-Reranker; last_logit_pool in FlagEmbedding's decoder_only/base.py; LogitScore of
    sentence-transformers.
    """

    def _read_outputs(self, settings: TaskSettings) -> None:
        self._ids = token_ids(settings.reranker.tokens, settings.vocabulary)
        vocabulary = Axis(name="vocabulary", minimum=max(self._ids) + 1, why="it has a logit for each token")
        score = Axis(name="score", maximum=1 if len(self._ids) > 1 else None, why="it has one logit per pair")
        self.outputs = (OutputRole("logits", (TOKENS, vocabulary), ("scores",), ((score,),)),)

    def decode(self, item: RerankItem, encoding: Encoding, outputs: Outputs, options: RerankOptions) -> float:
        return last_logit(outputs["logits"], len(encoding), self._ids)


def token_ids(tokens: Sequence[int | str], vocabulary: TaskTokenizer) -> tuple[int, ...]:
    """The ids of a reranker's tokens; of a text, its first token, as in FlagEmbedding.

    Raises LoadError if there are none or more than two, or a token is not in the vocabulary.
    """
    ids = []
    for token in tokens:
        number = token if isinstance(token, int) else vocabulary.first_token_id(token)
        if number is None or not 0 <= number < vocabulary.vocab_size:
            raise LoadError(f"the reranker's token {token!r} is not in the vocabulary; see --rerank_tokens")
        ids.append(number)
    if len(ids) not in (1, 2) or len(set(ids)) < len(ids):
        raise LoadError("a causal reranker needs one token, or two different ones; see --rerank_tokens")
    return tuple(ids)


def last_logit(logits: Array, tokens: int, ids: tuple[int, ...]) -> float:
    """The logit of a pair of ``tokens`` tokens, from [tokens, vocabulary], [tokens or more] or [1].

    Raises PredictorError for NaN and infinite values.
    """
    if logits.ndim == 1:
        value = np.float32(logits[min(tokens, len(logits)) - 1])
    else:
        first, last = logits[-1, [ids[0], ids[-1]]].astype(np.float32)
        value = last - first if len(ids) > 1 else last
    if not np.isfinite(value):
        raise PredictorError("the model answered with logits that are not finite numbers (NaN or infinite)")
    return float(value)
