"""question_answering: which words of a context answer a question.

Spans are found as in pipelines/question_answering.py of transformers 4.57, except that only spans of the allowed length
are computed: [longest, tokens] products in place of [tokens, tokens].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hf_transformer.errors import InvalidInput, describe
from hf_transformer.tasks.base import TOKENS, OutputRole, Overflow, Task, TaskSettings
from hf_transformer.tasks.numerics import require_numbers, softmax, top_k
from hf_transformer.tasks.parameters import Parameters, read_output_format
from hf_transformer.tasks.tensors import Field
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

PARAMETERS = (
    "output_format",
    "top_k",
    "max_answer_len",
    "handle_impossible_answer",
    "align_to_words",
    "max_seq_len",
    "doc_stride",
    "stride",
    "max_question_len",
    "truncation",
)
MAX_SEQ_LEN, MAX_ANSWER_LEN, MAX_QUESTION_LEN = 384, 15, 64
"""Tokens; the defaults of transformers' pipeline."""
VALUES = 4
"""Of one answer: score, start, end and the text."""
CANDIDATE_COST = 10
"""Of one answer, in units of Task.decode_cost; about two spans are candidates for it."""
FIELDS = ("question", "context")
NO_SPAN_KEY = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One instance."""

    question: str
    context: str


@dataclass(frozen=True, slots=True)
class QuestionAnsweringOptions:
    """One request's choices; lengths are in tokens. ``doc_stride`` None: half of the window, 128 at most."""

    top_k: int
    max_answer_len: int
    handle_impossible_answer: bool
    align_to_words: bool
    max_seq_len: int
    doc_stride: int | None
    overflow: Overflow

    @property
    def candidates(self) -> int:
        """Spans that are taken from a window; aligned to words, some of them become one."""
        return self.top_k * 2 + 10 if self.align_to_words else self.top_k


@dataclass(slots=True)
class AnswerSpan:
    """An answer: its score and its characters in the context."""

    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """The spans of one window by their text in lower case, the best first, and the score of "no answer"."""

    spans: dict[str, AnswerSpan] = field(default_factory=dict)
    null_score: float = 0.0


class QuestionAnswering(Task[Question, QuestionAnsweringOptions, WindowSpans]):
    """Reads ``start_logits`` and ``end_logits`` [tokens] at the tokens of the context.

    The answer of an instance is that of the pipeline, in both output formats, since KServe has no such task: {score,
    start, end, answer}, with characters of the client's context. It is a list of these, the best first, where ``top_k``
    asks for several and there are several. Scores of the same text add up, so one may be above 1.

    As in the pipeline the question comes first, or second if the tokenizer pads on the left. In the second case the
    pipeline takes tokens of the question for answers (a slip of operator precedence in its mask); this does not.
    """

    name = "question_answering"
    parameters = PARAMETERS
    fields = (Field("question"), Field("context"))
    has_windows = True

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self._question_first = settings.vocabulary.padding_side != "left"
        self._cls_id = settings.vocabulary.cls_id
        # The last two are the names that exporters and Triton's PyTorch backend give to outputs without any.
        self.outputs = (
            OutputRole("start_logits", (TOKENS,), ("start", "output_0", "OUTPUT__0")),
            OutputRole("end_logits", (TOKENS,), ("end", "output_1", "OUTPUT__1")),
        )

    def options(self, parameters: Mapping[str, Json]) -> QuestionAnsweringOptions:
        given = Parameters(parameters, self.parameters)
        read_output_format(given, self.settings)
        # The pipeline has this parameter too, and with a fast tokenizer never looks at it.
        given.integer("max_question_len", MAX_QUESTION_LEN, 1)
        overflow = self._overflow(given)
        longest = self.settings.max_length
        usual = min(longest, MAX_SEQ_LEN) if overflow == "window" else longest
        max_seq_len = given.integer("max_seq_len", usual, 1)
        if max_seq_len > longest:
            raise InvalidInput.of(
                f"parameters.max_seq_len: {max_seq_len} is too large, the model takes {longest} tokens"
            )
        return QuestionAnsweringOptions(
            top_k=given.integer("top_k", 1, 1),
            max_answer_len=given.integer("max_answer_len", MAX_ANSWER_LEN, 1),
            handle_impossible_answer=given.flag("handle_impossible_answer", False),
            align_to_words=given.flag("align_to_words", True),
            max_seq_len=max_seq_len,
            doc_stride=self._stride(given, max_seq_len, overflow),
            overflow=overflow,
        )

    def _overflow(self, given: Parameters) -> Overflow:
        """Windows, as in the pipeline, unless the service refuses long texts or the request has ``truncation``."""
        if "truncation" in given:
            return "truncate" if given.flag("truncation", True) else "error"
        return "error" if self.settings.on_overflow == "error" else "window"

    def _stride(self, given: Parameters, max_seq_len: int, overflow: Overflow) -> int | None:
        if "doc_stride" in given and "stride" in given:
            raise InvalidInput.of("parameters.stride: another name of doc_stride, give one of them")
        name = "stride" if "stride" in given else "doc_stride"
        if name not in given:
            stride = self.settings.stride
        elif overflow == "window":
            stride = given.integer(name, 0, 0)
        else:
            raise InvalidInput.of(
                f"parameters.{name}: only windows have one, and with truncation or --on_overflow=error there are none"
            )
        if overflow == "window" and stride is not None and stride > max_seq_len:
            raise InvalidInput.of(f"parameters.{name}: {stride} is larger than max_seq_len, {max_seq_len}")
        return stride

    def item(self, instance: Json, where: str, options: QuestionAnsweringOptions) -> Question:
        if not isinstance(instance, dict) or instance.keys() != set(FIELDS):
            raise InvalidInput.of(
                f'{where}: expected {{"question": string, "context": string}}, got {describe(instance)}'
            )
        for name in FIELDS:
            if not isinstance(instance[name], str):
                raise InvalidInput.of(f"{where}.{name}: expected a string, got {describe(instance[name])}")
            if not instance[name]:
                raise InvalidInput.of(f"{where}.{name}: is empty")
        return Question(instance["question"], instance["context"])

    def texts(self, item: Question, options: QuestionAnsweringOptions) -> Sequence[TextInput]:
        return ((item.question, item.context) if self._question_first else (item.context, item.question),)

    def tokenization(self, options: QuestionAnsweringOptions) -> Tokenization:
        windows = options.overflow == "window"
        return Tokenization(
            detail=True,
            windows=windows,
            stride=options.doc_stride if windows else 0,
            max_length=options.max_seq_len,
            only_second=self._question_first,
            only_first=not self._question_first,
        )

    def answer_size(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        return VALUES * self._answers(encoding, options)

    def decode_cost(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        """The tokens of the window, and the candidates whose characters are found."""
        return len(encoding) + CANDIDATE_COST * self._answers(encoding, options)

    def _answers(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        """Answers at most: no more than there are spans."""
        return min(options.top_k, len(encoding) * min(options.max_answer_len, len(encoding)))

    def decode(
        self, item: Question, encoding: Encoding, outputs: Mapping[str, Array], options: QuestionAnsweringOptions
    ) -> WindowSpans:
        context = self._context(encoding)
        cls, allowed = self._allowed(encoding, context)
        starts, ends = probabilities(outputs["start_logits"], outputs["end_logits"], allowed)
        null_score = 0.0
        if cls is not None:
            null_score = float(starts[cls] * ends[cls])
            starts[cls] = ends[cls] = 0
        found = best_spans(starts, ends, options.candidates, options.max_answer_len)
        characters = Characters(encoding, context, whole_words=options.align_to_words)
        spans: dict[str, AnswerSpan] = {}
        for first, last, score in zip(*(each.tolist() for each in found), strict=True):
            place = characters.span(first, last)
            if place is not None:
                _add(spans, item.context[place[0] : place[1]].lower(), AnswerSpan(score, *place))
        if len(found[0]) < options.candidates or not spans:
            # The pipeline fills up with empty spans of score 0, such as that from [CLS] to [CLS].
            _add(spans, NO_SPAN_KEY, AnswerSpan(0.0, 0, 0))
        return WindowSpans(spans, null_score)

    def _context(self, encoding: Encoding) -> slice:
        """The tokens of the context, which are neighbours."""
        sides = encoding.sequence_ids or []
        side = 1 if self._question_first else 0
        start = sides.index(side) if side in sides else 0
        return slice(start, start + sides.count(side))

    def _allowed(self, encoding: Encoding, context: slice) -> tuple[int | None, list[slice]]:
        """The tokenizer's own [CLS], which stands for "no answer", and all tokens that can be in an answer.

        As in the pipeline these are the context's and every [CLS], also one in the client's question.
        """
        cls_id = self._cls_id
        if cls_id is None:
            return None, [context]
        own, allowed, start = None, [context], 0
        for _ in range(encoding.ids.count(cls_id)):
            index = encoding.ids.index(cls_id, start)
            start = index + 1
            allowed.append(slice(index, start))
            if own is None and encoding.sequence_ids and encoding.sequence_ids[index] is None:
                own = index
        return own, allowed

    def answer(self, item: Question, parts: Sequence[Sequence[WindowSpans]], options: QuestionAnsweringOptions) -> Json:
        windows = parts[0]
        merged: dict[str, AnswerSpan] = {}
        for window in windows:
            for text, span in window.spans.items():
                _add(merged, text, span)
        spans = list(merged.values())
        if options.handle_impossible_answer:
            spans.append(AnswerSpan(min(window.null_score for window in windows), 0, 0))
        spans.sort(key=lambda span: -span.score)
        answers = [
            {"score": span.score, "start": span.start, "end": span.end, "answer": item.context[span.start : span.end]}
            for span in spans[: options.top_k]
        ]
        return answers[0] if len(answers) == 1 else answers


def _add(spans: dict[str, AnswerSpan], text: str, span: AnswerSpan) -> None:
    """Adds a span, or its score to that of a span with the same text."""
    known = spans.get(text)
    if known is None:
        spans[text] = AnswerSpan(span.score, span.start, span.end)
    else:
        known.score += span.score


def probabilities(start_logits: Array, end_logits: Array, allowed: Sequence[slice]) -> Array:
    """The probabilities of each token to be the first one of the answer, and the last one.

    Args:
        start_logits: floats [tokens].
        end_logits: floats [tokens].
        allowed: the tokens that can be; the softmax leaves the others out.

    Returns:
        float32 [2, tokens], 0 for tokens that are not allowed.

    Raises:
        PredictorError: logits of allowed tokens are not finite.
    """
    logits = np.full((2, len(start_logits)), -np.inf, np.float32)
    for tokens in allowed:
        logits[0, tokens] = start_logits[tokens]
        logits[1, tokens] = end_logits[tokens]
    if not any(tokens.stop > tokens.start for tokens in allowed):
        return np.zeros_like(logits)
    require_numbers(logits)
    return softmax(logits)


def best_spans(starts: Array, ends: Array, count: int, longest: int) -> tuple[Array, Array, Array]:
    """The spans with the highest starts[first] * ends[last], where first <= last < first + longest.

    Args:
        starts: float32 probabilities [tokens].
        ends: float32 probabilities [tokens].
        count: at most so many spans.
        longest: tokens of the longest span.

    Returns:
        first tokens, last tokens and scores, the best span first; no span of score 0.
    """
    tokens = len(starts)
    width = min(longest, tokens)
    padded = np.zeros(tokens + width - 1, np.float32)
    padded[:tokens] = ends
    # Column f of this view is ends[f], ends[f + 1], ...; it needs no copy.
    last = np.ndarray((width, tokens), np.float32, padded, strides=(padded.itemsize, padded.itemsize))
    scores = starts * last
    # The best ``count`` spans begin at ``count`` tokens at most: those with the best spans of their own.
    begins = np.sort(top_k(scores.max(axis=0), count))
    among = scores[:, begins].T.ravel()
    best = top_k(among, count)
    best = best[among[best] > 0]
    row, beyond = np.divmod(best, width)
    first = begins[row]
    return first, first + beyond, among[best]


class Characters:
    """The places of one window's tokens in the context.

    Args:
        encoding: the window, with details.
        context: its tokens of the context.
        whole_words: whether a span is extended to whole words, as far as they are in the window.
    """

    def __init__(self, encoding: Encoding, context: slice, *, whole_words: bool) -> None:
        self._offsets = encoding.offsets or []
        self._word_ids = (encoding.word_ids or []) if whole_words else []
        self._context = context
        self._words: dict[int, tuple[int, int] | None] = {}

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """The characters from one token to another; None if they are not in the context."""
        found = self._word(first), self._word(last)
        if found[0] is not None and found[1] is not None:
            start, end = found[0][0], found[1][1]
        elif first >= self._context.start and last < self._context.stop:
            # For tokenizers without words, and tokens outside of words.
            start, end = self._offsets[first][0], self._offsets[last][1]
        else:
            return None
        return (start, end) if start <= end else None

    def _word(self, token: int) -> tuple[int, int] | None:
        """The characters of the context's word that has the number of the token's word.

        A [CLS] in the client's question has the number of a word of the question. As in the pipeline, it stands for the
        context's word of that number.
        """
        number = self._word_ids[token] if self._word_ids else None
        if number is None:
            return None
        if number not in self._words:
            self._words[number] = self._find(number, token)
        return self._words[number]

    def _find(self, number: int, token: int) -> tuple[int, int] | None:
        words, lowest, end = self._word_ids, self._context.start, self._context.stop
        if not lowest <= token < end:
            try:
                token = words.index(number, lowest, end)
            except ValueError:
                return None
        first = last = token
        while first > lowest and words[first - 1] == number:
            first -= 1
        while last + 1 < end and words[last + 1] == number:
            last += 1
        return self._offsets[first][0], self._offsets[last][1]
