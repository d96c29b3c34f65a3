"""zero_shot_classification: which of a request's own labels fit a text, by a model trained on entailment."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.errors import InvalidInput, LoadError, TooLarge, describe
from hf_transformer.tasks.base import Overflow, Task, TaskSettings
from hf_transformer.tasks.labels import read_labels, text_logits
from hf_transformer.tasks.numerics import require_numbers, softmax
from hf_transformer.tasks.parameters import Parameters, read_output_format, read_truncation
from hf_transformer.tasks.tensors import TEXT, Field
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

PARAMETERS = ("output_format", "candidate_labels", "hypothesis_template", "multi_label", "truncation")
DEFAULT_TEMPLATE = "This example is {}."
"""That of transformers' pipeline."""
MAX_LABELS, MAX_HYPOTHESIS_LENGTH = 1000, 1000
"""Labels of an instance, and characters of a hypothesis, in which a label can stand several times."""
EXPECTED = 'expected a string or {"sequence": string, "candidate_labels": list of strings}'
SEQUENCE_NAMES = ("sequence", "sequences", "text")
HYPOTHESES_WHOLE = Tokenization(only_first=True)
"""Only the sequence is cut, so that no label is lost."""


@dataclass(frozen=True, slots=True)
class ZeroShotOptions:
    """One request's choices.

    A hypothesis is the label between the pieces of ``template``. ``labels`` are for instances without their own.
    """

    labels: tuple[str, ...] | None
    template: tuple[str, ...]
    multi_label: bool
    overflow: Overflow


@dataclass(frozen=True, slots=True)
class ZeroShotItem:
    """A text and its labels, at least one."""

    sequence: str
    labels: tuple[str, ...]


class ZeroShotClassification(Task[ZeroShotItem, ZeroShotOptions, Array]):
    """Reads ``logits`` [labels of the model] of each pair (sequence, hypothesis), one per candidate label.

    The answer, in both output formats, is that of transformers' pipelines/zero_shot_classification.py: {"sequence",
    "labels", "scores"}, the best label first. The scores are the softmax of the entailment logits over the labels; with
    ``multi_label``, or a single label, each label's own softmax of entailment against contradiction.
    """

    name = "zero_shot_classification"
    parameters = PARAMETERS
    fields = (Field("text", ("sequence", *TEXT.other_names)), Field("candidate_labels", many=True, optional=True))

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        count = len(read_labels(settings.model_config))
        entailment = entailment_id(settings.model_config)
        if count < 2 or not 0 <= entailment < count:
            raise LoadError(
                f"zero_shot_classification needs a model with entailment and another label, and config.json names "
                f"{count} of them, entailment as number {entailment}"
            )
        # As in transformers, contradiction is the first label, or the last if the first is entailment.
        self._columns = [count - 1 if entailment == 0 else 0, entailment]
        self.outputs = (text_logits(count),)

    def options(self, parameters: Mapping[str, Json]) -> ZeroShotOptions:
        given = Parameters(parameters, self.parameters)
        read_output_format(given, self.settings)
        template = given.string("hypothesis_template")
        labels = parameters.get("candidate_labels")
        return ZeroShotOptions(
            labels=None if labels is None else read_labels_given(labels, "parameters"),
            template=split_template(DEFAULT_TEMPLATE if template is None else template),
            multi_label=given.flag("multi_label", False),
            overflow=read_truncation(given, self.settings),
        )

    def item(self, instance: Json, where: str, options: ZeroShotOptions) -> ZeroShotItem:
        sequence, labels = instance, options.labels
        if isinstance(instance, dict):
            names = [name for name in SEQUENCE_NAMES if name in instance]
            if len(names) != 1 or not instance.keys() <= {names[0], "candidate_labels"}:
                raise InvalidInput.of(f"{where}: {EXPECTED}, got {describe(instance)}")
            sequence = instance[names[0]]
            if not isinstance(sequence, str):
                one_each = "; send an instance for each" if isinstance(sequence, list) else ""
                raise InvalidInput.of(f"{where}.{names[0]}: expected a string, got {describe(sequence)}{one_each}")
            if instance.get("candidate_labels") is not None:
                labels = read_labels_given(instance["candidate_labels"], where)
        elif not isinstance(instance, str):
            raise InvalidInput.of(f"{where}: {EXPECTED}, got {describe(instance)}")
        if not sequence:
            raise InvalidInput.of(f"{where}: the text is empty")
        if labels is None:
            raise InvalidInput.of(f"{where}: no candidate_labels, neither here nor in parameters")
        return ZeroShotItem(sequence, labels)

    def texts(self, item: ZeroShotItem, options: ZeroShotOptions) -> Sequence[TextInput]:
        longest = max(map(len, item.labels))
        length = sum(map(len, options.template)) + longest * (len(options.template) - 1)
        if length > MAX_HYPOTHESIS_LENGTH:
            raise TooLarge.of(
                f"candidate_labels: with hypothesis_template one makes {length} characters, at most "
                f"{MAX_HYPOTHESIS_LENGTH} are taken"
            )
        return [(item.sequence, label.join(options.template)) for label in item.labels]

    def tokenization(self, options: ZeroShotOptions) -> Tokenization:
        return HYPOTHESES_WHOLE

    def answer_size(self, encoding: Encoding, options: ZeroShotOptions) -> int:
        return 2

    def decode(
        self, item: ZeroShotItem, encoding: Encoding, outputs: Mapping[str, Array], options: ZeroShotOptions
    ) -> Array:
        """The logits of contradiction and entailment, float32 [2]."""
        logits = outputs["logits"][self._columns].astype(np.float32)
        require_numbers(logits[:, np.newaxis])
        return logits

    def answer(self, item: ZeroShotItem, parts: Sequence[Sequence[Array]], options: ZeroShotOptions) -> Json:
        logits = np.stack([windows[0] for windows in parts])
        if options.multi_label or len(item.labels) == 1:
            scores = softmax(logits)[:, 1]
        else:
            scores = softmax(logits[:, 1])
        # Ascending and then reversed, as transformers sorts: of two equal scores, the later label comes first.
        best = np.argsort(scores)[::-1].tolist()
        return {
            "sequence": item.sequence,
            "labels": [item.labels[index] for index in best],
            "scores": scores[best].tolist(),
        }


def entailment_id(model_config: Mapping[str, Json]) -> int:
    """The number of the label whose name starts with "entail", in ``label2id``, else ``id2label``.

    Raises:
        LoadError: there is none.
    """
    ids = model_config.get("label2id")
    if not isinstance(ids, dict):
        ids = {name: number for number, name in enumerate(read_labels(model_config))}
    for name, number in ids.items():
        if name.lower().startswith("entail") and isinstance(number, int):
            return number
    raise LoadError(
        "zero_shot_classification needs a model trained on entailment: none of the labels in config.json (label2id) "
        f"starts with 'entail': {', '.join(map(str, ids))[:200]}"
    )


def read_labels_given(given: Json, where: str) -> tuple[str, ...]:
    """A list of labels, or a string of them with commas between, which are stripped then.

    Raises:
        InvalidInput: it is something else, or has no label.
        TooLarge: there are too many.
    """
    if isinstance(given, str):
        given = [label.strip() for label in given.split(",") if label.strip()]
    if not isinstance(given, list) or not given:
        found = describe(given) if given != [] else "none"
        raise InvalidInput.of(
            f"{where}.candidate_labels: expected labels, in a list or with commas between, got {found}"
        )
    if len(given) > MAX_LABELS:
        raise TooLarge.of(f"{where}.candidate_labels: {len(given)} labels, at most {MAX_LABELS} are taken")
    for index, label in enumerate(given):
        if not isinstance(label, str):
            raise InvalidInput.of(f"{where}.candidate_labels[{index}]: expected a string, got {describe(label)}")
    return tuple(given)


def split_template(template: str) -> tuple[str, ...]:
    """The pieces of a template between the places of the label: ``label.join(pieces)`` is a hypothesis.

    A place is {}, or any number of {0}; {{ and }} stand for braces. With the attributes and widths of str.format a
    client could read or fill the memory.

    Raises:
        InvalidInput: the template has no place for the label, or says something else in braces.
    """
    wrong = InvalidInput.of(
        'parameters.hypothesis_template: expected a text with {} where the label goes, such as "This example is {}."'
    )
    pieces, places = [""], []
    try:
        for literal, field, layout, conversion in string.Formatter().parse(template):
            pieces[-1] += literal
            if field is not None:
                if layout or conversion:
                    raise wrong
                places.append(field)
                pieces.append("")
    except ValueError:
        raise wrong from None
    if places != [""] and (not places or set(places) != {"0"}):
        raise wrong
    return tuple(pieces)
