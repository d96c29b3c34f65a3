"""fill_mask: which token belongs where the text says [MASK]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.errors import InvalidInput, LoadError, TooLarge
from hf_transformer.tasks.base import TOKENS, Axis, Encodings, OutputRole, Overflow, Task, TaskSettings
from hf_transformer.tasks.numerics import argmax, softmax, softmax_at, top_k
from hf_transformer.tasks.parameters import Form, Parameters, read_form, read_truncation
from hf_transformer.tasks.tensors import FREE, OUTPUT, bytes_tensor, ragged_json_tensor
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding

PARAMETERS = ("output_format", "return_probabilities", "return_raw_logits", "top_k", "targets", "truncation")
DEFAULT_TOP_K = 5
"""That of transformers' fill-mask pipeline."""
MAX_TARGETS, MAX_TARGET_LENGTH = 1000, 200
"""Words, and characters per word: each may have to be tokenized, which happens on the event loop."""


@dataclass(frozen=True, slots=True)
class FillMaskOptions:
    """One request's choices. ``target_ids`` restricts the pipeline format to these tokens, sorted as given. ``exact``:
    the request has ``top_k`` itself, and fewer tokens won't do."""

    form: Form
    top_k: int = DEFAULT_TOP_K
    target_ids: Array | None = None
    overflow: Overflow = "truncate"
    exact: bool = False


class FillMask(Task[str, FillMaskOptions, Json]):
    """Reads ``logits`` [tokens, vocabulary] at the mask tokens.

    Answers per instance, M masks and a vocabulary of V:
        plain           "paris"; the M best tokens decoded together, as KServe does
        probabilities   M lists of V objects {"<id>": "<probability, 4 decimals>"}, as KServe does
        raw_logits      M lists of V objects {"<id>": logit}
        pipeline        top_k objects {score, token, token_str, sequence}, in a list of M lists if M > 1
    """

    name = "fill_mask"
    parameters = PARAMETERS

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        vocabulary = settings.vocabulary
        if vocabulary.mask_id is None:
            raise LoadError("fill_mask needs a tokenizer with a mask token, and this one has none; check --task")
        self._mask_id = vocabulary.mask_id
        self._mask_token = vocabulary.mask_token or ""
        size = vocabulary.vocab_size
        self._columns: int | None = None
        columns = Axis(name="vocabulary", minimum=size, why=f"the tokenizer has {size} tokens")
        declared = settings.model_config.get("vocab_size")
        if isinstance(declared, int) and declared >= size:
            # Runtimes pad the vocabulary to a multiple of up to 128; more than that is another model.
            why = f"config.json says vocab_size {declared}"
            columns = Axis(name="vocabulary", minimum=declared, maximum=declared + 127, why=why)
            self._columns = declared
        self.outputs = (OutputRole("logits", (TOKENS, columns)),)

    def options(self, parameters: Mapping[str, Json]) -> FillMaskOptions:
        given = Parameters(parameters, self.parameters)
        form = read_form(given, self.settings, pipeline_only=("top_k", "targets"))
        overflow, top_k = read_truncation(given, self.settings), given.integer("top_k", DEFAULT_TOP_K, 1)
        return FillMaskOptions(form, top_k, self._targets(given), overflow, exact="top_k" in parameters)

    def _targets(self, given: Parameters) -> Array | None:
        """Ids of the target words; a word outside the vocabulary stands for its first token, as in transformers."""
        words = given.strings("targets")
        if words is None:
            return None
        vocabulary = self.settings.vocabulary
        if len(words) > MAX_TARGETS or max(map(len, words)) > MAX_TARGET_LENGTH:
            raise TooLarge.of(
                f"parameters.targets: at most {MAX_TARGETS} words of {MAX_TARGET_LENGTH} characters are taken"
            )
        ids: dict[int, None] = {}
        for word in words:
            found = vocabulary.token_to_id(word)
            if found is None:
                found = vocabulary.first_token_id(word)
            if found is None:
                raise InvalidInput.of("parameters.targets: holds a word that the tokenizer gives no token for")
            ids[found] = None
        return np.sort(np.fromiter(ids, np.int64))

    def check(self, encoding: Encoding, where: str) -> None:
        if self._mask_id not in encoding.ids:
            if encoding.truncated:
                raise InvalidInput.of(
                    f"{where}: no {self._mask_token} among the first {len(encoding)} tokens, "
                    "which is all that the model takes; shorten the text before it"
                )
            raise InvalidInput.of(f"{where}: no {self._mask_token} in the text; fill_mask needs at least one")

    def answer_size(self, encoding: Encoding, options: FillMaskOptions) -> int:
        masks = encoding.ids.count(self._mask_id)
        if options.form == "plain":
            return masks
        size = self.settings.vocabulary.vocab_size
        if options.form != "pipeline":
            return masks * size
        choices = size if options.target_ids is None else len(options.target_ids)
        return masks * min(options.top_k, choices) * len(encoding)

    def decode(self, item: str, encoding: Encoding, outputs: Mapping[str, Array], options: FillMaskOptions) -> Json:
        positions = self.mask_positions(encoding)
        # Columns that the runtime added to round up its matrices are no tokens. These are views: a copy of 100 KB
        # takes longer than to find the best token.
        logits = [outputs["logits"][position, : self._columns] for position in positions]
        highest = [argmax(row) for row in logits]
        if options.form == "plain":
            return self.settings.vocabulary.decode(highest)
        if options.form == "raw_logits":
            return [_by_token(row.tolist()) for row in logits]
        if options.form == "probabilities":
            return [_by_token([f"{value:.4f}" for value in softmax(row).tolist()]) for row in logits]
        lists = []
        for position, row in zip(positions, logits, strict=True):
            if options.target_ids is None:
                best = top_k(row, options.top_k)
            else:
                best = options.target_ids[top_k(row[options.target_ids], options.top_k)]
            scores = softmax_at(row, best).tolist()
            lists.append(self.candidates(encoding, position, best.tolist(), scores, alone=len(positions) == 1))
        return lists[0] if len(lists) == 1 else lists

    def mask_positions(self, encoding: Encoding) -> list[int]:
        """The indices of the mask tokens."""
        return [index for index, token in enumerate(encoding.ids) if token == self._mask_id]

    def tensor(self, predictions: Sequence[Json], options: FillMaskOptions) -> Tensor:
        """BYTES [instances]: the text of the best tokens, or JSON text in the pipeline format. Probabilities and logits
        are BYTES [instances, masks, vocabulary], JSON text per token of the vocabulary."""
        if options.form == "plain":
            return bytes_tensor([one.encode() for one in predictions])
        return super().tensor(predictions, options) if options.form == "pipeline" else ragged_json_tensor(predictions)

    def tensor_size(self, encodings: Encodings, options: FillMaskOptions) -> int:
        if options.form in ("plain", "pipeline"):
            return 0
        masks = max((texts[0][0].ids.count(self._mask_id) for texts in encodings), default=0)
        return len(encodings) * masks * self.settings.vocabulary.vocab_size

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        if self.options({}).form in ("plain", "pipeline"):
            return super().tensor_specs
        return (TensorSpec(OUTPUT, "BYTES", (FREE, FREE, self._columns or FREE)),)

    def candidates(
        self, encoding: Encoding, position: int, tokens: Sequence[int], scores: Sequence[float], *, alone: bool
    ) -> list[Json]:
        """One mask's best tokens, as transformers' pipelines/fill_mask.py gives them.

        As there, the sequence shows special tokens only if other masks are left in it.
        """
        vocabulary = self.settings.vocabulary
        answers = []
        for token, score in zip(tokens, scores, strict=True):
            ids = list(encoding.ids)
            ids[position] = token
            shown = [one for one in ids if one != vocabulary.pad_token_id]
            answers.append(
                {
                    "score": score,
                    "token": token,
                    "token_str": vocabulary.decode([token]),
                    "sequence": vocabulary.decode(shown, skip_special_tokens=alone),
                }
            )
        return answers


def _by_token(values: list[Json]) -> list[Json]:
    return [{str(token): value} for token, value in enumerate(values)]
