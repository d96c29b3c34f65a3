"""question_answering: the words of a context that answer a question.

Implements the search of pipelines/question_answering.py in transformers 4.57, but computes only spans of the allowed
length: [longest, tokens] products instead of [tokens, tokens].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np

from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tasks.base import TOKENS, OutputRole, Outputs, Overflow, Task, TaskSettings
from hf_transformer.tasks.declaration import (
    BATCH,
    FULL_STRING,
    INTEGER,
    NUMBER,
    SEQUENCE,
    STRING,
    Demo,
    Example,
    ExportHead,
    array,
    closed,
)
from hf_transformer.tasks.long_texts import read_overflow, read_tokenization
from hf_transformer.tasks.numerics import require_numbers, softmax, top_k
from hf_transformer.tasks.options import Format, MaxTokens, TaskParameters, Truncation, TruncationSide, by_flag, one_of
from hf_transformer.tasks.tensors import Field
from hf_transformer.types.fields import Natural, Positive, about
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

MAX_SEQ_LEN, MAX_ANSWER_LEN, MAX_QUESTION_LEN = 384, 15, 64
"""Default maximum numbers of tokens, from transformers' pipeline."""
ANSWER_VALUES = 4
"""The number of values in an answer: score, start, end and text."""
CHARACTERS_PER_VALUE = 100
"""Characters of an answer's text per value of --max_answer_values, each in lower case too, as the pipeline compares
them."""
ANSWER_COST = 10
"""Decoding cost of an answer, in units of Task.decode_cost; includes about two candidate spans."""
FIELDS = ("question", "context")
WHO, WORK = "Who works there?", "It was in 1984. Anna Smith works there."
ANSWER = closed(["score", "start", "end", "answer"], score=NUMBER, start=INTEGER, end=INTEGER, answer=STRING)
NO_SPAN_KEY = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its context."""

    question: str
    context: str


class QuestionAnsweringParameters(TaskParameters):
    """The parameters of a request. The pipeline accepts ``max_question_len`` too, and ignores it for a fast
    tokenizer."""

    output_format: Format = "kserve"
    top_k: Annotated[Positive, about("Answers that are given.")] = 1
    max_answer_len: Annotated[Positive, about("Tokens of the longest answer.")] = MAX_ANSWER_LEN
    handle_impossible_answer: Annotated[bool, about("Whether the empty answer counts.")] = False
    align_to_words: Annotated[bool, about("Whether answers are extended to whole words.")] = True
    max_seq_len: Annotated[
        Positive | None, about("Tokens of a window, question included; at most as many as the model takes.")
    ] = None
    doc_stride: Annotated[
        Natural | None, about("Tokens that neighbouring windows of a long context share."), by_flag("stride")
    ] = None
    stride: Annotated[Natural | None, about("Another name of doc_stride."), by_flag("stride")] = None
    max_question_len: Annotated[Positive, about("Checked and without effect, as in the pipeline.")] = MAX_QUESTION_LEN
    truncation: Truncation = None
    truncation_side: TruncationSide = None
    max_tokens: MaxTokens = None


@dataclass(frozen=True, slots=True)
class QuestionAnsweringOptions:
    """The effect of a request's parameters; lengths are in tokens. ``doc_stride`` None means half of the window, at
    most 128."""

    top_k: int
    max_answer_len: int
    handle_impossible_answer: bool
    align_to_words: bool
    max_seq_len: int
    doc_stride: int | None
    overflow: Overflow
    tokenization: Tokenization

    @property
    def candidates(self) -> int:
        """The number of candidate spans per window; exceeds ``top_k`` if alignment to words may merge spans."""
        return self.top_k * 2 + 10 if self.align_to_words else self.top_k


@dataclass(slots=True)
class AnswerSpan:
    """An answer's score, and its start and end in characters of the context."""

    score: float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """A window's spans by lower-cased text, and the score of "no answer"."""

    spans: dict[str, AnswerSpan] = field(default_factory=dict)
    null_score: float = 0.0


class QuestionAnswering(Task[Question, QuestionAnsweringOptions, WindowSpans]):
    """Reads ``start_logits`` and ``end_logits`` [tokens] at the tokens of the context.

    In both formats, the answer is the pipeline's {score, start, end, answer}, with offsets in characters. If ``top_k``
    yields several answers, the result is a list in descending order of scores. A score may exceed 1, since the task
    sums the scores of equal texts.

    As in the pipeline, the context precedes the question only if the tokenizer pads on the left. In this case the
    pipeline also extracts answers from the question, due to a bug in its mask; this task does not.
    """

    name = "question_answering"
    options_type = QuestionAnsweringParameters
    fields = (Field("question"), Field("context"))
    has_windows = takes_pairs = True
    special_tokens = 3
    window_tokens = MAX_SEQ_LEN
    purpose = "Finds the answer to a question in a text"
    examples = (
        Example(
            "an answer in a context", {"instances": [{"question": WHO, "context": f"{WORK} The house is near Berlin."}]}
        ),
        Example(
            "the best three answers",
            {
                "instances": [{"question": "Where does Anna live?", "context": "Anna lives in Berlin."}],
                "parameters": {"top_k": 3},
            },
            "best",
        ),
    )
    demo = Demo("squad", {"question": WHO, "context": WORK})
    export_head = ExportHead(
        "AutoModelForQuestionAnswering", {"start_logits": (BATCH, SEQUENCE), "end_logits": (BATCH, SEQUENCE)}
    )
    instance_schemas = (
        {
            "description": "A question and the text that has its answer; for question_answering.",
            **closed(FIELDS, question=FULL_STRING, context=FULL_STRING),
        },
    )
    prediction_schemas = (
        {
            "description": "The answer, or a list of answers where top_k asks for more than one; for "
            "question_answering.",
            "anyOf": [ANSWER, array(ANSWER)],
        },
    )

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        self._question_first = settings.vocabulary.padding_side != "left"
        self._cls_id = settings.vocabulary.cls_id
        # The last two names are defaults of exporters and of Triton's PyTorch backend.
        self.outputs = (
            OutputRole("start_logits", (TOKENS,), ("start", "output_0", "OUTPUT__0")),
            OutputRole("end_logits", (TOKENS,), ("end", "output_1", "OUTPUT__1")),
        )

    @classmethod
    def trial_instance(cls, text: str, mask_token: str | None = None) -> Json:
        return {"question": "Where is it?", "context": text}

    def options(self, parameters: Mapping[str, Json]) -> QuestionAnsweringOptions:
        request, present = self.read(QuestionAnsweringParameters, parameters)
        # Windows are the pipeline's default.
        overflow = read_overflow(request, "error" if self.settings.on_overflow == "error" else "window")
        longest = self.settings.max_length
        max_seq_len = min(longest, MAX_SEQ_LEN) if overflow == "window" else longest
        if one_of(present, "max_seq_len", "max_tokens") == "max_tokens":
            max_seq_len = min(request.max_tokens or longest, longest)
        elif request.max_seq_len is not None:
            max_seq_len = request.max_seq_len
        if max_seq_len > longest:
            expected = f"at most {longest}, the model's length in tokens"
            raise InvalidInput(("parameters", "max_seq_len"), expected, str(max_seq_len))
        doc_stride = self._stride(request, present, max_seq_len, overflow)
        tokenization = Tokenization(
            detail=True,
            windows=overflow == "window",
            stride=doc_stride if overflow == "window" else 0,
            only_second=self._question_first,
            only_first=not self._question_first,
        )
        return QuestionAnsweringOptions(
            top_k=request.top_k,
            max_answer_len=request.max_answer_len,
            handle_impossible_answer=request.handle_impossible_answer,
            align_to_words=request.align_to_words,
            max_seq_len=max_seq_len,
            doc_stride=doc_stride,
            overflow=overflow,
            tokenization=replace(read_tokenization(request, tokenization), max_length=max_seq_len),
        )

    def _stride(
        self, request: QuestionAnsweringParameters, present: Set[str], max_seq_len: int, overflow: Overflow
    ) -> int | None:
        name = one_of(present, "doc_stride", "stride")
        if name is None:
            stride = self.settings.stride
        elif overflow == "window":
            stride = request.stride if name == "stride" else request.doc_stride
        else:
            hint = "leave truncation out, and start the service without --on_overflow=error"
            raise InvalidInput(("parameters", name), "no value without windows", hint=hint)
        if overflow == "window" and stride is not None and stride > max_seq_len:
            expected = f"at most max_seq_len, {max_seq_len}"
            raise InvalidInput(("parameters", name or "doc_stride"), expected, str(stride))
        return stride

    def item(self, instance: Json, path: Path, options: QuestionAnsweringOptions) -> Question:
        if not isinstance(instance, dict) or instance.keys() != set(FIELDS):
            raise InvalidInput(path, '{"question": string, "context": string}', describe(instance))
        for name in FIELDS:
            if not isinstance(instance[name], str) or not instance[name]:
                got = "an empty one" if instance[name] == "" else describe(instance[name])
                raise InvalidInput((*path, name), "a string", got)
        return Question(instance["question"], instance["context"])

    def texts(self, item: Question, options: QuestionAnsweringOptions) -> Sequence[TextInput]:
        return ((item.question, item.context) if self._question_first else (item.context, item.question),)

    def answer_size(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        """Counts the characters of all candidates too, since long words make long answers."""
        answers = self._answers(encoding, options)
        lengths = [end - start for start, end in encoding.offsets or ()]
        longest = min(sum(lengths), max(lengths, default=0) * options.max_answer_len)
        candidates = min(options.candidates, len(encoding) * min(options.max_answer_len, len(encoding)))
        return ANSWER_VALUES * answers + candidates * longest // CHARACTERS_PER_VALUE

    def decode_cost(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        """Adds the cost of the answers to the number of tokens."""
        return len(encoding) + ANSWER_COST * self._answers(encoding, options)

    def _answers(self, encoding: Encoding, options: QuestionAnsweringOptions) -> int:
        """The maximum number of answers from a window: ``top_k``, or the number of spans if lower."""
        return min(options.top_k, len(encoding) * min(options.max_answer_len, len(encoding)))

    def decode(
        self, item: Question, encoding: Encoding, outputs: Outputs, options: QuestionAnsweringOptions
    ) -> WindowSpans:
        context = self._context(encoding)
        cls, allowed = self._allowed(encoding, context)
        starts, ends = probabilities(outputs["start_logits"], outputs["end_logits"], allowed)
        null_score = 0.0
        if cls is not None:
            null_score = float(starts[cls] * ends[cls])
            starts[cls] = ends[cls] = 0
        firsts, lasts, scores = best_spans(starts, ends, options.candidates, options.max_answer_len)
        mapper = SpanMapper(encoding, context, whole_words=options.align_to_words)
        spans: dict[str, AnswerSpan] = {}
        for first, last, score in zip(firsts.tolist(), lasts.tolist(), scores.tolist(), strict=True):
            span = mapper.span(first, last)
            if span is not None:
                _add(spans, item.context[span[0] : span[1]].lower(), AnswerSpan(score, *span))
        if len(firsts) < options.candidates or not spans:
            # The pipeline adds empty spans with a score of 0, such as [CLS] to [CLS].
            _add(spans, NO_SPAN_KEY, AnswerSpan(0.0, 0, 0))
        return WindowSpans(spans, null_score)

    def _context(self, encoding: Encoding) -> slice:
        """The range of the context's tokens."""
        sides = encoding.sequence_ids or []
        side = 1 if self._question_first else 0
        start = sides.index(side) if side in sides else 0
        return slice(start, start + sides.count(side))

    def _allowed(self, encoding: Encoding, context: slice) -> tuple[int | None, list[slice]]:
        """The index of the tokenizer's [CLS], which means "no answer", and the ranges of allowed tokens.

        As in the pipeline, the context's tokens and every [CLS] are allowed, even a [CLS] in the client's question.
        """
        cls_id = self._cls_id
        if cls_id is None:
            return None, [context]
        special, allowed, start = None, [context], 0
        for _ in range(encoding.ids.count(cls_id)):
            index = encoding.ids.index(cls_id, start)
            start = index + 1
            allowed.append(slice(index, start))
            if special is None and encoding.sequence_ids and encoding.sequence_ids[index] is None:
                special = index
        return special, allowed

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
    """Adds a span, or adds its score to an existing span with the same text."""
    known = spans.get(text)
    if known is None:
        spans[text] = AnswerSpan(span.score, span.start, span.end)
    else:
        known.score += span.score


def probabilities(start_logits: Array, end_logits: Array, allowed: Sequence[slice]) -> Array:
    """The probability of each token to be the answer's first and last token, from logits [tokens].

    Args:
        allowed: the ranges of tokens to include in the softmax.

    Returns:
        float32 [2, tokens], 0 outside of ``allowed``.

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
        starts, ends: float32 probabilities [tokens].
        count: the maximum number of spans.
        longest: the maximum number of tokens in a span.

    Returns:
        the first tokens, last tokens and scores [spans], in descending order of scores, without scores of 0.
    """
    tokens = len(starts)
    width = min(longest, tokens)
    padded = np.zeros(tokens + width - 1, np.float32)
    padded[:tokens] = ends
    # Column f of this view is ends[f], ends[f + 1], ...
    last = np.ndarray((width, tokens), np.float32, padded, strides=(padded.itemsize, padded.itemsize))
    scores = starts * last
    # The best ``count`` spans begin at the ``count`` tokens with the highest maximum scores, or at fewer tokens.
    begins = np.sort(top_k(scores.max(axis=0), count))
    among = scores[:, begins].T.ravel()
    best = top_k(among, count)
    best = best[among[best] > 0]
    row, length = np.divmod(best, width)
    first = begins[row]
    return first, first + length, among[best]


class SpanMapper:
    """Maps a window's spans of tokens to characters of the context.

    Args:
        encoding: the window, with details.
        context: the range of the context's tokens.
        whole_words: whether to extend spans to whole words within the window.
    """

    def __init__(self, encoding: Encoding, context: slice, *, whole_words: bool) -> None:
        self._offsets = encoding.offsets or []
        self._word_ids = (encoding.word_ids or []) if whole_words else []
        self._context = context
        self._words: dict[int, tuple[int, int] | None] = {}

    def span(self, first: int, last: int) -> tuple[int, int] | None:
        """The start and end, in characters, of a span of tokens; None for a span outside the context."""
        first_word, last_word = self._word(first), self._word(last)
        if first_word is not None and last_word is not None:
            start, end = first_word[0], last_word[1]
        elif first >= self._context.start and last < self._context.stop:
            # For tokenizers without words, and tokens outside of words.
            start, end = self._offsets[first][0], self._offsets[last][1]
        else:
            return None
        return (start, end) if start <= end else None

    def _word(self, token: int) -> tuple[int, int] | None:
        """The start and end of the context's word with the token's word id.

        As in the pipeline, this includes a [CLS] in the client's question, although its word id refers to the question.
        """
        word_id = self._word_ids[token] if self._word_ids else None
        if word_id is None:
            return None
        if word_id not in self._words:
            self._words[word_id] = self._find(word_id, token)
        return self._words[word_id]

    def _find(self, word_id: int, token: int) -> tuple[int, int] | None:
        words, lowest, end = self._word_ids, self._context.start, self._context.stop
        if not lowest <= token < end:
            try:
                token = words.index(word_id, lowest, end)
            except ValueError:
                return None
        first = last = token
        while first > lowest and words[first - 1] == word_id:
            first -= 1
        while last + 1 < end and words[last + 1] == word_id:
            last += 1
        return self._offsets[first][0], self._offsets[last][1]
