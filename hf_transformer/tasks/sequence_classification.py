"""sequence_classification: the labels of a text, or of a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, cast

import numpy as np

from hf_transformer.errors import ConfigError, InvalidInput, describe
from hf_transformer.tasks.base import LOGITS, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.labels import read_labels, read_problem_type, text_logits
from hf_transformer.tasks.numerics import require_numbers, sigmoid, softmax
from hf_transformer.tasks.parameters import Form, Parameters, read_form, read_truncation
from hf_transformer.tasks.tensors import FREE, OUTPUT, TEXT, Field
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding, TextInput

Function = Literal["none", "softmax", "sigmoid"]
FUNCTIONS: tuple[Function, ...] = ("none", "softmax", "sigmoid")
PIPELINE_PARAMETERS = ("top_k", "function_to_apply")
DECIMALS = 4
"""Decimals of the probabilities in the kserve format."""


@dataclass(frozen=True, slots=True)
class SequenceClassificationOptions:
    """One request's parameters. ``function`` turns logits into scores; ``top_k`` None gives all labels."""

    form: Form
    function: Function
    top_k: int | None = 1
    overflow: Overflow = "truncate"


class SequenceClassification(Task[TextInput, SequenceClassificationOptions, Json]):
    """Reads ``logits`` [labels].

    Answers per instance, N labels:
        plain           the index of the highest logit, as KServe gives it; it says little for models with independent
                        labels or with one label
        probabilities   {"<id>": probability, 4 decimals}, N of them: softmax, or sigmoid if the labels are independent
                        (multi_label_classification) or there is one; KServe's softmax is wrong there
        raw_logits      {"<id>": logit}, N of them
        pipeline        a list of ``top_k`` objects {"label", "score"}, the best first

    The function from logits to scores is that of transformers' pipelines/text_classification.py: none for regression,
    sigmoid for independent labels or a single one, else softmax.
    """

    name = "sequence_classification"
    other_names = ("text_classification", "sentiment_analysis")
    parameters = ("output_format", *LOGITS, *PIPELINE_PARAMETERS, "truncation")
    fields = (TEXT, Field("text_pair", optional=True))

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self.labels = read_labels(settings.model_config)
        self.function = default_function(read_problem_type(settings.model_config), len(self.labels))
        if self.function == "none" and settings.return_probabilities:
            raise ConfigError("--return_probabilities: config.json says regression; use --return_raw_logits")
        self.outputs = (text_logits(len(self.labels)),)

    def options(self, parameters: Mapping[str, Json]) -> SequenceClassificationOptions:
        checked = Parameters(parameters, self.parameters)
        form = read_form(checked, self.settings, PIPELINE_PARAMETERS)
        if form == "probabilities" and self.function == "none":
            expected, hint = "no value for a regression model", "return_raw_logits gives its values"
            raise InvalidInput("parameters.return_probabilities", expected, hint=hint)
        function = checked.choice("function_to_apply", "default", ("default", *FUNCTIONS))
        return SequenceClassificationOptions(
            form,
            self.function if function == "default" else cast(Function, function),
            _read_top_k(parameters, checked, form),
            read_truncation(checked, self.settings),
        )

    def item(self, instance: Json, path: str, options: SequenceClassificationOptions) -> TextInput:
        return read_text_or_pair(instance, path)

    def answer_size(self, encoding: Encoding, options: SequenceClassificationOptions) -> int:
        if options.form == "plain":
            return 1
        count = len(self.labels)
        return count if options.form != "pipeline" or options.top_k is None else min(options.top_k, count)

    def decode(
        self, item: TextInput, encoding: Encoding, outputs: Outputs, options: SequenceClassificationOptions
    ) -> Json:
        logits = outputs["logits"]
        # A few labels are faster as a list than with numpy, whose calls take microseconds.
        values: list[float] = logits.tolist()
        # Each logit is a row here: a classifier bans no label, so -inf is wrong too.
        if not all(map(isfinite, values)):
            require_numbers(logits[:, np.newaxis])
        if options.form == "plain":
            return values.index(max(values))
        if options.form == "raw_logits":
            return _by_label(values)
        return self.render(apply(options.function, logits), options)

    def render(self, scores: Array, options: SequenceClassificationOptions) -> Json:
        """Scores, float32 [labels], in the forms probabilities and pipeline."""
        if options.form == "probabilities":
            return _by_label([round(score, DECIMALS) for score in scores.tolist()])
        # A stable sort keeps labels of equal scores in the order of transformers.
        best = np.argsort(-scores, kind="stable")[: options.top_k].tolist()
        return [{"label": self.labels[label], "score": float(scores[label])} for label in best]

    def tensor(self, predictions: Sequence[Json], options: SequenceClassificationOptions) -> Tensor:
        """INT64 [instances], the best label's index, in the form plain; else BYTES [instances], JSON text."""
        if options.form == "plain":
            return Tensor(OUTPUT, "INT64", np.array(predictions, np.int64))
        return super().tensor(predictions, options)

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        plain = self.options({}).form == "plain"
        return (TensorSpec(OUTPUT, "INT64" if plain else "BYTES", (FREE,)),)


def _read_top_k(parameters: Mapping[str, Json], checked: Parameters, form: Form) -> int | None:
    if "top_k" in parameters and parameters["top_k"] is None:
        # Here null is a value: all labels, as in transformers.
        if form != "pipeline":
            raise InvalidInput("parameters.top_k", "no value in the kserve format", "null")
        return None
    return checked.integer("top_k", 1, 1)


def default_function(problem_type: str | None, labels: int) -> Function:
    """The function that transformers' text-classification pipeline applies by default."""
    if problem_type == "regression":
        return "none"
    return "sigmoid" if problem_type == "multi_label_classification" or labels == 1 else "softmax"


def apply(function: Function, logits: Array) -> Array:
    """Scores, float32 [labels], of logits [labels]."""
    if function == "softmax":
        return softmax(logits)
    return sigmoid(logits) if function == "sigmoid" else logits.astype(np.float32)


def read_text_or_pair(instance: Json, path: str) -> TextInput:
    """Parses a string, {"text"} or {"text", "text_pair"}; a ``text_pair`` that is empty or null means a single text, as
    in transformers.

    Raises:
        InvalidInput: the instance has another form.
    """
    if isinstance(instance, str):
        return instance
    if isinstance(instance, dict) and "text" in instance and instance.keys() <= {"text", "text_pair"}:
        text, pair = instance["text"], instance.get("text_pair")
        for name, value in (("text", text), ("text_pair", "" if pair is None else pair)):
            if not isinstance(value, str):
                raise InvalidInput(f"{path}.{name}", "a string", describe(value))
        return (text, pair) if pair else text
    expected = 'a string, {"text": string} or {"text": string, "text_pair": string}'
    hint = "a pair of texts is an object, not a list" if isinstance(instance, list) else ""
    raise InvalidInput(path, expected, describe(instance), hint)


def _by_label(values: list[Json]) -> Json:
    return {str(label): value for label, value in enumerate(values)}
