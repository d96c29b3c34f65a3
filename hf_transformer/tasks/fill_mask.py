"""fill_mask: the most likely tokens at each [MASK] of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from hf_transformer.errors import InvalidInput, LoadError, Path, TooLarge
from hf_transformer.tasks.base import TOKENS, Axis, Encodings, OutputRole, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import (
    BATCH,
    INTEGER,
    MASK,
    NUMBER,
    OPTIONAL_STRING,
    SEQUENCE,
    STRING,
    TEXT_OBJECT,
    Demo,
    Example,
    ExportHead,
    Schema,
    array,
    closed,
)
from hf_transformer.tasks.long_texts import read_tokenization, read_truncation
from hf_transformer.tasks.numerics import argmax, softmax, softmax_at, top_k
from hf_transformer.tasks.options import (
    Form,
    Format,
    MaxTokens,
    Probabilities,
    RawLogits,
    TaskParameters,
    Truncation,
    TruncationSide,
    read_form,
    read_strings,
    strings,
)
from hf_transformer.tasks.tensors import FREE, OUTPUT, bytes_tensor, ragged_json_tensor
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, Tokenization

DEFAULT_TOP_K = 5
"""The default of transformers' fill-mask pipeline."""
MAX_TARGETS, MAX_TARGET_LENGTH = 1000, 200
"""Maximum number of words, and of characters per word. The service may tokenize each word on the event loop."""
CAPITAL = f"The capital of france is {MASK}."
CANDIDATES = array(
    closed(["score", "token", "token_str", "sequence"], score=NUMBER, token=INTEGER, token_str=STRING, sequence=STRING)
)
ENTRY_BYTES, TENSOR_ENTRY_BYTES = 340, 180
"""Bytes of a token's object with its probability, and in addition as an element of a tensor, each with its JSON."""


class FillMaskParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    return_probabilities: Probabilities = False
    return_raw_logits: RawLogits = False
    top_k: Annotated[Positive, about("Candidates per mask; in the pipeline format.")] = DEFAULT_TOP_K
    targets: Annotated[
        Json,
        strings(
            f"The only candidates, at most {MAX_TARGETS} of {MAX_TARGET_LENGTH} characters; in the pipeline format.",
            minItems=1,
            maxItems=MAX_TARGETS,
        ),
    ] = None
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None


@dataclass(frozen=True, slots=True)
class FillMaskOptions:
    """The effect of a request's parameters.

    Attributes:
        top_k: the number of answers per mask in the pipeline format.
        target_ids: the candidates in the pipeline format, ascending; None means the whole vocabulary.
        exact: whether the request sets ``top_k``; a reduced model with fewer tokens then returns an error.
    """

    form: Form
    top_k: int = DEFAULT_TOP_K
    target_ids: Array | None = None
    overflow: Overflow = "truncate"
    exact: bool = False
    tokenization: Tokenization = PLAIN


class FillMask(Task[str, FillMaskOptions, Json]):
    """Reads ``logits`` [tokens, vocabulary] at the mask tokens.

    Answers per instance, for M masks and V tokens in the vocabulary:
        plain           a text such as "paris", decoded from the M best tokens, as in KServe
        probabilities   M lists of V objects {"<id>": "<probability, 4 decimals>"}, as in KServe
        raw_logits      M lists of V objects {"<id>": logit}
        pipeline        a list of top_k objects {score, token, token_str, sequence}; M such lists if M > 1
    """

    name = "fill_mask"
    options_type = FillMaskParameters
    purpose = "Finds the word for a gap"
    examples = (
        Example("as KServe", {"instances": [CAPITAL]}),
        Example(
            "as a pipeline",
            {"instances": [CAPITAL], "parameters": {"output_format": "pipeline", "top_k": 2}},
            "pipeline",
        ),
        Example(
            "candidates of your own",
            {"instances": [CAPITAL], "parameters": {"output_format": "pipeline", "targets": ["paris", "rome"]}},
            "targets",
        ),
    )
    demo = Demo("bert", CAPITAL, flags=("--tensor_input_names=input_ids",))
    export_head = ExportHead("AutoModelForMaskedLM", {"logits": (BATCH, SEQUENCE, "vocab_size")})
    instance_schemas = (
        {
            "description": f"A text with the mask token, {MASK}, in the place of a token.",
            "anyOf": [STRING, TEXT_OBJECT],
        },
    )
    info_schemas: ClassVar[Mapping[str, Schema]] = {"mask_token": {**OPTIONAL_STRING, "description": "For fill_mask."}}
    prediction_schemas = (
        {"type": "string", "description": "The best tokens; for fill_mask."},
        {
            "description": "Candidates in the pipeline format, with a list for each mask where there are several.",
            "anyOf": [CANDIDATES, array(CANDIDATES)],
        },
        {
            "description": "The whole vocabulary for each mask; a probability is text, a logit a number, and the logit "
            "of a token that the model bans null.",
            **array(
                array(
                    {
                        "type": "object",
                        "additionalProperties": {"type": ["string", "number", "null"]},
                        "minProperties": 1,
                    }
                )
            ),
        },
    )

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
            # Runtimes pad the vocabulary to a multiple of up to 128; a larger axis indicates another model.
            why = f"config.json says vocab_size {declared}"
            columns = Axis(name="vocabulary", minimum=declared, maximum=declared + 127, why=why)
            self._columns = declared
        self.outputs = (OutputRole("logits", (TOKENS, columns)),)

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        """The text with the mask in place of its last word."""
        if mask_token is None or mask_token in text:
            return text
        return f"{text.rstrip('.').rpartition(' ')[0]} {mask_token}.".lstrip()

    def info(self) -> dict[str, Json]:
        return {"mask_token": self.settings.vocabulary.mask_token}

    def options(self, parameters: Mapping[str, Json]) -> FillMaskOptions:
        given, present = self.read(FillMaskParameters, parameters)
        form = read_form(given, present, pipeline_only=("top_k", "targets"))
        overflow, targets = read_truncation(given, self.settings), self._targets(given.targets)
        return FillMaskOptions(form, given.top_k, targets, overflow, "top_k" in present, read_tokenization(given))

    def _targets(self, value: Json) -> Array | None:
        """Ids of the target words. As in transformers, the first token represents a word outside the vocabulary."""
        words = read_strings("targets", value)
        if words is None:
            return None
        vocabulary = self.settings.vocabulary
        longest = max(map(len, words))
        if len(words) > MAX_TARGETS or longest > MAX_TARGET_LENGTH:
            expected = f"at most {MAX_TARGETS} words of {MAX_TARGET_LENGTH} characters"
            raise TooLarge(("parameters", "targets"), expected, f"{len(words)} words of up to {longest} characters")
        ids: dict[int, None] = {}
        for index, word in enumerate(words):
            number = vocabulary.token_to_id(word)
            if number is None:
                number = vocabulary.first_token_id(word)
            if number is None:
                got = f"a word without tokens at index {index}"
                raise InvalidInput(("parameters", "targets"), "words that the tokenizer has tokens for", got)
            ids[number] = None
        return np.sort(np.fromiter(ids, np.int64))

    def check(self, encoding: Encoding, path: Path) -> None:
        if self._mask_id in encoding.ids:
            return
        if encoding.truncated:
            expected = f"{self._mask_token} among the {len(encoding)} tokens that truncation keeps"
            raise InvalidInput(path, expected, hint="shorten the text around it")
        raise InvalidInput(path, f"at least one {self._mask_token} in the text", "none")

    def answer_size(self, encoding: Encoding, options: FillMaskOptions) -> int:
        masks = encoding.ids.count(self._mask_id)
        if options.form == "plain":
            return masks
        size = self.settings.vocabulary.vocab_size
        if options.form != "pipeline":
            return masks * size
        choices = size if options.target_ids is None else len(options.target_ids)
        return masks * min(options.top_k, choices) * len(encoding)

    def value_bytes(self, options: FillMaskOptions, *, tensors: bool) -> int:
        if options.form in ("plain", "pipeline"):
            return super().value_bytes(options, tensors=tensors)
        return ENTRY_BYTES + TENSOR_ENTRY_BYTES * tensors

    def decode(self, item: str, encoding: Encoding, outputs: Outputs, options: FillMaskOptions) -> Json:
        positions = self.mask_positions(encoding)
        # Columns beyond the vocabulary are padding. Views, since a copy of 100 KB takes longer than the search.
        logits = [outputs["logits"][position, : self._columns] for position in positions]
        highest = [argmax(row) for row in logits]
        if options.form == "plain":
            return self.settings.vocabulary.decode(highest)
        if options.form == "raw_logits":
            return [_by_token(row.tolist()) for row in logits]
        if options.form == "probabilities":
            return [_by_token([f"{value:.4f}" for value in softmax(row).tolist()]) for row in logits]
        targets, best = options.target_ids, []
        for row in logits:
            indices = top_k(row, options.top_k) if targets is None else targets[top_k(row[targets], options.top_k)]
            best.append((indices, softmax_at(row, indices)))
        return self.candidates(encoding, positions, best)

    def mask_positions(self, encoding: Encoding) -> list[int]:
        """The indices of the mask tokens in an encoding."""
        return [index for index, token in enumerate(encoding.ids) if token == self._mask_id]

    def tensor(self, predictions: Sequence[Json], options: FillMaskOptions) -> Tensor:
        """BYTES [instances] in the forms plain (texts) and pipeline (JSON texts).

        Probabilities and logits are BYTES [instances, masks, vocabulary] of JSON texts.
        """
        if options.form == "plain":
            return bytes_tensor([text.encode() for text in predictions])
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

    def candidates(self, encoding: Encoding, positions: Sequence[int], best: Sequence[tuple[Array, Array]]) -> Json:
        """Builds the answer in the pipeline format from the tokens [k] and scores [k] of each mask.

        As in transformers' pipelines/fill_mask.py, sequences with several masks keep the special tokens.
        """
        vocabulary, alone = self.settings.vocabulary, len(positions) == 1
        lists = []
        for position, (tokens, scores) in zip(positions, best, strict=True):
            answers = []
            for token, score in zip(tokens.tolist(), scores.tolist(), strict=True):
                ids = list(encoding.ids)
                ids[position] = token
                unpadded = [number for number in ids if number != vocabulary.pad_token_id]
                sequence = vocabulary.decode(unpadded, skip_special_tokens=alone)
                text = vocabulary.decode([token])
                answers.append({"score": score, "token": token, "token_str": text, "sequence": sequence})
            lists.append(answers)
        return lists[0] if alone else lists


def _by_token(values: list[Json]) -> list[Json]:
    return [{str(token): value} for token, value in enumerate(values)]
