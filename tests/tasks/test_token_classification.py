"""Entities from synthetic logits, with scores worked out by hand, and tokens of overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hf_transformer.errors import InvalidInput, PredictorError
from hf_transformer.tasks.entities import STRATEGIES, merge_entities
from hf_transformer.tasks.token_classification import TokenClassification, WindowShape, window_parts
from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.types.tokenization import Encoding, Tokenization, Words
from tests.tasks.task_settings import named, settings

NAMES = ("O", "B-PER", "I-PER", "E-PER", "LOC")
O, B, I, E, LOC = range(5)  # noqa: E741
TEXT = "Anna Smithson saw Xy in Oslo"
TOKENS = ("[CLS]", "anna", "smith", "##son", "saw", "[UNK]", "in", "oslo", "[SEP]")
OFFSETS = [(0, 0), (0, 4), (5, 10), (10, 13), (14, 17), (18, 20), (21, 23), (24, 28), (0, 0)]
SPECIAL = [1, *[0] * 7, 1]
PIPELINE = {"output_format": "pipeline"}


class Lexicon:
    """The part of a WordPiece tokenizer that the task uses."""

    unk_id = TOKENS.index("[UNK]")

    def __init__(self, marks_subwords: bool = True) -> None:
        self.marks_subwords = marks_subwords

    def id_to_token(self, number: int) -> str | None:
        return TOKENS[number]

    def join_tokens(self, tokens: list[str]) -> str:
        return " ".join(tokens).replace(" ##", "")


def make_task(**options: Any) -> TokenClassification:
    lexicon: Any = Lexicon(options.pop("marks_subwords", True))
    return TokenClassification(settings(named(*NAMES), lexicon, **options))


def logits(labels: Sequence[int], shares: Sequence[float]) -> Any:
    """Logits whose softmax is a share for a token's label, and the same for each other label."""
    rows = np.log(np.repeat((1 - np.array(shares))[:, None] / (len(NAMES) - 1), len(NAMES), axis=1))
    rows[np.arange(len(labels)), labels] = np.log(shares)
    return rows.astype(np.float32)


def decode(task: TokenClassification, rows: Any, **parameters: Any) -> Any:
    options = task.options(parameters)
    encoding = Encoding(list(range(len(TOKENS))), [0] * len(TOKENS), False, OFFSETS, SPECIAL, None, None)
    item = task.item(TEXT, ("instances", 0), options)
    return task.answer(item, [[task.decode(item, encoding, {"logits": rows}, options)]], options)


LABELS = (O, B, I, O, O, B, O, LOC, B)
SHARES = (0.9, 0.9, 0.6, 0.8, 0.9, 0.5, 0.9, 0.7, 0.9)


def entity(word: str, score: float, start: int, end: int, group: str = "PER") -> dict[str, Any]:
    return {"entity_group": group, "score": pytest.approx(score), "word": word, "start": start, "end": end}


FOLLOWING = [entity("Xy", 0.5, 18, 20), entity("oslo", 0.7, 24, 28, "LOC")]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("simple", [entity("anna smith", 0.75, 0, 10), *FOLLOWING]),
        ("first", [entity("anna smithson", 0.75, 0, 13), *FOLLOWING]),
        # O: (0.1 + 0.8) / 2 is more than I-PER's (0.6 + 0.05) / 2.
        ("average", [entity("anna", 0.9, 0, 4), *FOLLOWING]),
        ("max", [entity("anna", 0.9, 0, 4), *FOLLOWING]),
    ],
)
def test_each_strategy_groups_tokens_to_entities(strategy: str, expected: Any) -> None:
    task = make_task(output_format="pipeline", aggregation_strategy=strategy)
    assert decode(task, logits(LABELS, SHARES)) == expected


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "none"])
def test_a_label_named_o_with_a_prefix_is_an_entity(strategy: str) -> None:
    names = ("O", "B-O", "I-O", "S-O", "LOC")
    lexicon: Any = Lexicon()
    task = TokenClassification(
        settings(named(*names), lexicon, output_format="pipeline", aggregation_strategy=strategy)
    )
    # B-O I-O O: the tokens outside end the entity. The subword ##son has the label of its word.
    rows = logits([names.index(name) for name in ("O", "B-O", "I-O", "I-O", "O", "I-O", "O", "S-O", "O")], (0.9,) * 9)
    entities = [
        entity("anna smithson", 0.9, 0, 13, "O"),
        entity("Xy", 0.9, 18, 20, "O"),
        entity("oslo", 0.9, 24, 28, "O"),
    ]
    assert decode(task, rows) == decode(task, rows, ignore_labels=["O"]) == entities
    assert decode(task, rows, ignore_labels=["O", "B-O", "I-O"]) == entities[2:]
    groups = [one["word"] for one in decode(task, rows, ignore_labels=[])]
    assert groups == ["anna smithson", "saw", "Xy", "in", "oslo"]


def test_without_a_strategy_each_token_is_an_entity() -> None:
    answers = decode(make_task(output_format="pipeline"), logits(LABELS, SHARES))
    assert [tuple(answer[key] for key in ("entity", "index", "word", "start", "end")) for answer in answers] == [
        ("B-PER", 1, "anna", 0, 4),
        ("I-PER", 2, "smith", 5, 10),
        ("B-PER", 5, "Xy", 18, 20),
        ("LOC", 7, "oslo", 24, 28),
    ]
    assert [answer["score"] for answer in answers] == pytest.approx([0.9, 0.6, 0.5, 0.7])


def test_of_overlapping_entities_the_longer_then_the_likelier_stays() -> None:
    def spans(*values: tuple[int, int, float]) -> list[dict[str, Any]]:
        return [{"start": start, "end": end, "score": score} for start, end, score in values]

    entities = spans((0, 4, 0.5), (8, 10, 0.9), (2, 9, 0.1), (20, 24, 0.5), (20, 24, 0.6), (24, 25, 0.1))
    assert merge_entities(entities) == spans((2, 9, 0.1), (20, 24, 0.6), (24, 25, 0.1))
    assert merge_entities([]) == [] and merge_entities(spans((3, 3, 0.5))) == spans((3, 3, 0.5))


@pytest.mark.parametrize(
    ("options", "labels", "shares", "expected"),
    [
        # The average of the scores of a word.
        ({"aggregation_strategy": "average"}, {2: B, 3: B}, {3: 0.5}, entity("smithson", 0.7, 5, 13)),
        # The first of equal scores decides.
        ({"aggregation_strategy": "max"}, {2: LOC, 3: B}, {}, entity("smithson", 0.9, 5, 13, "LOC")),
        # Words without marks end at spaces.
        (
            {"aggregation_strategy": "first", "marks_subwords": False},
            {1: B, 2: I},
            {2: 0.6},
            entity("anna smithson", 0.75, 0, 13),
        ),
    ],
)
def test_a_word_gets_one_label(options: Any, labels: dict[int, int], shares: dict[int, float], expected: Any) -> None:
    rows = logits([labels.get(index, O) for index in range(9)], [shares.get(index, 0.9) for index in range(9)])
    assert decode(make_task(output_format="pipeline", **options), rows) == [expected]


def test_neighbours_of_one_tag_are_one_entity_until_the_next_b() -> None:
    """A prefix other than B- and I- is part of the tag, but not of the name."""
    rows = logits((O, B, I, I, E, B, B, I, O), (0.9,) * 9)
    answers = decode(make_task(output_format="pipeline", aggregation_strategy="simple"), rows)
    words = [(answer["entity_group"], answer["word"]) for answer in answers]
    assert words == [("PER", "anna smithson"), ("PER", "saw"), ("PER", "Xy"), ("PER", "in oslo")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_special_tokens_are_no_entities(strategy: str) -> None:
    task = make_task(output_format="pipeline", aggregation_strategy=strategy)
    options = task.options({"ignore_labels": []})
    encoding = Encoding([0, 8], [0, 0], False, [(0, 0)] * 2, [1, 1], None, None)
    item = task.item("", ("instances", 0), options)
    assert task.decode(item, encoding, {"logits": logits((B, B), (0.9, 0.9))}, options).values == []


def test_the_kserve_format_has_labels_probabilities_or_logits_per_token() -> None:
    rows = logits(LABELS, SHARES)
    assert decode(make_task(), rows) == [list(LABELS)]
    expected = {"0": 0.9, "1": 0.025, "2": 0.025, "3": 0.025, "4": 0.025}
    task = make_task(return_probabilities=True)
    assert decode(task, rows)[0] == expected
    raw = decode(make_task(), rows, return_raw_logits=True)
    assert [list(token.values()) for token in raw] == rows.tolist()
    rows[1, B] = -np.inf  # a banned label
    assert decode(task, rows)[1] == {"0": 0.25, "1": 0.0, "2": 0.25, "3": 0.25, "4": 0.25}


@pytest.mark.parametrize("output_format", ["kserve", "pipeline"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(output_format: Any, bad: float) -> None:
    rows = logits(LABELS, SHARES)
    rows[4, 2] = bad
    with pytest.raises(PredictorError, match="not finite"):
        decode(make_task(output_format=output_format), rows)


def test_windows_are_for_on_overflow_or_a_stride() -> None:
    assert make_task(max_length=128).tokenization(make_task().options({})).windows is False
    windows = make_task(on_overflow="window", max_length=128)
    assert windows.tokenization(windows.options({})).stride == 32
    assert windows.options({"truncation": True}).overflow == "truncate"
    assert make_task(stride=7, on_overflow="window").options({}).stride == 7
    assert make_task(stride=7).options({"stride": 3}).windows
    with pytest.raises(InvalidInput, match=r"^parameters\.stride: .* or truncation, got both"):
        make_task().options({"stride": 3, "truncation": False})


@pytest.mark.parametrize(
    ("strategy", "parameters", "size", "cost"),
    [
        ("none", {}, 3, 3),
        ("none", {"return_offsets_mapping": True}, 3, 3),
        ("none", {"return_probabilities": True}, 15, 15),
        ("none", PIPELINE, 3, 3),
        ("none", PIPELINE | {"ignore_labels": []}, 18, 18),
        ("max", {}, 3, 3),
        ("simple", PIPELINE, 3, 3),
        *[(strategy, PIPELINE, 3, 15) for strategy in ("first", "average", "max")],
    ],
)
def test_sizes_and_costs_depend_on_form_and_strategy(strategy: str, parameters: Any, size: int, cost: int) -> None:
    encoding, task = Encoding([1, 2, 3], [0] * 3), make_task(aggregation_strategy=strategy)
    options = task.options(parameters)
    assert (task.answer_size(encoding, options), task.decode_cost(encoding, options)) == (size, cost)


def test_offsets_are_counted_with_their_padding() -> None:
    task = make_task()
    short, long = (Encoding([1] * size, [0] * size, False, [(0, 1)] * size, [0] * size) for size in (3, 50))
    options = task.options({"return_offsets_mapping": True})
    encodings = [[[short]], [[short]], [[long, long, short]]]
    assert task.extra_size(encodings, options) == 3 * 103 * 2
    assert task.extra_size(encodings[:2], options) == 2 * 3 * 2
    assert task.extra_outputs(encodings[:2], options)[0].data.size == 2 * 3 * 2
    assert task.extra_size(encodings, task.options({})) == 0


# Tokens of overlapping windows


def engine(max_length: int, side: str, special: bool) -> RustEngine:
    """A tokenizer with a token per word, and [CLS] and [SEP] around a text."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return RustEngine(backend, max_length, special_tokens=special, truncation_side=side)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("special", [True, False], ids=["special", "bare"])
@pytest.mark.parametrize("in_words", [True, False], ids=["words", "text"])
@given_settings(max_examples=25)  # for each of eight
@given(count=st.integers(1, 40), max_length=st.integers(4, 20), data=st.data())
def test_windows_give_every_token_once(
    side: str, special: bool, in_words: bool, count: int, max_length: int, data: Any
) -> None:
    stride = data.draw(st.integers(0, max_length - 3))
    words = tuple(f"w{index}" for index in range(count))
    text = Words(words) if in_words else " ".join(words)
    options = Tokenization(detail=True, windows=True, stride=stride)
    (windows,) = engine(max_length, side, special).encode([text], options)
    ((whole,),) = engine(1000, side, special).encode([text], Tokenization(detail=True))
    parts = window_parts([WindowShape.of(window) for window in windows], stride)
    assert [token for part in parts for token in tokens(windows[part.window])[part.begin : part.end]] == tokens(whole)
    assert [part.start for part in parts] == [sum(p.end - p.begin for p in parts[:n]) for n in range(len(parts))]


def tokens(encoding: Encoding) -> list[Any]:
    assert encoding.offsets is not None and encoding.word_ids is not None
    return list(zip(encoding.ids, encoding.offsets, encoding.word_ids, strict=True))


def test_neighbouring_windows_meet_in_the_middle_of_shared_tokens() -> None:
    first, second = WindowShape(10, 1, 1, (0, 0)), WindowShape(8, 1, 1, (0, 30))
    parts = window_parts([first, second], stride=4)
    assert [(part.begin, part.end) for part in parts] == [(0, 7), (3, 8)]
    assert [part.window for part in window_parts([second, first], stride=4)] == [1, 0]


def test_a_window_of_special_tokens_alone_is_one_part() -> None:
    shape = WindowShape.of(Encoding([1, 2], [0, 0], offsets=[(0, 0)] * 2, special_mask=[1, 1], word_ids=[None] * 2))
    assert [(part.begin, part.end) for part in window_parts([shape], 3)] == [(0, 2)]
