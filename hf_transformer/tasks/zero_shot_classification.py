"""zero_shot_classification: an entailment model's scores of the client's labels for a text."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from hf_transformer.errors import InvalidInput, LoadError, Path, TooLarge, describe
from hf_transformer.tasks.base import Expansion, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import FULL_STRING, NUMBER, STRING, Demo, Example, Schema, array, closed
from hf_transformer.tasks.labels import CLASSIFIER, read_labels, text_logits
from hf_transformer.tasks.long_texts import merge, read_overflow, read_windows
from hf_transformer.tasks.numerics import require_numbers, softmax
from hf_transformer.tasks.options import (
    Format,
    MaxChunks,
    MaxTokens,
    Score,
    Stride,
    TaskParameters,
    Truncation,
    TruncationSide,
    WindowScore,
)
from hf_transformer.tasks.tensors import TEXT, Field
from hf_transformer.types.fields import about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

DEFAULT_TEMPLATE = "This example is {}."
"""The default of transformers' zero-shot-classification pipeline."""
MAX_LABELS, MAX_HYPOTHESIS_LENGTH = 1000, 1000
"""Maximum number of labels per instance, and of characters per hypothesis."""
INSTANCE = 'a string or {"sequence": string, "candidate_labels": list of strings}'
MATCH = "The team won the match."
LABELS_HELP = "Labels in a list, or with commas between; those of an instance go before those in parameters."
LABELS_FORMS: Sequence[Schema] = (array(STRING, minItems=1, maxItems=MAX_LABELS), FULL_STRING, {"type": "null"})
LABELS_SCHEMA: Schema = {"description": LABELS_HELP, "anyOf": LABELS_FORMS}
SEQUENCE_NAMES = ("sequence", "sequences", "text")
TRUNCATE_SEQUENCE = Tokenization(only_first=True)
"""Truncates only the sequence, to preserve the labels."""


class ZeroShotParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    candidate_labels: Annotated[Json, about(LABELS_HELP, schema={"anyOf": LABELS_FORMS})] = None
    hypothesis_template: Annotated[
        str | None, about(f'A text with {{}} in the place of the label; "{DEFAULT_TEMPLATE}" if not given.')
    ] = None
    multi_label: Annotated[bool, about("Whether several labels may fit, each with a score of its own.")] = False
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    stride: Stride = None
    window_score: Score = "max"
    max_chunks_per_doc: MaxChunks = None


@dataclass(frozen=True, slots=True)
class ZeroShotOptions:
    """The effect of a request's parameters.

    ``labels`` apply to instances without labels. ``template`` is the result of ``split_template``.
    """

    labels: tuple[str, ...] | None
    template: tuple[str, ...]
    multi_label: bool
    overflow: Overflow
    tokenization: Tokenization
    window_score: WindowScore


@dataclass(frozen=True, slots=True)
class ZeroShotItem:
    """A text and its labels, at least one."""

    sequence: str
    labels: tuple[str, ...]


class ZeroShotClassification(Task[ZeroShotItem, ZeroShotOptions, Array]):
    """Reads ``logits`` [labels of the model] of each pair (sequence, hypothesis), a pair per candidate label.

    In both formats, the answer is {"sequence", "labels", "scores"}, the best label first, as in transformers'
    pipelines/zero_shot_classification.py. Scores are a softmax of the entailment logits over the labels. With
    ``multi_label`` or a single label, each score is a softmax of entailment and contradiction. transformers finds
    contradiction by its position, which is another label where the order is neutral, entailment, contradiction.
    """

    name = "zero_shot_classification"
    options_type = ZeroShotParameters
    has_windows = takes_pairs = True
    special_tokens = 3
    fields = (Field("text", ("sequence", *TEXT.other_names)), Field("candidate_labels", many=True, optional=True))
    purpose = "Sorts texts by labels of your own"
    examples = (
        Example(
            "labels of your own (zero-shot)",
            {"instances": [MATCH], "parameters": {"candidate_labels": ["politics", "sport", "cooking"]}},
        ),
        Example(
            "several labels may fit",
            {
                "instances": [{"sequence": MATCH, "candidate_labels": ["sport", "victory"]}],
                "parameters": {"multi_label": True, "hypothesis_template": "This text is about {}."},
            },
            "several",
        ),
    )
    demo = Demo("nli", MATCH, {"candidate_labels": ["politics", "sport", "cooking"]})
    export_head = CLASSIFIER
    instance_schemas = (
        {
            "description": "A text, and labels where parameters have none; for zero_shot_classification. "
            '"sequences" is another name of "sequence".',
            "anyOf": [
                FULL_STRING,
                closed(["sequence"], sequence=FULL_STRING, candidate_labels=LABELS_SCHEMA),
                closed(["text"], text=FULL_STRING, candidate_labels=LABELS_SCHEMA),
            ],
        },
    )
    prediction_schemas = (
        {
            "description": "The labels, the best first; for zero_shot_classification.",
            **closed(["sequence", "labels", "scores"], sequence=STRING, labels=array(STRING), scores=array(NUMBER)),
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        count = len(read_labels(settings.model_config))
        contradiction, entailment = label_ids(settings.model_config)
        if count < 2 or not (0 <= entailment < count and 0 <= contradiction < count):
            raise LoadError(
                f"zero_shot_classification needs a model with entailment and another label, and config.json names "
                f"{count} of them, entailment as number {entailment}, contradiction as number {contradiction}"
            )
        self._columns = [contradiction, entailment]
        self.outputs = (text_logits(count),)

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        return {"sequence": text, "candidate_labels": ["science", "music", "politics"]}

    def options(self, parameters: Mapping[str, Json]) -> ZeroShotOptions:
        request, present = self.read(ZeroShotParameters, parameters)
        template, labels = request.hypothesis_template, request.candidate_labels
        overflow = read_overflow(request, self.settings.on_overflow)
        most = request.max_chunks_per_doc
        return ZeroShotOptions(
            labels=None if labels is None else read_candidate_labels(labels, ("parameters",)),
            template=split_template(DEFAULT_TEMPLATE if template is None else template),
            multi_label=request.multi_label,
            overflow=overflow,
            tokenization=read_windows(request, present, self.settings, overflow, TRUNCATE_SEQUENCE, most=most),
            window_score=request.window_score,
        )

    def item(self, instance: Json, path: Path, options: ZeroShotOptions) -> ZeroShotItem:
        sequence, labels = instance, options.labels
        if isinstance(instance, dict):
            names = [name for name in SEQUENCE_NAMES if name in instance]
            if len(names) != 1 or not instance.keys() <= {names[0], "candidate_labels"}:
                raise InvalidInput(path, INSTANCE, describe(instance))
            sequence = instance[names[0]]
            if not isinstance(sequence, str):
                hint = "send an instance for each text" if isinstance(sequence, list) else ""
                raise InvalidInput((*path, names[0]), "a string", describe(sequence), hint)
            if instance.get("candidate_labels") is not None:
                labels = read_candidate_labels(instance["candidate_labels"], path)
        elif not isinstance(instance, str):
            raise InvalidInput(path, INSTANCE, describe(instance))
        if not sequence:
            raise InvalidInput(path, "a text", "an empty one")
        if labels is None:
            raise InvalidInput(path, "candidate_labels in the instance or in parameters", "none")
        length = sum(map(len, options.template)) + max(map(len, labels)) * (len(options.template) - 1)
        if length > MAX_HYPOTHESIS_LENGTH:
            owner = "parameters" if labels is options.labels else path
            expected = f"labels that give a hypothesis of at most {MAX_HYPOTHESIS_LENGTH} characters"
            raise TooLarge((*owner, "candidate_labels"), expected, f"one of {length}")
        return ZeroShotItem(sequence, labels)

    def expansion(self, item: ZeroShotItem, options: ZeroShotOptions) -> Expansion:
        return Expansion(len(item.labels), len(item.labels) * len(item.sequence))

    def texts(self, item: ZeroShotItem, options: ZeroShotOptions) -> Sequence[TextInput]:
        return [(item.sequence, label.join(options.template)) for label in item.labels]

    def answer_size(self, encoding: Encoding, options: ZeroShotOptions) -> int:
        return 2

    def repeats_texts(self, options: ZeroShotOptions) -> bool:
        return True

    def decode(self, item: ZeroShotItem, encoding: Encoding, outputs: Outputs, options: ZeroShotOptions) -> Array:
        """The logits of contradiction and entailment, float32 [2]."""
        logits = outputs["logits"][self._columns].astype(np.float32)
        require_numbers(logits[:, np.newaxis])
        return logits

    def answer(self, item: ZeroShotItem, parts: Sequence[Sequence[Array]], options: ZeroShotOptions) -> Json:
        independent = options.multi_label or len(item.labels) == 1
        # A window's score is that of its label: entailment, less contradiction if labels are independent.
        weights = np.array([-independent, 1], np.float32)
        logits = np.stack([merge(windows, options.window_score, lambda rows: rows @ weights) for windows in parts])
        if independent:
            scores = softmax(logits)[:, 1]
        else:
            scores = softmax(logits[:, 1])
        # As in transformers, an ascending sort, then reversed: among equal scores, later labels precede.
        best = np.argsort(scores)[::-1].tolist()
        return {
            "sequence": item.sequence,
            "labels": [item.labels[index] for index in best],
            "scores": scores[best].tolist(),
        }


def label_ids(model_config: Mapping[str, Json]) -> tuple[int, int]:
    """The ids of contradiction and entailment, the first labels with the prefixes "contra" and "entail".

    Without a label "contra...", contradiction is as in transformers the first label, or the last one if entailment is
    the first. Raises LoadError if no label has the prefix "entail".
    """
    labels, ids = read_labels(model_config), model_config.get("label2id")
    by_name = {name: index for index, name in enumerate(labels)}
    ids = {**ids, **{name: by_name[name] for name in by_name if name not in ids}} if isinstance(ids, dict) else by_name
    entailment = _id_of("entail", ids)
    if entailment is None:
        raise LoadError(
            "zero_shot_classification needs a model trained on entailment: none of the labels in config.json "
            f"(label2id) starts with 'entail': {', '.join(map(str, ids))[:200]}"
        )
    contradiction = _id_of("contra", ids)
    if contradiction is None:
        contradiction = len(labels) - 1 if entailment == 0 else 0
    return contradiction, entailment


def _id_of(prefix: str, ids: Mapping[str, Json]) -> int | None:
    return next(
        (number for name, number in ids.items() if name.lower().startswith(prefix) and isinstance(number, int)), None
    )


def read_candidate_labels(
    value: Json, owner: Path, name: str = "candidate_labels", most: int = MAX_LABELS
) -> tuple[str, ...]:
    """Parses a list of labels, or a comma-separated string with optional spaces.

    Args:
        owner: the path of the object with the field ``name``, for errors: ``parameters`` or an instance.

    Raises:
        InvalidInput: the value has an invalid form, or no label.
        TooLarge: the number of labels exceeds ``most``.
    """
    if isinstance(value, str):
        if (count := value.count(",") + 1) > 2 * most:
            raise TooLarge((*owner, name), f"at most {most} labels", str(count))
        value = [label.strip() for label in value.split(",") if label.strip()]
    if not isinstance(value, list) or not value:
        got = describe(value) if value != [] else "none"
        raise InvalidInput((*owner, name), "labels, in a list or separated by commas", got)
    if len(value) > most:
        raise TooLarge((*owner, name), f"at most {most} labels", str(len(value)))
    for index, label in enumerate(value):
        if not isinstance(label, str):
            raise InvalidInput((*owner, name, index), "a string", describe(label))
    return tuple(value)


def split_template(template: str) -> tuple[str, ...]:
    """Splits a template at its placeholders: ``label.join(pieces)`` is a hypothesis.

    The placeholder is a single {}, or any number of {0}; {{ and }} are literal braces. str.format's attributes and
    widths are invalid, since a client could read or exhaust memory with them. Raises InvalidInput.
    """
    expected = 'a text with {} for the label, such as "This example is {}."'
    wrong = InvalidInput(("parameters", "hypothesis_template"), expected)
    pieces, fields = [""], set()
    try:
        for literal, field, layout, conversion in string.Formatter().parse(template):
            pieces[-1] += literal
            if field is not None:
                if layout or conversion:
                    raise wrong
                fields.add(field)
                pieces.append("")
    except ValueError:
        raise wrong from None
    if fields != {"0"} and (fields != {""} or len(pieces) != 2):
        raise wrong
    return tuple(pieces)
