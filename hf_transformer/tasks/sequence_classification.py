"""sequence_classification: the labels of a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated, ClassVar, Literal

import numpy as np

from hf_transformer.errors import ConfigError, InvalidInput, Path, describe
from hf_transformer.tasks.base import VALUE_BYTES, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import NUMBER, OPTIONAL_STRING, STRING, Demo, Example, Schema, array, closed
from hf_transformer.tasks.labels import (
    CLASSIFIER,
    LABELS_SCHEMA,
    read_labels,
    read_problem_type,
    tei_labels,
    text_logits,
)
from hf_transformer.tasks.long_texts import merge, read_overflow, read_windows
from hf_transformer.tasks.numerics import require_numbers, sigmoid, softmax
from hf_transformer.tasks.options import (
    Form,
    Format,
    MaxChunks,
    MaxTokens,
    Probabilities,
    RawLogits,
    Score,
    Stride,
    TaskParameters,
    Truncation,
    TruncationSide,
    WindowScore,
    read_form,
)
from hf_transformer.tasks.tensors import FREE, OUTPUT, TEXT, Field
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization

Function = Literal["none", "softmax", "sigmoid"]
PRAISE = "The hotel was wonderful."
PIPELINE_PARAMETERS = ("top_k", "function_to_apply")
DECIMALS = 4
"""Decimal places of the probabilities in the kserve format."""
LABEL_BYTES = 300
"""Bytes of an object with a label and its score, with its JSON."""


class SequenceClassificationParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    return_probabilities: Probabilities = False
    return_raw_logits: RawLogits = False
    top_k: Annotated[Positive, about("Labels in the answer, null for all; in the pipeline format.")] = 1
    function_to_apply: Annotated[
        Literal["default", "none", "softmax", "sigmoid"],
        about("The function from logits to scores; in the pipeline format."),
    ] = "default"
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    stride: Stride = None
    window_score: Score = "max"
    max_chunks_per_doc: MaxChunks = None


@dataclass(frozen=True, slots=True)
class SequenceClassificationOptions:
    """The effect of a request's parameters.

    ``function`` maps logits to scores; ``top_k`` None returns all labels; ``window_score`` None has no windows.
    """

    form: Form
    function: Function
    top_k: int | None = 1
    overflow: Overflow = "truncate"
    tokenization: Tokenization = PLAIN
    window_score: WindowScore | None = None


class SequenceClassification(Task[TextInput, SequenceClassificationOptions, Json]):
    """Reads ``logits`` [labels].

    Answers per instance:
        plain           the index of the highest logit, as in KServe
        probabilities   {"<id>": probability, ...} for all labels, rounded to 4 decimals: sigmoid for a single label or
                        multi_label_classification, where KServe's softmax is wrong; otherwise softmax
        raw_logits      {"<id>": logit, ...} for all labels
        pipeline        a list of ``top_k`` objects {"label", "score"}, the highest score first

    The default function is that of transformers' pipelines/text_classification.py: none for regression, sigmoid for
    independent labels or a single label, otherwise softmax.
    """

    name = "sequence_classification"
    options_type = SequenceClassificationParameters
    has_windows = takes_pairs = True
    fields = (TEXT, Field("text_pair", optional=True))
    purpose = "Sorts texts into classes"
    examples = (
        Example("as KServe", {"instances": [PRAISE]}),
        Example(
            "as a pipeline",
            {"instances": [PRAISE], "parameters": {"output_format": "pipeline", "top_k": None}},
            "pipeline",
        ),
        Example("a pair", {"instances": [{"text": PRAISE, "text_pair": "The food was awful."}]}, "pair"),
    )
    demo = Demo("sentiment", PRAISE, {"output_format": "pipeline"})
    export_head = CLASSIFIER
    instance_schemas = (
        {
            "description": "A text, or a pair of texts; for sequence_classification.",
            "anyOf": [STRING, closed(["text"], text=STRING, text_pair=OPTIONAL_STRING)],
        },
    )
    info_schemas: ClassVar[Mapping[str, Schema]] = {
        "labels": LABELS_SCHEMA,
        "problem_type": {**OPTIONAL_STRING, "description": "config.json's, for sequence_classification."},
    }
    prediction_schemas = (
        {"type": "integer", "description": "The number of the best label; for sequence_classification."},
        {
            "description": "Probabilities or logits by the label's number.",
            "type": "object",
            "additionalProperties": NUMBER,
            "minProperties": 1,
        },
        {
            "description": "Labels in the pipeline format, the best first.",
            **array(closed(["label", "score"], label=STRING, score=NUMBER)),
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.labels = read_labels(settings.model_config)
        self.function = default_function(read_problem_type(settings.model_config), len(self.labels))
        if self.function == "none" and settings.flags.get("return_probabilities"):
            raise ConfigError("--return_probabilities: config.json says regression; use --return_raw_logits")
        self.outputs = (text_logits(len(self.labels)),)

    def info(self) -> dict[str, Json]:
        return {"labels": self.labels, "problem_type": self.settings.model_config.get("problem_type")}

    def tei_type(self) -> dict[str, Json]:
        return {"classifier": tei_labels(self.labels)}

    def options(self, parameters: Mapping[str, Json]) -> SequenceClassificationOptions:
        request, present = self.read(SequenceClassificationParameters, parameters)
        form = read_form(request, present, PIPELINE_PARAMETERS)
        if form == "probabilities" and self.function == "none":
            expected, hint = "no value for a regression model", "return_raw_logits gives its values"
            raise InvalidInput(("parameters", "return_probabilities"), expected, hint=hint)
        overflow = read_overflow(request, self.settings.on_overflow)
        tokenization = read_windows(request, present, self.settings, overflow, PLAIN, most=request.max_chunks_per_doc)
        top_k: int | None = request.top_k
        if "top_k" in parameters and parameters["top_k"] is None:
            # null means all labels, as in transformers.
            if form != "pipeline":
                raise InvalidInput(("parameters", "top_k"), "no value in the kserve format", "null")
            top_k = None
        return SequenceClassificationOptions(
            form,
            self.function if request.function_to_apply == "default" else request.function_to_apply,
            top_k,
            overflow,
            tokenization,
            request.window_score if tokenization.windows else None,
        )

    def item(self, instance: Json, path: Path, options: SequenceClassificationOptions) -> TextInput:
        return read_text_or_pair(instance, path)

    def answer_size(self, encoding: Encoding, options: SequenceClassificationOptions) -> int:
        if options.form == "plain":
            return 1
        count = len(self.labels)
        return count if options.form != "pipeline" or options.top_k is None else min(options.top_k, count)

    def value_bytes(self, options: SequenceClassificationOptions, *, tensors: bool) -> int:
        return (LABEL_BYTES if options.form == "pipeline" else VALUE_BYTES) * (2 if tensors else 1)

    def decode(
        self, item: TextInput, encoding: Encoding, outputs: Outputs, options: SequenceClassificationOptions
    ) -> Json:
        logits = outputs["logits"]
        # For few labels, a list is faster than numpy, whose calls take microseconds.
        values: list[float] = logits.tolist()
        # Each logit is a row: a classifier bans no label, so -inf is invalid too.
        if not all(map(isfinite, values)):
            require_numbers(logits[:, np.newaxis])
        if options.window_score is not None:
            return logits.astype(np.float32)
        if options.form == "plain":
            return values.index(max(values))
        if options.form == "raw_logits":
            return _by_label(values)
        return self.render(apply(options.function, logits), options)

    def answer(self, item: TextInput, parts: Sequence[Sequence[Json]], options: SequenceClassificationOptions) -> Json:
        if options.window_score is None:
            return parts[0][0]
        # The best window of independent labels differs by label; of other labels it is the most certain one.
        if self.function == "softmax":
            logits = merge(parts[0], options.window_score, lambda rows: softmax(rows).max(axis=1))
        else:
            logits = np.array(parts[0]).max(axis=0) if options.window_score == "max" else np.mean(parts[0], axis=0)
        return self.decode(item, Encoding([], []), {"logits": logits}, replace(options, window_score=None))

    def render(self, scores: Array, options: SequenceClassificationOptions) -> Json:
        """Formats scores, float32 [labels], in the forms probabilities and pipeline."""
        if options.form == "probabilities":
            return _by_label([round(score, DECIMALS) for score in scores.tolist()])
        # A stable sort orders labels of equal scores as transformers does.
        best = np.argsort(-scores, kind="stable")[: options.top_k].tolist()
        return [{"label": self.labels[label], "score": float(scores[label])} for label in best]

    def tensor(self, predictions: Sequence[Json], options: SequenceClassificationOptions) -> Tensor:
        """INT64 [instances] of label indices in the form plain; otherwise BYTES [instances] of JSON texts."""
        if options.form == "plain":
            return Tensor(OUTPUT, "INT64", np.array(predictions, np.int64))
        return super().tensor(predictions, options)

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        plain = self.options({}).form == "plain"
        return (TensorSpec(OUTPUT, "INT64" if plain else "BYTES", (FREE,)),)


def default_function(problem_type: str | None, labels: int) -> Function:
    """The default function of transformers' text-classification pipeline."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or labels == 1 else "softmax"


def apply(function: Function, logits: Array) -> Array:
    """Maps logits [labels] to scores, float32 [labels]."""
    if function == "softmax":
        return softmax(logits)
    return sigmoid(logits) if function == "sigmoid" else logits.astype(np.float32)


def read_text_or_pair(instance: Json, path: Path) -> TextInput:
    """Parses a string, {"text"} or {"text", "text_pair"}. Raises InvalidInput for any other form.

    An empty or null ``text_pair`` means a single text, as in transformers.
    """
    if isinstance(instance, str):
        return instance
    if isinstance(instance, dict) and "text" in instance and instance.keys() <= {"text", "text_pair"}:
        text, pair = instance["text"], instance.get("text_pair")
        for name, value in (("text", text), ("text_pair", "" if pair is None else pair)):
            if not isinstance(value, str):
                raise InvalidInput((*path, name), "a string", describe(value))
        return (text, pair) if pair else text
    expected = 'a string, {"text": string} or {"text": string, "text_pair": string}'
    hint = "a pair of texts is an object, not a list" if isinstance(instance, list) else ""
    raise InvalidInput(path, expected, describe(instance), hint)


def _by_label(values: list[Json]) -> Json:
    return {str(label): value for label, value in enumerate(values)}
