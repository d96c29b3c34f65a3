"""zero_shot_token_classification: entities whose labels come with the request, by GLiNER models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import numpy as np
from msgspec import Meta

from hf_transformer.errors import InvalidInput, LoadError, Path, TooLarge, describe
from hf_transformer.tasks.base import VALUE_BYTES, Axis, InputRole, OutputRole, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import (
    BATCH,
    FULL_STRING,
    INTEGER,
    NUMBER,
    STRING,
    Demo,
    Example,
    ExportHead,
    Schema,
    array,
    closed,
)
from hf_transformer.tasks.entity_spans import BorderScores, Candidates, WidthScores, choose
from hf_transformer.tasks.masking import CHARACTER_BYTES, Mask, MaskPattern, read_entities
from hf_transformer.tasks.options import Format, MaxTokens, Stride, TaskParameters, Truncation, by_flag
from hf_transformer.tasks.tensors import TEXT, Field
from hf_transformer.tasks.zero_shot_classification import read_candidate_labels
from hf_transformer.types.fields import Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import (
    Encoding,
    LabelFrame,
    LabelledEncoding,
    LabelledText,
    TextInput,
    Tokenization,
    Words,
)

MAX_LABELS, MAX_LABEL_LENGTH = 250, 200
"""Maximum number of labels per instance, and of characters per label. Models were trained with 25 or 30 labels."""
MAX_ENTITY_WORDS = 100
"""Maximum number of words in an entity of a token-level model, whose candidates grow with it."""
ENTITY_VALUES = 5
"""The number of values of an entity: start, end, text, label, score."""
SPAN_COST, WORDS_PER_COST, ENTITY_COST = 3, 16, 60
"""Time in units of decode_cost: of a span in turn, with nesting one more for so many words, and of an entity."""
INSTANCE = 'a string or {"text": string, "labels": list of strings}'
LABELS_HELP = "Labels in a list, or with commas between; those of an instance go before those in parameters."
LABELS_FORMS: Sequence[Schema] = (
    array({**FULL_STRING, "maxLength": MAX_LABEL_LENGTH}, minItems=1, maxItems=MAX_LABELS),
    FULL_STRING,
    {"type": "null"},
)
LABELS_SCHEMA: Schema = {"description": LABELS_HELP, "anyOf": LABELS_FORMS}
TRIAL_LABELS = ("person", "place")
ANNA = "Anna Smith lives in Berlin and works for Siemens."
ANNAS_LABELS = ["person", "city", "company"]
TOKEN_INPUTS = (InputRole("words_mask", 1), InputRole("text_lengths", 1))
SPAN_INPUTS = (
    *TOKEN_INPUTS,
    InputRole("span_idx", 2, optional=True),
    InputRole("span_mask", 1, ("BOOL",), optional=True),
)
"""Exports of models that compute all spans from the words (span_mode conv_max, for example) lack the spans."""
VECTORS_INPUT = InputRole("labels_embeddings", 2, ("FP32",))
"""The vectors of each text's labels, for bi-encoders; shorter lists have zeros behind them."""
POOLINGS = ("first", "last", "mean", "max")
WHOLE_WORDS = Tokenization(whole=True, special_tokens=False)


LABELLED_ENTITIES = array(
    closed(
        ["start", "end", "text", "label", "score"],
        start={**INTEGER, "description": "The first character."},
        end={**INTEGER, "description": "The character behind the last one."},
        text=STRING,
        label=STRING,
        score=NUMBER,
    )
)


class ZeroShotTokenParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    labels: Annotated[Json, about(LABELS_HELP, schema={"anyOf": LABELS_FORMS}), by_flag("labels")] = None
    threshold: Annotated[float, Meta(ge=0, le=1), about("Entities need a score above it.")] = 0.5
    flat_ner: Annotated[bool, about("Whether entities exclude each other; if not, one may be inside another.")] = True
    multi_label: Annotated[bool, about("Whether an entity may have several labels, each an element of its own.")] = (
        False
    )
    max_width: Annotated[
        Positive | None, about("Words of an entity at most; all that the model reads if not given.")
    ] = None
    mask: MaskPattern = None
    truncation: Truncation = None
    max_tokens: MaxTokens = None
    stride: Stride = None


@dataclass(frozen=True, slots=True)
class ZeroShotTokenOptions:
    """The effect of a request's parameters. ``labels`` apply to instances without labels.

    ``mask_values`` is the size of a masked entity in the answer, in values.
    """

    labels: tuple[str, ...] | None
    threshold: float
    nested: bool
    multi_label: bool
    max_width: int
    overflow: Overflow
    tokenization: Tokenization
    mask: Mask | None
    mask_values: int


@dataclass(frozen=True, slots=True)
class LabelledItem:
    """A text and its labels, at least one."""

    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundEntity:
    """An entity in a window: its first and last words, counted in the text, and its answer."""

    first: int
    last: int
    answer: dict[str, Json]


class ZeroShotTokenClassification(Task[LabelledItem, ZeroShotTokenOptions, list[FoundEntity]]):
    """Reads ``logits`` of GLiNER: [words, widths, labels] of a model of spans, [words, labels, 3] of a token-level one.

    The answer is a list of {"start", "end", "text", "label", "score"} in the order of the text, as GLiNER's
    predict_entities gives it; in both formats. With a mask it is {"entities", "masked_text"}. Of overlapping entities
    the one with the highest score remains. A long text is read in windows of whole words; an entity that two windows
    contain counts in the one with more context.
    """

    name = "zero_shot_token_classification"
    options_type = ZeroShotTokenParameters
    has_windows = True
    fields = (TEXT, Field("labels", many=True, optional=True))
    purpose = "Marks what labels of your own name in a text"
    examples = (
        Example("labels of your own", {"instances": [ANNA], "parameters": {"labels": ANNAS_LABELS}}),
        Example(
            "labels of each text",
            {"instances": [{"text": ANNA, "labels": ["person"]}], "parameters": {"threshold": 0.3}},
            "each",
        ),
        Example(
            "masked text", {"instances": [ANNA], "parameters": {"labels": ANNAS_LABELS, "mask": "[{label}]"}}, "mask"
        ),
    )
    demo = Demo("gliner", ANNA, {"labels": ANNAS_LABELS})
    export_head = ExportHead("GLiNER", {"logits": (BATCH, "words", "max_width", "labels")})
    instance_schemas = (
        {
            "description": "A text, and labels where parameters have none; for zero_shot_token_classification.",
            "anyOf": [STRING, closed(["text"], text=STRING, labels=LABELS_SCHEMA)],
        },
    )
    prediction_schemas = (
        {"description": "Entities; for zero_shot_token_classification.", **LABELLED_ENTITIES},
        {
            "description": "Entities and the text without them, with a mask; for zero_shot_token_classification.",
            **closed(["entities", "masked_text"], entities=LABELLED_ENTITIES, masked_text=STRING),
        },
    )
    info_schemas: ClassVar[Mapping[str, Schema]] = {
        "default_labels": {
            "description": "The labels of --labels; for zero_shot_token_classification.",
            **array(STRING),
        },
    }

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        gliner = settings.model_config.get("gliner")
        if not isinstance(gliner, dict):
            raise LoadError(f"{self.name} needs a GLiNER folder, with a gliner_config.json")
        self.is_token_level = check_architecture(gliner)
        self.is_bi_encoder = bool(gliner.get("labels_encoder"))
        self.inputs = TOKEN_INPUTS if self.is_token_level else SPAN_INPUTS
        if self.is_bi_encoder:
            self.inputs = (*self.inputs, VECTORS_INPUT)
        self.width = 1 if self.is_token_level else _number(gliner, "max_width", 12)
        # Labels and words attend to each other. Their masks don't help: ONNX has NaN for a label that sees nothing.
        self.reads_label_padding = self.is_bi_encoder and bool(gliner.get("post_fusion_schema"))
        # These layers read the mean of all words, the last word, or attend to words.
        self.reads_word_padding = (
            self.reads_label_padding
            or gliner.get("span_mode") in ("markerV1", "markerV2")
            or gliner.get("span_encoder_config") is not None
        )
        self._frame = _frame(settings, gliner)
        marks = (str(gliner.get("ent_token", "<<ENT>>")), str(gliner.get("sep_token", "<<SEP>>")))
        self._marks = () if self.is_bi_encoder else marks
        labels = settings.flags.get("labels")
        self._default_labels = None if labels is None else self._labels(labels, ("--labels",))
        words, classes = Axis(name="words"), Axis(name="labels")
        kinds = Axis(name="start, end and inside", minimum=3, maximum=3, why="a token-level model scores these three")
        widths = Axis(
            name="widths",
            minimum=self.width,
            maximum=self.width,
            why=f"max_width is {self.width} in gliner_config.json",
        )
        axes = (words, classes, kinds) if self.is_token_level else (words, widths, classes)
        self.outputs = (OutputRole("logits", axes),)

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        return {"text": text, "labels": [*TRIAL_LABELS]}

    def trial_text(self, text: str) -> TextInput:
        return LabelledText(text, TRIAL_LABELS, self._frame)

    def info(self) -> dict[str, Json]:
        return {"default_labels": [*(self._default_labels or ())]}

    def options(self, parameters: Mapping[str, Json]) -> ZeroShotTokenOptions:
        request, present = self.read(ZeroShotTokenParameters, parameters)
        if request.stride is not None and "stride" in present and request.truncation is not None:
            expected = "stride, which asks for windows, or truncation"
            raise InvalidInput(("parameters", "stride"), expected, "both")
        mask = None if request.mask is None else Mask(request.mask, self.settings.personal_data.mask_key)
        if mask is not None and request.truncation:
            raise InvalidInput(("parameters", "truncation"), "no truncation, with a mask", "true")
        is_read_whole = "stride" in present or (mask is not None and self.settings.on_overflow != "error")
        default: Overflow = "window" if is_read_whole else self.settings.on_overflow
        overflow = default if request.truncation is None else "truncate" if request.truncation else "error"
        stride = self.settings.window_stride if request.stride is None else request.stride
        widest = MAX_ENTITY_WORDS if self.is_token_level else self.width
        return ZeroShotTokenOptions(
            labels=self._default_labels if request.labels is None else self._labels(request.labels, ("parameters",)),
            threshold=request.threshold,
            nested=not request.flat_ner,
            multi_label=request.multi_label,
            max_width=widest if request.max_width is None else min(request.max_width, widest),
            overflow=overflow,
            tokenization=Tokenization(
                windows=overflow == "window", stride=stride, fit_stride=True, max_length=request.max_tokens
            ),
            mask=mask,
            mask_values=0 if mask is None else mask.longest(MAX_LABEL_LENGTH) * CHARACTER_BYTES // VALUE_BYTES + 1,
        )

    def _labels(self, value: Json, owner: Path) -> tuple[str, ...]:
        """Reads labels, each once. Raises InvalidInput and TooLarge."""
        labels = read_candidate_labels(value, owner, "labels", MAX_LABELS)
        for index, label in enumerate(labels):
            if len(label) > MAX_LABEL_LENGTH:
                expected = f"at most {MAX_LABEL_LENGTH} characters"
                raise TooLarge((*owner, "labels", index), expected, str(len(label)))
            if not label.strip():
                raise InvalidInput((*owner, "labels", index), "a label", "an empty one")
            if any(mark in label for mark in self._marks):
                expected = f"a label without the tokens {' and '.join(self._marks)}"
                raise InvalidInput((*owner, "labels", index), expected, "one with them", "they separate labels")
        return tuple(dict.fromkeys(labels))

    def item(self, instance: Json, path: Path, options: ZeroShotTokenOptions) -> LabelledItem:
        text, labels = instance, options.labels
        if isinstance(instance, dict):
            if not {"text"} <= instance.keys() <= {"text", "labels"}:
                raise InvalidInput(path, INSTANCE, describe(instance))
            text = instance["text"]
            if instance.get("labels") is not None:
                labels = self._labels(instance["labels"], path)
        if not isinstance(text, str):
            raise InvalidInput(path, INSTANCE, describe(text))
        if labels is None:
            raise InvalidInput(path, "labels in the instance, in parameters or by --labels", "none")
        return LabelledItem(text, labels)

    def texts(self, item: LabelledItem, options: ZeroShotTokenOptions) -> Sequence[TextInput]:
        """The text with its labels; none for one without words, which has no entities."""
        return (LabelledText(item.text, item.labels, self._frame),) if item.text.strip() else ()

    def answer_size(self, encoding: Encoding, options: ZeroShotTokenOptions) -> int:
        """Counts every entity that may be in the answer at the lowest threshold."""
        labelled = cast(LabelledEncoding, encoding)
        size = (ENTITY_VALUES + options.mask_values) * len(labelled.words)
        if options.nested:
            size *= 2  # spans of n words that don't cross are at most 2 n - 1
        return size * labelled.labels if options.multi_label else size

    def repeats_texts(self, options: ZeroShotTokenOptions) -> bool:
        return True

    def decode_cost(self, encoding: Encoding, options: ZeroShotTokenOptions) -> int:
        """Comparing the scores of all spans with the threshold, and with spans and entities as many as there may be at
        the lowest threshold, choosing among spans and reading the labels of entities."""
        labelled = cast(LabelledEncoding, encoding)
        words = len(labelled.words)
        spans = words * options.max_width
        chosen = spans * (SPAN_COST + (options.max_width // WORDS_PER_COST if options.nested else 0))
        entities = words * (2 if options.nested else 1) * ENTITY_COST
        return max(self.answer_size(encoding, options), chosen + entities, spans * labelled.labels // 50)

    def decode(
        self, item: LabelledItem, encoding: Encoding, outputs: Outputs, options: ZeroShotTokenOptions
    ) -> list[FoundEntity]:
        labelled = cast(LabelledEncoding, encoding)
        scores = BorderScores(outputs["logits"]) if self.is_token_level else WidthScores(outputs["logits"])
        candidates = _own(scores.candidates(options.threshold, options.max_width), labelled)
        entities = []
        for index in choose(candidates, nested=options.nested):
            first, last = int(candidates.firsts[index]), int(candidates.lasts[index])
            labels = scores.labels(first, last, options.threshold)
            found = np.flatnonzero(labels) if options.multi_label else [labels.argmax()]
            start, end = labelled.words[first][0], labelled.words[last][1]
            for label in found:
                answer = {"start": start, "end": end, "text": item.text[start:end], "label": item.labels[label]}
                answer["score"] = float(labels[label])
                entities.append(FoundEntity(labelled.first + first, labelled.first + last, answer))
        return entities

    def answer(
        self, item: LabelledItem, parts: Sequence[Sequence[list[FoundEntity]]], options: ZeroShotTokenOptions
    ) -> Json:
        """The entities of an instance, by their beginnings, and the best first of those that begin together."""
        windows = parts[0] if parts else ()
        found = [entity for window in windows for entity in window]
        if len(windows) > 1:
            found = _without_overlaps(found, nested=options.nested)
        found.sort(key=lambda entity: (entity.first, -entity.answer["score"]))
        entities = [entity.answer for entity in found]
        if options.mask is None:
            return entities
        return {"entities": entities, "masked_text": options.mask.apply(item.text, read_entities(entities, item.text))}


def check_architecture(gliner: Mapping[str, Json]) -> bool:
    """Whether a gliner_config.json is of a token-level model; otherwise it is one of spans.

    Raises LoadError for an architecture that the task can't serve.
    """
    for name, what in (
        ("labels_decoder", "a model that writes labels with a decoder"),
        ("relations_layer", "a model of relations"),
        ("decoder_config", "a streaming model with a causal decoder"),
        ("precomputed_prompts_mode", "a model with fixed labels"),
        ("represent_spans", "a token-level model with a span head of its own"),
    ):
        if gliner.get(name):
            raise LoadError(
                f"gliner_config.json: this folder is {what} ({name}); expected a GLiNER model of spans or a "
                "token-level one"
            )
    splitter = gliner.get("words_splitter_type", "whitespace")
    if splitter != "whitespace":
        raise LoadError(f"gliner_config.json: words_splitter_type: expected whitespace, got {str(splitter)[:40]!r}")
    return str(gliner.get("span_mode", "markerV0")) in ("token_level", "token-level")


def _number(gliner: Mapping[str, Json], name: str, default: int) -> int:
    value = gliner.get(name, default)
    if not isinstance(value, int) or not 0 < value <= 2**20:
        raise LoadError(f"gliner_config.json: {name}: expected a positive integer, got {str(value)[:40]}")
    return value


def _frame(settings: TaskSettings, gliner: Mapping[str, Json]) -> LabelFrame:
    """The prompt of the folder's own tokens, without labels for a bi-encoder. Raises LoadError if the tokenizer lacks
    the marker of labels."""
    vocabulary, marker = settings.vocabulary, str(gliner.get("ent_token", "<<ENT>>"))
    number, class_index = vocabulary.token_to_id(marker), gliner.get("class_token_index", -1)
    has_prompt = not gliner.get("labels_encoder")
    if has_prompt and (number is None or class_index not in (-1, number)):
        got = "which has none" if number is None else f"which has it as {number}, not {class_index} (class_token_index)"
        raise LoadError(f"gliner_config.json: ent_token {marker!r} is not the tokenizer's, {got}")
    pooling = gliner.get("subtoken_pooling", "first")
    if pooling not in POOLINGS:
        raise LoadError(f"gliner_config.json: subtoken_pooling: expected one of {', '.join(POOLINGS)}, got {pooling!r}")
    try:
        separator = str(gliner.get("sep_token", "<<SEP>>"))
        [[parts], [around]] = [
            vocabulary.encode_windows([Words((word,))], options)
            for word, options in ((separator, WHOLE_WORDS), ("a", Tokenization(detail=True)))
        ]
    except InvalidInput as error:
        raise LoadError(f"zero_shot_token_classification needs a tokenizer that reads words: {error}") from error
    special = around[0].special_mask or []
    inner = special.index(0) if 0 in special else len(special)
    stop = len(special) - special[::-1].index(0) if 0 in special else inner
    ids = around[0].ids
    return LabelFrame(
        prefix=tuple(ids[:inner]),
        marker=(number,) if has_prompt and number is not None else (),
        separator=tuple(parts[0].ids) if has_prompt else (),
        suffix=tuple(ids[stop:]),
        max_words=_number(gliner, "max_len", 384),
        pooling=pooling,
    )


def _own(spans: Candidates, encoding: LabelledEncoding) -> Candidates:
    """The spans of a window without those that a neighbouring window contains with more context, the earlier one if
    both have as much. The context is the number of words to the nearer border within the text."""
    if encoding.before is None and encoding.after is None:
        return spans
    firsts, lasts = spans.firsts + encoding.first, spans.lasts + encoding.first
    here = range(encoding.first, encoding.first + len(encoding.words))

    def context(window: range, *, begins: bool, ends: bool) -> Array:
        left = np.full(len(firsts), 2**40) if begins else firsts - window.start
        right = np.full(len(firsts), 2**40) if ends else window.stop - 1 - lasts
        least: Array = np.minimum(left, right)
        return least  # negative if the window lacks a part of the span

    own = context(here, begins=encoding.before is None, ends=encoding.after is None)
    kept = np.ones(len(firsts), bool)
    if encoding.before is not None:
        kept &= own > context(encoding.before, begins=encoding.before.start == 0, ends=False)
    if encoding.after is not None:
        kept &= own >= context(encoding.after, begins=False, ends=encoding.is_last_but_one)
    return spans.where(kept)


def _without_overlaps(found: Sequence[FoundEntity], *, nested: bool) -> list[FoundEntity]:
    """The entities of all windows without those that overlap a better one of another window."""
    spans: dict[tuple[int, int], list[FoundEntity]] = {}
    for entity in found:
        spans.setdefault((entity.first, entity.last), []).append(entity)
    firsts, lasts = np.array([*spans], np.int64).reshape(-1, 2).T
    scores = np.array([max(entity.answer["score"] for entity in same) for same in spans.values()], np.float32)
    groups = [*spans.values()]
    return [entity for index in choose(Candidates(firsts, lasts, scores), nested=nested) for entity in groups[index]]
