"""token_classification: a label per token, or the named entities in a text (NER)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np
from msgspec.structs import replace

from hf_transformer.errors import EmptyList, InvalidInput, Path, describe, show_path
from hf_transformer.tasks.base import (
    TOKENS,
    VALUE_BYTES,
    Encodings,
    OutputRole,
    Outputs,
    Overflow,
    Task,
    TaskSettings,
    read_text,
)
from hf_transformer.tasks.declaration import (
    BATCH,
    INTEGER,
    NUMBER,
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
from hf_transformer.tasks.entities import OUTSIDE, STRATEGIES, EntityFinder, Labels, Sentence, Strategy, merge_entities
from hf_transformer.tasks.labels import LABELS_SCHEMA, labels_axis, read_labels
from hf_transformer.tasks.long_texts import default_stride, read_overflow, read_tokenization
from hf_transformer.tasks.masking import CHARACTER_BYTES, Mask, MaskPattern, read_entities
from hf_transformer.tasks.numerics import require_finite, softmax
from hf_transformer.tasks.options import (
    Form,
    Format,
    MaxTokens,
    Probabilities,
    RawLogits,
    Stride,
    TaskParameters,
    Truncation,
    TruncationSide,
    by_flag,
    read_form,
    read_strings,
    strings,
)
from hf_transformer.tasks.tensors import FREE, OUTPUT, ragged_json_tensor, ragged_tensor
from hf_transformer.types.fields import about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization, Words

PERSON = "Anna Smith lives in Berlin."
WORDS_SCHEMA = array(STRING, minItems=1)
SPAN = {
    **{"score": NUMBER, "word": STRING},
    "start": {"type": "integer", "description": "The first character."},
    "end": {"type": "integer", "description": "The character behind the last one."},
}
"""The schemas of the fields that tokens and entities have."""
ENTITY = closed(["entity_group", *SPAN], entity_group=STRING, **SPAN)
PIPELINE_PARAMETERS = ("aggregation_strategy", "ignore_labels", "delimiter", "mask")
IGNORED_LABELS = (OUTSIDE,)
"""The default of transformers' token-classification pipeline."""
ENTITY_VALUES = 6
"""The number of values per token in the pipeline format: entity, score, index, word, start and end."""
CHARACTERS_PER_VALUE = 100
"""Characters of words per value of --max_answer_values, since a word in several windows is in the entities of each."""
WORD_COST = 5
"""Decoding cost of a token, in units of decode_cost, for strategies that choose a label per word."""
NO_LABEL = -100
"""The padding value of labels: the "ignore index" of transformers and torch."""
DETAIL = Tokenization(detail=True)
MAX_DELIMITER_LENGTH = 20
"""Maximum number of characters, since the delimiter repeats after every word."""
DELIMITER = {"type": "string", "maxLength": MAX_DELIMITER_LENGTH}


class TokenClassificationParameters(TaskParameters):
    """The parameters of a request."""

    output_format: Format = "kserve"
    return_probabilities: Probabilities = False
    return_raw_logits: RawLogits = False
    return_offsets_mapping: Annotated[
        bool,
        about("Give the first and last character of each token beside the predictions."),
        by_flag("return_offsets_mapping"),
    ] = False
    aggregation_strategy: Annotated[
        Strategy, about("How tokens become entities; in the pipeline format."), by_flag("aggregation_strategy")
    ] = "none"
    ignore_labels: Annotated[Json, strings('Labels that are left out, "O" if not given; in the pipeline format.')] = (
        None
    )
    delimiter: Annotated[
        Json,
        about(
            "Joins the words of an instance; in the pipeline format.",
            schema={"anyOf": [DELIMITER, array(DELIMITER, minItems=1, maxItems=1), {"type": "null"}]},
        ),
    ] = None
    mask: MaskPattern = None
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None
    stride: Stride = None


@dataclass(frozen=True, slots=True)
class TokenClassificationOptions:
    """The effect of a request's parameters.

    ``ignored`` [labels] masks the labels to omit in the pipeline format. Neighbouring windows share ``stride`` tokens.
    ``mask_values`` is the size of a masked entity in the answer, in values.
    """

    form: Form
    overflow: Overflow
    stride: int
    offsets: bool
    tokenization: Tokenization
    strategy: Strategy
    ignored: Array
    delimiter: str | None
    mask: Mask | None
    mask_values: int

    @property
    def windows(self) -> bool:
        return self.overflow == "window"


@dataclass(frozen=True, slots=True)
class WindowShape:
    """The size and position of a window in its text.

    Attributes:
        length: the number of tokens.
        before, after: the number of special tokens at the start and at the end.
        begins: the word and the character offset of the first text token; the word is 0 if the tokenizer has no words.
    """

    length: int
    before: int
    after: int
    begins: tuple[int, int]

    @classmethod
    def of(cls, encoding: Encoding) -> WindowShape:
        """The shape of an encoding that has all details."""
        special = encoding.special_mask or []
        length = len(encoding)
        before = special.index(0) if 0 in special else length
        after = special[::-1].index(0) if 0 in special else 0
        if before == length or encoding.offsets is None:
            return cls(length, length, 0, (0, 0))
        word = encoding.word_ids[before] if encoding.word_ids is not None else None
        return cls(length, before, after, (word or 0, encoding.offsets[before][0]))


@dataclass(frozen=True, slots=True)
class WindowAnswer:
    """A window's values per token, or its entities; ``shape`` is None in a request without windows."""

    values: list[Json]
    shape: WindowShape | None


class TokenClassification(Task[Sentence, TokenClassificationOptions, WindowAnswer]):
    """Reads ``logits`` [tokens, labels].

    Answers per instance; tokens include special tokens, except in the pipeline format:
        plain           [[3, 0, ...]], the best label's index per token, in an outer list, as in KServe
        probabilities   {"<index>": probability, ...} per token, rounded to 4 decimals
        raw_logits      {"<index>": logit, ...} per token
        pipeline        {entity, score, index, word, start, end} per token; with an aggregation strategy,
                        {entity_group, score, word, start, end} per entity; with a mask,
                        {entities, masked_text}

    A mask reads a long text in windows, unless it is refused: what the model has not read could not be masked.
    """

    name = "token_classification"
    options_type = TokenClassificationParameters
    switched_on_by = MappingProxyType({"offset_mapping": "return_offsets_mapping"})
    has_windows = True
    purpose = "Marks names and places in a text"
    examples = (
        Example("as KServe", {"instances": [PERSON]}),
        Example("as a pipeline", {"instances": [PERSON], "parameters": {"output_format": "pipeline"}}, "pipeline"),
        Example(
            "entities",
            {"instances": [PERSON], "parameters": {"output_format": "pipeline", "aggregation_strategy": "simple"}},
            "entities",
        ),
        Example("masked text", {"instances": [PERSON], "parameters": {"mask": "[{label}]"}}, "mask"),
        Example(
            "words, with the characters of each token",
            {"instances": [{"words": ["Anna", "Smith"]}], "parameters": {"return_offsets_mapping": True}},
            "words",
        ),
    )
    demo = Demo("ner", PERSON, {"output_format": "pipeline", "aggregation_strategy": "simple"})
    export_head = ExportHead("AutoModelForTokenClassification", {"logits": (BATCH, SEQUENCE, "num_labels")})
    instance_schemas = (
        {
            "description": "A text, or its words; for token_classification.",
            "anyOf": [
                STRING,
                TEXT_OBJECT,
                WORDS_SCHEMA,
                closed(["words"], words=WORDS_SCHEMA),
                closed(["tokens"], tokens=WORDS_SCHEMA),
            ],
        },
    )
    info_schemas: ClassVar[Mapping[str, Schema]] = {
        "labels": LABELS_SCHEMA,
        "aggregation_strategy": {"type": "string", "description": "The default; for token_classification."},
    }
    prediction_schemas = (
        {
            "description": "The best label of each token, in one more list; for token_classification.",
            **array(array(INTEGER), minItems=1, maxItems=1),
        },
        {
            "description": "Probabilities or logits of each token by the label's number.",
            **array({"type": "object", "additionalProperties": NUMBER, "minProperties": 1}),
        },
        {
            "description": "Tokens in the pipeline format.",
            **array(closed(["entity", "index", *SPAN], entity=STRING, index=INTEGER, **SPAN)),
        },
        {
            "description": "Entities, with an aggregation_strategy.",
            **array(ENTITY),
        },
        {
            "description": "Entities and the text without them, with a mask.",
            **closed(["entities", "masked_text"], entities=array(ENTITY), masked_text=STRING),
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        names = read_labels(settings.model_config)
        self._labels = Labels(names)
        self._finder = EntityFinder(settings.vocabulary, self._labels)
        self._columns = tuple(map(str, range(len(names))))
        self._longest = max(map(len, self._labels.groups))
        self._ignored = {strategy: self._labels.ignored(IGNORED_LABELS, strategy) for strategy in STRATEGIES}
        self.outputs = (OutputRole("logits", (TOKENS, labels_axis(len(names)))),)

    def info(self) -> dict[str, Json]:
        labels = read_labels(self.settings.model_config)
        given, _ = self.read(TokenClassificationParameters, {})
        return {"labels": labels, "aggregation_strategy": given.aggregation_strategy}

    def options(self, parameters: Mapping[str, Json]) -> TokenClassificationOptions:
        (request, present), settings = self.read(TokenClassificationParameters, parameters), self.settings
        mask = None if request.mask is None else Mask(request.mask, settings.personal_data.mask_key)
        if mask is not None:
            request = _masking(request, present)
        form = read_form(request, present, PIPELINE_PARAMETERS)
        if request.stride is not None and request.truncation is not None:
            expected = "stride, which asks for windows, or truncation"
            raise InvalidInput(("parameters", "stride"), expected, "both")
        strategy, ignore = (
            request.aggregation_strategy,
            read_strings("ignore_labels", request.ignore_labels, empty=True),
        )
        by_default = settings.on_overflow if mask is None or settings.on_overflow == "error" else "window"
        overflow = read_overflow(request, by_default if request.stride is None else "window")
        stride = default_stride(request, settings) if request.stride is None else request.stride
        offsets = request.return_offsets_mapping
        detail = DETAIL if form == "pipeline" or offsets else PLAIN
        base = Tokenization(detail=True, windows=True, stride=stride) if overflow == "window" else detail
        return TokenClassificationOptions(
            form=form,
            overflow=overflow,
            stride=stride,
            offsets=offsets,
            tokenization=read_tokenization(request, base),
            strategy=strategy,
            ignored=self._ignored[strategy] if ignore is None else self._labels.ignored(set(ignore), strategy),
            delimiter=_read_delimiter(request.delimiter),
            mask=mask,
            mask_values=0 if mask is None else mask.longest(self._longest) * CHARACTER_BYTES // VALUE_BYTES + 1,
        )

    def item(self, instance: Json, path: Path, options: TokenClassificationOptions) -> Sentence:
        words = _read_words(instance, path)
        if words is None:
            if options.delimiter is not None:
                raise InvalidInput(
                    ("parameters", "delimiter"), "instances in words, which it joins", f"a text at {show_path(path)}"
                )
            return Sentence(read_text(instance, path))
        delimiter = " " if options.delimiter is None else options.delimiter
        starts = [0, *accumulate(len(word) + len(delimiter) for word in words)]
        return Sentence(delimiter.join(words), Words(tuple(words)), starts)

    def texts(self, item: Sentence, options: TokenClassificationOptions) -> Sequence[TextInput]:
        return (item.text if item.words is None else item.words,)

    def answer_size(self, encoding: Encoding, options: TokenClassificationOptions) -> int:
        if options.form in ("probabilities", "raw_logits"):
            return len(encoding) * len(self._columns)
        if options.form == "plain":
            return len(encoding)
        # Every token has an object if no label is ignored; otherwise most tokens have none.
        words = sum([end - start for start, end in encoding.offsets or ()]) // CHARACTERS_PER_VALUE
        return len(encoding) * ((1 if options.ignored.any() else ENTITY_VALUES) + options.mask_values) + words

    def repeats_texts(self, options: TokenClassificationOptions) -> bool:
        return options.mask is not None

    def decode_cost(self, encoding: Encoding, options: TokenClassificationOptions) -> int:
        """Exceeds ``answer_size`` for strategies that join words."""
        size = self.answer_size(encoding, options)
        by_word = options.form == "pipeline" and options.strategy not in ("none", "simple")
        return max(size, len(encoding) * WORD_COST) if by_word else size

    def extra_size(self, encodings: Encodings, options: TokenClassificationOptions) -> int:
        """Counts the numbers in ``offset_mapping``, including padding, and shared tokens once per window."""
        return self.padded_tokens(encodings) * 2 if options.offsets else 0

    def decode(
        self, item: Sentence, encoding: Encoding, outputs: Outputs, options: TokenClassificationOptions
    ) -> WindowAnswer:
        logits = outputs["logits"]
        shape = WindowShape.of(encoding) if options.windows else None
        if options.form == "pipeline":
            entities = self._finder.find(item, encoding, logits, options.strategy, options.ignored)
            return WindowAnswer(entities, shape)
        # Reduction along the longer axis is several times as fast.
        require_finite(np.ascontiguousarray(logits.T).max(axis=0))
        if options.form == "plain":
            return WindowAnswer(logits.argmax(axis=-1).tolist(), shape)
        if options.form == "probabilities":
            logits = softmax(logits).astype(np.float64).round(4)
        columns = self._columns
        return WindowAnswer([dict(zip(columns, row, strict=True)) for row in logits.tolist()], shape)

    def answer(
        self, item: Sentence, parts: Sequence[Sequence[WindowAnswer]], options: TokenClassificationOptions
    ) -> Json:
        windows = parts[0]
        if len(windows) == 1:
            values = windows[0].values
        elif options.form == "pipeline" and options.strategy != "none":
            values = merge_entities([entity for window in windows for entity in window.values])
        else:
            values = _merge_tokens(windows, options)
        if options.mask is not None:
            return {"entities": values, "masked_text": options.mask.apply(item.text, read_entities(values, item.text))}
        return [values] if options.form == "plain" else values

    def tensor(self, predictions: Sequence[Json], options: TokenClassificationOptions) -> Tensor:
        """INT64 [instances, 1, tokens] in the form plain, padded with NO_LABEL. Probabilities and logits are BYTES
        [instances, tokens] of JSON texts; the pipeline format is BYTES [instances]."""
        if options.form == "plain":
            return ragged_tensor([np.array(labels, np.int64) for (labels,) in predictions], "INT64", NO_LABEL)
        return super().tensor(predictions, options) if options.form == "pipeline" else ragged_json_tensor(predictions)

    def tensor_size(self, encodings: Encodings, options: TokenClassificationOptions) -> int:
        if options.form == "pipeline":
            return 0
        return self.padded_tokens(encodings) * (1 if options.form == "plain" else len(self._columns))

    @property
    def tensor_specs(self) -> tuple[TensorSpec, ...]:
        form = self.options({}).form
        labels = TensorSpec(OUTPUT, "BYTES", (FREE,) if form == "pipeline" else (FREE, FREE))
        if form == "plain":
            labels = TensorSpec(OUTPUT, "INT64", (FREE, 1, FREE))
        return (labels, TensorSpec("offset_mapping", "INT64", (FREE, FREE, 2), optional=True))

    def extra_outputs(self, encodings: Encodings, options: TokenClassificationOptions) -> Sequence[Tensor]:
        """``offset_mapping`` INT64 [instances, tokens, 2]: each token's start and end. Special tokens have zeros."""
        if not options.offsets:
            return ()
        rows = [_offsets(texts[0], options.stride) for texts in encodings]
        data = np.zeros((len(rows), max(map(len, rows)), 2), np.int64)
        for padded, row in zip(data, rows, strict=True):
            padded[: len(row)] = row
        return (Tensor("offset_mapping", "INT64", data),)


def _masking(request: TokenClassificationParameters, present: Set[str]) -> TokenClassificationParameters:
    """The parameters of a request with a mask, which needs entities of the whole text.

    Raises InvalidInput for parameters that don't give them.
    """
    if "aggregation_strategy" in present and request.aggregation_strategy == "none":
        raise InvalidInput(("parameters", "aggregation_strategy"), "a strategy other than none, with a mask", "none")
    if request.truncation:
        raise InvalidInput(("parameters", "truncation"), "no truncation, with a mask", "true")
    strategy = "simple" if request.aggregation_strategy == "none" else request.aggregation_strategy
    output_format = request.output_format if "output_format" in present else "pipeline"
    return replace(request, aggregation_strategy=strategy, output_format=output_format)


def _read_delimiter(value: Json) -> str | None:
    delimiters = read_strings("delimiter", value)
    if delimiters is None:
        return None
    if len(delimiters) > 1 or len(delimiters[0]) > MAX_DELIMITER_LENGTH:
        raise InvalidInput(("parameters", "delimiter"), f"a string of at most {MAX_DELIMITER_LENGTH} characters")
    return delimiters[0]


def _read_words(instance: Json, path: Path) -> list[str] | None:
    """The words of an instance, or None for an instance with a text. Raises InvalidInput for an invalid form."""
    if isinstance(instance, dict) and len(instance) == 1 and (name := next(iter(instance))) in ("tokens", "words"):
        words, path = instance[name], (*path, name)
    elif isinstance(instance, str | dict):
        return None
    elif isinstance(instance, list):
        words = instance
    else:
        raise InvalidInput(path, 'a string, {"text": string} or a list of words', describe(instance))
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        got = "one with other elements" if isinstance(words, list) else describe(words)
        raise InvalidInput(path, "a list of words (strings)", got)
    if not words:
        raise EmptyList(path, "at least one word")
    return words


@dataclass(frozen=True, slots=True)
class WindowPart:
    """The tokens ``begin`` to ``end`` of the window at index ``window``; ``start`` is the position of ``begin`` in the
    whole text."""

    window: int
    begin: int
    end: int
    start: int


def window_parts(windows: Sequence[WindowShape], stride: int) -> list[WindowPart]:
    """Selects the tokens of a whole text from its windows, each token from the window with more context around it.

    Of the ``stride`` tokens that neighbouring windows share, the earlier window supplies the first half and the later
    window the second half. The first and last windows supply the special tokens at the start and end.
    """
    order = list(range(len(windows)))
    if windows[0].begins > windows[-1].begins:  # a tokenizer that truncates on the left returns the last window first
        order.reverse()
    parts: list[WindowPart] = []
    start = 0
    for position, window in enumerate(order):
        shape = windows[window]
        begin = shape.before + (stride + 1) // 2 if position else 0
        end = shape.length - (shape.after + stride // 2 if position < len(order) - 1 else 0)
        parts.append(WindowPart(window, begin, end, start))
        start += end - begin
    return parts


def _merge_tokens(windows: Sequence[WindowAnswer], options: TokenClassificationOptions) -> list[Json]:
    """The values of a whole text's tokens. Converts ``index`` in the pipeline format to an index in the whole text."""
    values: list[Json] = []
    for part in window_parts([window.shape for window in windows if window.shape is not None], options.stride):
        window_values = windows[part.window].values
        if options.form == "pipeline":
            inside = [entity for entity in window_values if part.begin <= entity["index"] < part.end]
            values += [entity | {"index": entity["index"] - part.begin + part.start} for entity in inside]
        else:
            values += window_values[part.begin : part.end]
    return values


def _offsets(windows: Sequence[Encoding], stride: int) -> list[tuple[int, int]]:
    """The offsets of each token of a text."""
    if len(windows) == 1:
        return windows[0].offsets or []
    parts = window_parts([WindowShape.of(window) for window in windows], stride)
    return [pair for part in parts for pair in (windows[part.window].offsets or [])[part.begin : part.end]]
