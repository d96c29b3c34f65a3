"""token_classification: a label per token, or the named entities in a text (NER)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import cast

import numpy as np

from hf_transformer.errors import EmptyList, InvalidInput, Path, describe, show_path
from hf_transformer.tasks.base import (
    LOGITS,
    TOKENS,
    Encodings,
    OutputRole,
    Outputs,
    Overflow,
    Task,
    TaskSettings,
    read_text,
)
from hf_transformer.tasks.entities import OUTSIDE, STRATEGIES, EntityFinder, Labels, Sentence, Strategy, merge_entities
from hf_transformer.tasks.labels import labels_axis, read_labels
from hf_transformer.tasks.long_texts import TRUNCATION, default_stride, read_overflow, read_tokenization
from hf_transformer.tasks.numerics import require_finite, softmax
from hf_transformer.tasks.parameters import Form, Parameters, read_form
from hf_transformer.tasks.tensors import FREE, OUTPUT, ragged_json_tensor, ragged_tensor
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array, Tensor, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TextInput, Tokenization, Words

PIPELINE_PARAMETERS = ("aggregation_strategy", "ignore_labels", "delimiter")
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


@dataclass(frozen=True, slots=True)
class TokenClassificationOptions:
    """A request's parameters.

    ``ignored`` [labels] masks the labels to omit in the pipeline format. Neighbouring windows share ``stride`` tokens.
    """

    form: Form
    overflow: Overflow
    stride: int
    offsets: bool
    tokenization: Tokenization
    strategy: Strategy
    ignored: Array
    delimiter: str | None

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
                        {entity_group, score, word, start, end} per entity
    """

    name = "token_classification"
    parameters = (
        *("output_format", *LOGITS, "return_offsets_mapping"),
        *(*PIPELINE_PARAMETERS, *TRUNCATION, "stride"),
    )
    switched_on_by = MappingProxyType({"offset_mapping": "return_offsets_mapping"})
    has_windows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        names = read_labels(settings.model_config)
        self._labels = Labels(names)
        self._finder = EntityFinder(settings.vocabulary, self._labels)
        self._columns = tuple(map(str, range(len(names))))
        self._ignored = {strategy: self._labels.ignored(IGNORED_LABELS, strategy) for strategy in STRATEGIES}
        self.outputs = (OutputRole("logits", (TOKENS, labels_axis(len(names)))),)

    def options(self, parameters: Mapping[str, Json]) -> TokenClassificationOptions:
        checked, settings = Parameters(parameters, self.parameters), self.settings
        form = read_form(checked, settings, PIPELINE_PARAMETERS)
        if "stride" in checked and "truncation" in checked:
            expected = "stride, which asks for windows, or truncation"
            raise InvalidInput(("parameters", "stride"), expected, "both")
        strategy = cast(Strategy, checked.choice("aggregation_strategy", settings.aggregation_strategy, STRATEGIES))
        ignore = checked.strings("ignore_labels", empty=True)
        overflow = read_overflow(checked, "window" if "stride" in checked else settings.on_overflow)
        stride = checked.integer("stride", default_stride(checked, settings), 0)
        offsets = checked.flag("return_offsets_mapping", settings.return_offsets_mapping)
        detail = DETAIL if form == "pipeline" or offsets else PLAIN
        base = Tokenization(detail=True, windows=True, stride=stride) if overflow == "window" else detail
        return TokenClassificationOptions(
            form=form,
            overflow=overflow,
            stride=stride,
            offsets=offsets,
            tokenization=read_tokenization(checked, base),
            strategy=strategy,
            ignored=self._ignored[strategy] if ignore is None else self._labels.ignored(set(ignore), strategy),
            delimiter=_read_delimiter(checked),
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
        return len(encoding) * (1 if options.ignored.any() else ENTITY_VALUES) + words

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


def _read_delimiter(parameters: Parameters) -> str | None:
    delimiters = parameters.strings("delimiter")
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
