"""One request from instances to predictions, with several texts per instance and windows per text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import PipelineBuilder
from hf_transformer.core import pipeline
from hf_transformer.core.pipeline import PipelineOptions, PredictivePipeline
from hf_transformer.core.scheduler import Scheduler
from hf_transformer.errors import InvalidInput, RequestError, TooLarge
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import OutputRole, Task, TaskSettings
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.request import Answers, Context, Query
from hf_transformer.types.tensors import Array, ModelSpec, TensorSpec
from hf_transformer.types.tokenization import PLAIN, Encoding, TokenIds, Tokenization
from tests.core.scheduling import LOGITS, SchedulerHarness
from tests.generation.tokenizers import without_unknown
from tests.integration.server.processes import MODEL_FOLDER
from tests.support.budgets import limits
from tests.support.configuring import config
from tests.support.scripted_predictor import ScriptedPredictor

LIMITS = limits(max_instances=4, max_text_length=4000, max_total_length=8000, max_sequences=8)
LONG = "word " * 800
"""The longest text within the limit of characters."""
IN_TOKENS = TokenIds((101, 7, 8, 102))


class Ids(Task[Any, Any, list[int]]):
    """Answers an item, a text or a list of texts, with the ids that the model has read of each window."""

    name = "ids"

    outputs = (OutputRole("logits", LOGITS.axes),)

    def options(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return parameters

    def item(self, instance: Any, where: tuple[str | int, ...], options: Mapping[str, Any]) -> Any:
        if instance is None:
            raise InvalidInput(where, "a text")
        return instance

    def texts(self, item: Any, options: Mapping[str, Any]) -> Sequence[str]:
        return item if isinstance(item, list) else [item]

    def tokenization(self, options: Mapping[str, Any]) -> Tokenization:
        return Tokenization(windows=True) if options.get("windows") else PLAIN

    def overflow(self, options: Mapping[str, Any]) -> Any:
        return options.get("overflow", "truncate")

    def check(self, encoding: Encoding, where: tuple[str | int, ...]) -> None:
        if len(encoding) == 3:
            raise InvalidInput(where, "more than one token")

    def answer_size(self, encoding: Encoding, options: Mapping[str, Any]) -> int:
        return len(encoding)

    def decode(self, item: Any, encoding: Encoding, outputs: Mapping[str, Array], options: Any) -> list[int]:
        assert outputs["logits"].shape == (len(encoding), 1)
        return [int(logit) for logit in outputs["logits"][:, 0]]

    def answer(self, item: Any, parts: Sequence[Sequence[list[int]]], options: Mapping[str, Any]) -> Any:
        return [list(windows) for windows in parts]


class PredictivePipelineHarness:
    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.tokenizer = load_tokenizer(MODEL_FOLDER, {}, max_model_len=32)
        self.scheduling = SchedulerHarness(executor)
        self.predictor, self.metrics = self.scheduling.predictor, self.scheduling.metrics
        self.logged: list[Any] = []
        self.pipeline = PredictivePipeline(
            Ids(TaskSettings({}, self.tokenizer)),
            self.tokenizer,
            self.scheduling.scheduler,
            PipelineOptions(
                executor, LIMITS, self.metrics.of("bert"), lambda texts, context: self.logged.append(list(texts))
            ),
        )
        self.context = Context("id", {})

    async def ask(self, *instances: Any, tensors: bool = False, **parameters: Any) -> Answers:
        asking = asyncio.create_task(self.pipeline(Query(instances, parameters, tensors), self.context))
        while not asking.done():
            await self.scheduling.answer()
        return await asking

    def ids(self, *texts: str, **options: Any) -> list[list[list[int]]]:
        """Returns the answer to an item of these texts."""
        texts_windows = self.tokenizer.encode_windows(texts, Tokenization(**options))
        return [[encoding.ids for encoding in windows] for windows in texts_windows]


@asynccontextmanager
async def predictive_pipeline() -> AsyncIterator[PredictivePipelineHarness]:
    with ThreadPoolExecutor(1) as executor:
        yield PredictivePipelineHarness(executor)


async def test_each_instance_gets_its_own_answer() -> None:
    async with predictive_pipeline() as b:
        answers, tokens = await b.ask("a short text"), len(b.ids("a short text")[0][0])
        assert answers.predictions == [b.ids("a short text")] and answers.tensor is None
        assert (b.context.instances, b.context.tokens, answers.tokens) == (1, tokens, tokens)
        assert b.context.tokenize > 0 and b.context.predict > 0
        texts: list[Any] = ["one more", LONG, "a short text", ["two texts", "in one item"]]
        answers = await b.ask(*texts)
        assert answers.predictions == [b.ids(*item) if isinstance(item, list) else b.ids(item) for item in texts]
        assert b.logged == [["a short text"], ["one more", LONG, "a short text", "two texts", "in one item"]]
        assert 'truncated_instances_total{model_name="bert"} 1.0' in b.metrics.render().decode()


@pytest.mark.parametrize("inline", [10**6, 1], ids=["on the event loop", "in a thread"])
async def test_windows_become_parts_of_one_answer_and_a_tensor(inline: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "INLINE_VALUES", inline)
    async with predictive_pipeline() as b:
        text = "word " * 40
        answers = await b.ask(text, "a short text", windows=True, tensors=True)
        assert len(answers.predictions[0][0]) > 1
        assert answers.predictions == [b.ids(text, windows=True), b.ids("a short text")]
        assert answers.tensor is not None and isinstance(answers.tensor.data, np.ndarray)


@pytest.mark.parametrize(
    ("instances", "parameters", "error", "says"),
    [
        ([], {}, InvalidInput, "instances: expected at least one"),
        (["two words", None], {}, InvalidInput, "instances[1]: expected a text"),
        (["two words", "a"], {}, InvalidInput, "instances[1]: "),
        (["a b"] * 5, {}, TooLarge, "expected at most 4 in a request (--max_instances), got 5"),
        (
            ["a b", "x" * 4001],
            {},
            TooLarge,
            "instances[1]: expected at most 4000 characters (--max_text_length), got 4001",
        ),
        (
            ["x" * 3000] * 3,
            {},
            TooLarge,
            "instances[2]: expected at most 8000 characters in all texts (--max_total_length), got 9000",
        ),
        (
            [["a b"] * 9],
            {},
            TooLarge,
            "expected at most 8 sequences (texts, pairs and windows) in a request (--max_sequences), got 9",
        ),
        ([LONG], {"windows": True}, TooLarge, "at most 8 windows in a request"),
        ([IN_TOKENS, "a " * 240], {"windows": True}, TooLarge, "(--max_sequences), got 9"),
        ([LONG], {"overflow": "error"}, TooLarge, "expected at most 32 tokens, since the text must not be truncated"),
    ],
    ids=["none", "item", "check", "instances", "length", "total", "sequences", "windows", "mixed", "overflow"],
)
async def test_a_request_that_is_refused_is_not_sent(
    instances: list[Any], parameters: dict[str, Any], error: type[RequestError], says: str
) -> None:
    async with predictive_pipeline() as b:
        with pytest.raises(error) as caught:
            await b.ask(*instances, **parameters)
        assert says in str(caught.value) and not b.predictor.calls


async def test_an_error_about_windows_names_the_instances_as_the_api_does() -> None:
    async with predictive_pipeline() as b:
        with pytest.raises(TooLarge) as caught:
            await b.pipeline(Query([LONG], {"windows": True}, name="input"), Context("id", {}))
        assert caught.value.path == ("input",)


@pytest.mark.parametrize(
    "instances",
    [["a b"] * 4, ["a " * 2000] * 2, [["a b"] * 8]],
    ids=["instances", "length and total", "sequences"],
)
async def test_a_request_just_within_the_limits_is_answered(instances: list[Any]) -> None:
    async with predictive_pipeline() as b:
        assert len((await b.ask(*instances)).predictions) == len(instances)


async def test_a_trial_sends_id_0_if_the_vocabulary_has_no_words_of_its_text(tmp_path: Path) -> None:
    """Tokenizers of genomes have such vocabularies."""
    folder = without_unknown(tmp_path / "model")
    labels = {
        "id2label": {"0": "a", "1": "b"},
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
    }
    (folder / "config.json").write_text(json.dumps(labels))
    options = config(f"--model_dir={folder}", "--model_name=genes")
    spec = ModelSpec("genes", "1", (TensorSpec("input_ids", "INT64", (-1,)),), (TensorSpec("logits", "FP32", (2,)),), 8)
    predictor = ScriptedPredictor()
    with ThreadPoolExecutor(1) as executor:
        built = PipelineBuilder(options, load_model(options), predictor, Metrics().of("genes"), executor)(spec)
        trial = asyncio.create_task(built.trial())
        async with asyncio.timeout(20):
            while not predictor.calls:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.001)
        assert predictor.calls[0].ids.tolist() == [[0]]
        trial.cancel()
        await asyncio.wait([trial])


async def test_the_wiring_gives_all_pipelines_of_a_model_one_concurrency_limit() -> None:
    options = config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert")
    loaded = load_model(options)
    ids = TensorSpec("input_ids", "INT64", (-1,))
    logits = TensorSpec("logits", "FP32", (-1, loaded.tokenizer.vocab_size))
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(options, loaded, ScriptedPredictor(), Metrics().of("bert"), executor)
        pipelines = [
            build(ModelSpec("bert", "1", (ids,), (logits,), rows, instances=instances))
            for rows, instances in ((8, 1), (16, 3))
        ]
    schedulers = (built._scheduler for built in pipelines if isinstance(built, PredictivePipeline))
    old, new = (scheduler._limit for scheduler in schedulers if isinstance(scheduler, Scheduler))
    assert old is new and new.count == 4, "one more than the model has instances now"
