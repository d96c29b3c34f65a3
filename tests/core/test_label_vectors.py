"""Vectors of labels: each computed once, forgotten with their model, and counted before they are copied."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.label_model import LoadedLabels, label_model_name, label_vectors
from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import PipelineBuilder
from hf_transformer.app.settings import limits_of
from hf_transformer.config.options import Config
from hf_transformer.core.budget import Budget
from hf_transformer.core.contract import ContractError
from hf_transformer.core.label_vectors import KEEP_SECONDS, LabelVectors
from hf_transformer.core.limits import Admission, AdmissionTicket, Limits
from hf_transformer.errors import InvalidInput, LoadError, NotReady, PredictorError, RequestError, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Outputs
from hf_transformer.tasks.zero_shot_token_classification import TRIAL_LABELS
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.request import Context, Query
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from hf_transformer.types.tokenization import LabelledEncoding
from tests.support.configuring import config
from tests.support.scripted_predictor import RecordedCall, ScriptedPredictor
from tests.support.triton_repository import task_model_folder

SIZE = 16
SPEC = ModelSpec(
    "gliner_bi_labels",
    "1",
    tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask")),
    (TensorSpec("labels_embeddings", "FP32", (SIZE,)),),
    8,
)


class LabelPredictor(ScriptedPredictor):
    """Answers at once: the vector of a label repeats the sum of its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = SPEC
        self.value: float | None = None
        self.size = SIZE

    async def respond(self, made: RecordedCall) -> Outputs:
        sums = made.ids.sum(axis=1) if self.value is None else np.full(len(made.ids), self.value)
        vectors = np.repeat(sums[:, np.newaxis], self.size, axis=1).astype(np.float32)
        return {"labels_embeddings": Tensor("labels_embeddings", "FP32", vectors)}

    @property
    def rows(self) -> int:
        return sum(len(call.ids) for call in self.calls)


def options(*flags: str) -> Config:
    return config(f"--model_dir={task_model_folder('gliner_bi')}", "--model_name=gliner_bi", *flags)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def predictor() -> LabelPredictor:
    return LabelPredictor()


async def source(predictor: LabelPredictor, executor: ThreadPoolExecutor, *flags: str) -> LabelVectors:
    settings = options(*flags)
    labels = load_model(settings).labels
    assert labels is not None
    vectors = label_vectors(settings, labels, predictor, Metrics().of("gliner_bi"), executor)
    await vectors.check(asyncio.get_running_loop().time() + 10)
    return vectors


def text() -> LabelledEncoding:
    return LabelledEncoding([5], [0], words=[(0, 1)], words_mask=[1], labels=2)


async def ask(vectors: LabelVectors, *lists: Sequence[str], limits: Limits | None = None) -> list[LabelledEncoding]:
    texts = [text() for _ in lists]
    budget = Budget(limits or limits_of(options()))
    await vectors.attach(zip(texts, lists, strict=True), Context("1", {}), budget, "instances")
    return texts


class CountingExecutor(ThreadPoolExecutor):
    """Counts the work that it gets."""

    works = 0

    def submit(self, *arguments: Any, **options: Any) -> Any:
        self.works += 1
        return super().submit(*arguments, **options)


async def test_many_labels_are_copied_outside_the_event_loop(predictor: LabelPredictor) -> None:
    names = [f"label {number}" for number in range(250)]
    with CountingExecutor(1) as executor:
        vectors = await source(predictor, executor)
        [few] = await ask(vectors, names)
        before = executor.works
        await ask(vectors, names)
        assert executor.works == before
        turned = [names[number:] + names[:number] for number in range(50)]
        texts = await ask(vectors, *turned, turned[7])
        assert executor.works == before + 2
    assert few.vectors is not None
    for number, found in enumerate(texts[:50]):
        assert found.vectors is not None and (found.vectors == np.roll(few.vectors, -number, axis=0)).all()
    assert texts[50].vectors is texts[7].vectors
    assert predictor.rows == 250


async def test_bytes_are_counted_before_the_model_is_asked(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    vectors = await source(predictor, executor)
    budget = Budget(limits_of(options()), AdmissionTicket(Admission(8, 10_000, Metrics(), max_bytes=2**12)))
    with pytest.raises(RequestError, match="bytes"):
        await vectors.attach([(text(), [f"label {number}" for number in range(100)])], Context("1", {}), budget, "")
    assert predictor.rows == 0


async def test_vectors_of_different_sizes_are_an_error_of_the_model(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    predictor.spec = replace(SPEC, outputs=(TensorSpec("labels_embeddings", "FP32", (-1,)),))
    vectors = await source(predictor, executor)
    await ask(vectors, ["person"])
    predictor.size = SIZE + 1
    with pytest.raises(PredictorError, match="different sizes"):
        await ask(vectors, ["person", "city"])


async def test_vectors_of_a_replaced_model_do_not_reach_a_model_of_texts_that_reads_others(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    """In a batch with vectors of the right size they would fail the requests of others."""
    vectors = await source(predictor, executor)
    pairs, budget = [(text(), ["person"])], Budget(limits_of(options()))
    await vectors.attach(pairs, Context("1", {}), budget, "instances", size=SIZE)
    predictor.spec = replace(SPEC, outputs=(TensorSpec("labels_embeddings", "FP32", (SIZE + 1,)),))
    predictor.size = SIZE + 1
    await vectors.check(asyncio.get_running_loop().time() + 10)
    with pytest.raises(PredictorError, match=r"reads vectors of 16 numbers.*makes 17"):
        await vectors.attach(pairs, Context("1", {}), budget, "instances", size=SIZE)


async def test_a_label_is_truncated_to_the_fixed_length_of_the_model(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    inputs = tuple(TensorSpec(name, "INT64", (4,)) for name in ("input_ids", "attention_mask"))
    predictor.spec = replace(SPEC, inputs=inputs)
    vectors = await source(predictor, executor)
    await ask(vectors, ["city"])
    await ask(vectors, ["a long label of many words and tokens", "town"])
    [[own], [long, after]] = (call.ids.tolist() for call in predictor.calls)
    assert (len(own), len(long), len(after)) == (4, 4, 4)
    assert (long[0], long[-1]) == (after[0], 3) == (own[0], 3), "no token in the row of the next label"


async def test_a_trial_asks_the_model_for_labels_that_are_kept(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    """Otherwise a broken model of labels would look sound to the check of a suspect model."""
    vectors = await source(predictor, executor)
    await ask(vectors, ["person", "city"])
    predictor.value = float("nan")
    await ask(vectors, ["person", "city"])
    budget = Budget(limits_of(options()))
    with pytest.raises(PredictorError, match="finite"):
        await vectors.attach([(text(), ["person", "city"])], Context("trial", {}), budget, "instances", anew=True)


async def test_each_label_is_computed_once_whatever_its_neighbours(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    vectors = await source(predictor, executor)
    first, second, third = await ask(vectors, ["person", "city"], ["city", "drug"], ["person", "city"])
    assert predictor.rows == 3
    assert first.vectors is not None and second.vectors is not None and first.vectors.shape == (2, SIZE)
    assert third.vectors is first.vectors, "equal lists share their memory"
    assert (first.vectors[1] == second.vectors[0]).all() and not (first.vectors[0] == first.vectors[1]).any()
    [again] = await ask(vectors, ["drug", "person"])
    assert predictor.rows == 3
    assert again.vectors is not None and (again.vectors == [second.vectors[1], first.vectors[0]]).all()


async def test_vectors_are_forgotten_with_their_model_and_beyond_the_limit(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    vectors = await source(predictor, executor, "--max_label_vectors=2")
    await ask(vectors, ["person", "city"])
    await ask(vectors, ["person"])
    await ask(vectors, ["drug"])
    assert predictor.rows == 3
    await ask(vectors, ["person"])
    assert predictor.rows == 3, "the last used stays"
    await ask(vectors, ["city"])
    assert predictor.rows == 4
    deadline = asyncio.get_running_loop().time() + 10
    await vectors.check(deadline)
    await ask(vectors, ["city"])
    assert predictor.rows == 4, "the same model"
    predictor.spec, predictor.value = replace(SPEC, version="2"), 3
    await vectors.check(deadline)
    [found] = await ask(vectors, ["city"])
    assert predictor.rows == 5 and found.vectors is not None and (found.vectors == 3).all()


async def test_vectors_are_made_again_after_some_time(
    predictor: LabelPredictor, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights of a version may have changed, which no description of the model tells."""
    vectors, loop = await source(predictor, executor), asyncio.get_running_loop()
    await ask(vectors, ["person"])
    predictor.value, later = 7, loop.time() + KEEP_SECONDS
    monkeypatch.setattr(loop, "time", lambda: later - 5)
    await vectors.check(later)
    [found] = await ask(vectors, ["person"])
    assert found.vectors is not None and not (found.vectors == 7).any()
    monkeypatch.setattr(loop, "time", lambda: later + 5)
    await vectors.check(later + 60)
    [found] = await ask(vectors, ["person"])
    assert found.vectors is not None and (found.vectors == 7).all()


async def test_a_request_counts_its_labels_whether_they_are_kept_or_not(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    vectors = await source(predictor, executor)
    limits = limits_of(options("--max_sequences=2"))
    await ask(vectors, ["person", "city"], limits=limits)
    for _ in range(2):
        with pytest.raises(TooLarge, match="--max_sequences"):
            await ask(vectors, ["person", "city"], ["city", "drug"], limits=limits)
        await ask(vectors, ["drug"])
    tokens = []
    for _ in range(2):
        budget = Budget(limits)
        await vectors.attach([(text(), ["person", "new"])], Context("1", {}), budget, "instances")
        tokens.append(budget.tokens)
    assert tokens[0] == tokens[1] >= 2 * 3
    admission = Admission(8, 10_000, Metrics(), max_bytes=2**16)
    budget = Budget(limits_of(options()), AdmissionTicket(admission))
    lists = [(f"label {number}", f"label {number + 1}") for number in range(600)]
    with pytest.raises(RequestError, match="bytes") as refused:
        await vectors.attach(((text(), names) for names in lists), Context("1", {}), budget, "instances")
    assert refused.value.status in (413, 429)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_vectors_that_are_no_numbers_are_an_error_and_not_kept(
    predictor: LabelPredictor, executor: ThreadPoolExecutor, value: float
) -> None:
    vectors = await source(predictor, executor)
    predictor.value = value
    with pytest.raises(PredictorError, match="finite"):
        await ask(vectors, ["person"])
    predictor.value = None
    [found] = await ask(vectors, ["person"])
    assert found.vectors is not None and np.isfinite(found.vectors).all()


async def test_a_missing_model_is_named_with_its_flag(predictor: LabelPredictor, executor: ThreadPoolExecutor) -> None:
    predictor.ready = False
    with pytest.raises(NotReady, match=r"'gliner_bi_labels'.*\(--labels_model\)"):
        await source(predictor, executor)
    assert label_model_name(options("--predictor_model=other")) == "other_labels"
    assert label_model_name(options("--predictor_model=other", "--labels_model=own")) == "own"


async def test_models_with_other_vectors_do_not_fit(predictor: LabelPredictor, executor: ThreadPoolExecutor) -> None:
    predictor.spec = replace(SPEC, outputs=(TensorSpec("labels_embeddings", "FP32", (SIZE, 2)),))
    with pytest.raises(ContractError, match="labels_embeddings"):
        await source(predictor, executor)
    predictor.spec = SPEC
    vectors = await source(predictor, executor)
    settings = options()
    build = PipelineBuilder(
        settings,
        load_model(settings),
        predictor,
        Metrics().of("gliner_bi"),
        executor,
        label_vectors=vectors,
    )
    names = ("input_ids", "attention_mask", "words_mask")
    inputs = [*(TensorSpec(name, "INT64", (-1,)) for name in names), TensorSpec("text_lengths", "INT64", (1,))]
    spec = ModelSpec(
        "gliner_bi",
        "1",
        (*inputs, TensorSpec("labels_embeddings", "FP32", (-1, SIZE + 1))),
        (TensorSpec("logits", "FP32", (-1, 4, -1)),),
        8,
    )
    with pytest.raises(ContractError, match=r"reads vectors of 17 numbers.*makes 16.*--labels_model"):
        build(spec)
    fitting = replace(spec, inputs=(*inputs, TensorSpec("labels_embeddings", "FP32", (-1, SIZE))))
    pipeline = build(fitting)
    await ask(vectors, TRIAL_LABELS)
    predictor.value = float("nan")
    with pytest.raises(PredictorError, match="finite"):
        await pipeline.trial()  # which asks for kept labels, too
    predictor.value = None
    predictor.spec = replace(SPEC, outputs=(TensorSpec("labels_embeddings", "FP32", (SIZE + 1,)),))
    predictor.size = SIZE + 1
    await vectors.check(asyncio.get_running_loop().time() + 10)
    with pytest.raises(PredictorError, match="reads vectors of 16 numbers"):
        await pipeline.trial()
    with pytest.raises(PredictorError, match="reads vectors of 16 numbers"):
        await pipeline(Query([{"text": "a text", "labels": ["person"]}], {}), Context("1", {}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("labels_encoder", 5, "labels_encoder: expected a model's name, got a number"),
        ("labels_encoder_config", "bert", "labels_encoder_config: expected an object"),
        ("labels_encoder", "x" * 5000, "not that of the labels_encoder 'x+'"),
    ],
)
def test_an_invalid_encoder_of_labels_is_named(tmp_path: Path, field: str, value: object, message: str) -> None:
    folder = tmp_path / "gliner_bi"
    shutil.copytree(task_model_folder("gliner_bi"), folder)
    shutil.rmtree(folder / "labels_tokenizer")
    gliner = json.loads((folder / "gliner_config.json").read_text())
    (folder / "gliner_config.json").write_text(json.dumps({**gliner, field: value}))
    with pytest.raises(LoadError, match=message):
        load_model(config(f"--model_dir={folder}", "--model_name=gliner_bi"))


async def test_a_label_without_tokens_is_refused_by_name(
    predictor: LabelPredictor, executor: ThreadPoolExecutor
) -> None:
    settings = options()
    tokenizer = load_tokenizer(task_model_folder("gliner_bi") / "labels_tokenizer", {}, special_tokens=False)
    labels = LoadedLabels(tokenizer, {})
    vectors = label_vectors(settings, labels, predictor, Metrics().of("gliner_bi"), executor)
    await vectors.check(asyncio.get_running_loop().time() + 10)
    with pytest.raises(InvalidInput, match="labels"):
        await ask(vectors, ["person", "\u200b"])
