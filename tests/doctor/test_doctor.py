"""hf-transformer doctor without a predictor: output, order of checks, advice, rare states."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer import __version__
from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import FittedBinding, ModelBinding, fit_task
from hf_transformer.app.settings import predictor_settings
from hf_transformer.commands import cli
from hf_transformer.commands.doctor import command, inference, model, network
from hf_transformer.commands.doctor.advice import ADVICE, StartAdvice
from hf_transformer.commands.doctor.examination import Check, Finding, Subject, examine
from hf_transformer.commands.terminal import Terminal
from hf_transformer.config.options import parse_config
from hf_transformer.errors import PredictorTimeout, PredictorUnavailable, RequestError
from hf_transformer.predictor.base import Address, Destination, Reply
from hf_transformer.predictor.rest import RestPredictor
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec, RepositoryEntry, Tensor, TensorSpec
from tests.support.service import NOBODY
from tests.support.triton_repository import DEMO_MODEL

ROOT = Path(__file__).parents[2]
NAMES = [check.name for check in command.CHECKS]

FINE = Finding("ok", "127.0.0.1", name="address", seconds=0.00123)
DOUBT = Finding("warning", "max_batch_size is 1", 'set "max_batch_size: 32" in its config.pbtxt', name="batch size")
WRONG = Finding("failed", "Its input 'x' is FP32", "export it as INT64", name="contract")
BLOCKED = Finding("skipped", "not run: it needs contract", name="inference", blocked=True)
UNUSED = Finding("skipped", "not used", name="TLS")


def test_help_lists_the_checks_and_a_bad_flag_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: hf-transformer doctor")
    assert all(name in text for name in ("--strict", *NAMES))
    assert cli.main(["doctor", "--predictor_host=triton", "--workers=0"]) == 2
    assert "--workers: expected an integer" in capsys.readouterr().err


def test_without_a_predictor_later_checks_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--predictor_host={NOBODY}", f"--model_dir={DEMO_MODEL}", "--return_offsets_mapping"]
    handlers = list(logging.getLogger("hf_transformer").handlers)
    assert command.run(flags, {}) == 2
    table = capsys.readouterr()
    assert "failed   connection" in table.out
    assert "not run, because they need a check that failed: protocol, TLS, server," in " ".join(table.out.split())
    assert table.err == ""
    assert command.run([*flags, "--json", "--strict"], {}) == 2
    results = json.loads(capsys.readouterr().out)["results"]
    assert list(dict.fromkeys(result["name"] for result in results)) == NAMES
    bad = [(result["name"], result["status"]) for result in results if result["status"] not in ("ok", "skipped")]
    assert bad == [("model files", "warning"), ("connection", "failed")]
    # The service logs the same while it loads.
    [warning] = [result["found"] for result in results if result["status"] == "warning"]
    assert warning == "--return_offsets_mapping has no effect for fill_mask"
    assert logging.getLogger("hf_transformer").handlers == handlers


def test_the_page_names_every_check() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert re.findall(r"^\| ([^|]+) \| [^|]+ \| (?:warning|failed|failed, warning) \|$", page, re.MULTILINE) == NAMES


@pytest.mark.parametrize(
    ("results", "codes", "says"),
    [
        pytest.param([FINE, UNUSED], (0, 0), "1 ok, 1 skipped", id="no trouble"),
        pytest.param([FINE, DOUBT], (0, 1), "1 ok, 1 warning", id="a warning"),
        pytest.param([DOUBT, DOUBT, WRONG, UNUSED], (2, 2), "2 warnings, 1 failed, 1 skipped", id="a failure"),
    ],
)
def test_the_exit_code_is_2_after_failures_and_1_after_warnings_with_strict(
    results: list[Finding], codes: tuple[int, int], says: str
) -> None:
    assert tuple(command.exit_code(results, strict=strict) for strict in (False, True)) == codes
    assert command.summary(results, codes[0]) == f"{says}; exit code {codes[0]}"


def test_rows_wrap_within_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    terminal = Terminal({}, io.StringIO())
    assert command.row(FINE, terminal) == "ok       address           127.0.0.1"
    assert command.row(DOUBT, terminal).splitlines() == [
        "warning  batch size        max_batch_size is 1",
        '                           -> set "max_batch_size: 32" in its',
        "                              config.pbtxt",
    ]
    assert command.blocked_row([FINE, UNUSED], terminal) == ""
    row = command.blocked_row([WRONG, BLOCKED, BLOCKED, UNUSED], terminal)
    assert row.splitlines() == [
        "skipped  2 checks          not run, because they need a check that",
        "                           failed: inference, inference",
    ]


def test_a_row_has_the_colour_of_its_status() -> None:
    terminal = Terminal({}, io.StringIO())
    terminal.coloured = True
    status, change = command.row(DOUBT, terminal).splitlines()
    assert status.startswith("\x1b[33mwarning\x1b[0m  batch size ")
    assert change.lstrip().startswith("\x1b[1m-> set") and change.endswith("config.pbtxt\x1b[0m")


def test_json_has_all_fields_of_a_finding() -> None:
    assert command.document("bert", [FINE], 0) == {
        "version": __version__,
        "model": "bert",
        "exit_code": 0,
        "results": [{"name": "address", "status": "ok", "found": "127.0.0.1", "change": "", "seconds": 0.0012}],
    }


class Index(RestPredictor):
    """A predictor with these models, none of them ready. It raises an error in ``index``."""

    index: Sequence[RepositoryEntry] | RequestError | None = None

    async def server_ready(self) -> bool:
        return False

    async def model_ready(self) -> bool:
        return False

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        if isinstance(self.index, RequestError):
            raise self.index
        return self.index

    async def model_spec(self) -> ModelSpec:
        return ModelSpec("m", "1", (), (), max_batch_size=None)


@pytest.fixture
def subject() -> Subject:
    config, notes = parse_config(["--model_name=bert", "--predictor_host=triton:8000"], {})
    subject = Subject(config, notes)
    subject.admin = subject.predictor = Index(predictor_settings(config))
    return subject


def giving(*outcomes: Finding | Exception) -> Callable[[Subject], Awaitable[Sequence[Finding]]]:
    """A check that returns these findings, or raises the error."""

    async def run(subject: Subject) -> Sequence[Finding]:
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Finding)]

    return run


PASSING = giving(Finding("ok", "fine"))
BUG = giving(ZeroDivisionError())


async def test_a_failed_check_blocks_those_that_need_it(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    checks = [
        Check("a", giving(Finding("failed", "broken", "mend it"), Finding("failed", "broken twice", "mend it again"))),
        Check("b", BUG, ("a",)),
        Check("c", BUG, ("b",)),
        Check("d", giving(Finding("warning", "doubtful", "change it"))),
        Check("e", PASSING, ("d",)),
        Check("f", giving(PredictorTimeout("too slow")), hint="wait"),
    ]
    results = [
        (finding.name, finding.status, finding.found, finding.change, finding.blocked)
        async for finding in examine(subject, checks)
    ]
    assert results == [
        ("a", "failed", "broken", "mend it", False),
        ("a", "failed", "broken twice", "mend it again", False),
        ("b", "skipped", "not run: it needs a", "", True),
        ("c", "skipped", "not run: it needs b", "", True),
        ("d", "warning", "doubtful", "change it", False),
        ("e", "ok", "fine", "", False),
        ("f", "failed", "too slow", "wait", False),
    ]
    assert caplog.records == []


async def test_a_bug_in_a_check_does_not_stop_the_next(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        results = [one async for one in examine(subject, [Check("a", BUG), Check("b", PASSING)])]
    assert [one.status for one in results] == ["failed", "ok"]
    assert results[0].found == "the check has a bug: ZeroDivisionError"
    assert caplog.records[0].exc_info is not None


def test_a_check_comes_after_those_that_it_needs() -> None:
    seen: set[str] = set()
    for check in command.CHECKS:
        assert check.name not in seen
        assert seen.issuperset(check.needs)
        seen.add(check.name)
    assert seen


def entry(state: str, reason: str = "", name: str = "bert") -> RepositoryEntry:
    return RepositoryEntry(name, "1", state, reason)


MANY = [entry("READY", name=f"model_{number:02}") for number in range(14)]


@pytest.mark.parametrize(
    ("index", "state", "change"),
    [
        ([entry("UNAVAILABLE", "no model.onnx")], "is UNAVAILABLE: no model.onnx", "config.pbtxt"),
        ([entry("LOADING")], "is loading", "wait"),
        ([entry("UNAVAILABLE", "unloaded")], "but UNAVAILABLE", "--load-model=bert"),
        (MANY, "it has model_00, model_01,", "--model_name"),
        (None, "has no model 'bert'", "--model_name"),
        (PredictorUnavailable("gone"), "has no model 'bert'", "--model_name"),
    ],
    ids=["bad", "loading", "unloaded", "others", "no index", "gone"],
)
async def test_the_remedy_depends_on_the_state_of_a_model_that_is_not_ready(
    subject: Subject, index: Sequence[RepositoryEntry] | RequestError | None, state: str, change: str
) -> None:
    assert isinstance(subject.admin, Index)
    subject.admin.index = index
    [finding] = await model.model(subject)
    assert finding.status == "failed"
    assert state in finding.found and change in finding.change and "model_13" not in finding.found


async def test_the_model_has_the_name_at_the_predictor(subject: Subject) -> None:
    subject.config = replace(subject.config, predictor_model="bert_onnx")
    assert isinstance(subject.admin, Index)
    subject.admin.index = [entry("READY", name="bert")]
    [finding] = await model.model(subject)
    assert "has no model 'bert_onnx'; it has bert" in finding.found and "set --predictor_model" in finding.change
    subject.admin.index = [entry("UNAVAILABLE", "no file", name="bert_onnx")]
    [finding] = await model.model(subject)
    assert finding.found == "'bert_onnx' is UNAVAILABLE: no file"


async def test_unready_models_are_a_warning_and_a_missing_configuration_endpoint_is_ok(subject: Subject) -> None:
    [finding] = await model.server_ready(subject)
    assert finding.status == "warning" and "--strict-readiness=false" in finding.change
    [finding] = await model.description(subject)
    assert finding.status == "ok" and "nothing -> nothing (from metadata" in finding.found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (1, "good"),
        ({"0": 0.2, "1": 0.8}, {"bad": 0.2, "good": 0.8}),
        ([0, 1], ["bad", "good"]),
        ("paris", "paris"),
        ({"answer": "here", "score": 1.0}, {"answer": "here", "score": 1.0}),
    ],
    ids=["index", "probabilities", "tokens", "word", "other"],
)
def test_an_answer_shows_the_names_of_labels(answer: Json, expected: Json) -> None:
    assert inference.with_labels(answer, ("bad", "good")) == expected


# Advice needs the model's files and description only.

IDS, MASK = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("attention_mask", "INT64", (-1,))
LOGITS = TensorSpec("logits", "FP32", (-1, 1024))
GOOD = ModelSpec("bert", "1", (IDS, MASK), (LOGITS,), 8, instances=1, dynamic_batching=True)
LARGER = replace(GOOD, outputs=(TensorSpec("logits", "FP32", (-1, 1200)),))


def binding_of(spec: ModelSpec, *flags: str, **model_config: Json) -> FittedBinding:
    """A binding of the demo's files to a model, with other values in config.json."""
    config, _ = parse_config([f"--model_dir={DEMO_MODEL}", "--predictor_host=triton:8000", *flags], {})
    loaded = load_model(config)
    settings = loaded.task.settings
    task = FillMask(replace(settings, model_config={**settings.model_config, **model_config}))
    reader, signature = fit_task(config, task, spec)
    return FittedBinding(config, loaded.tokenizer, reader, spec, signature)


def shaped(spec: ModelSpec, *leading: int, length: int = -1) -> ModelSpec:
    """The spec with more leading axes, and this sequence length."""
    inputs = tuple(replace(tensor, shape=(*leading, length)) for tensor in spec.inputs)
    outputs = tuple(replace(tensor, shape=(*leading, length, 1024)) for tensor in spec.outputs)
    return replace(spec, inputs=inputs, outputs=outputs)


def texts_of(binding: ModelBinding, *statuses: str) -> dict[str, str]:
    """The findings with one of these statuses, by the name of the check."""
    checked = ((name, check(binding)) for name, check, kind in ADVICE if isinstance(binding, kind))
    return {name: finding.found for name, findings in checked for finding in findings if finding.status in statuses}


ONE = replace(GOOD, inputs=(IDS,), max_batch_size=1)
BLIND = shaped(replace(GOOD, inputs=(IDS,)), length=128)


@pytest.mark.parametrize(
    ("spec", "vocab_size", "name", "says"),
    [
        pytest.param(replace(shaped(GOOD, 4), max_batch_size=0), 1024, "batch size", "dims fixes 4 rows", id="rows"),
        pytest.param(ONE, 1024, "batch size", "one text at a time", id="no mask is needed for one text"),
        pytest.param(BLIND, 1024, "attention mask", "reads the padding as text", id="visible padding"),
        pytest.param(LARGER, 1200, "vocabulary", "far fewer than config.json's vocab_size 1200", id="other tokenizer"),
    ],
)
def test_advice_warns(spec: ModelSpec, vocab_size: int, name: str, says: str) -> None:
    warnings = texts_of(binding_of(spec, vocab_size=vocab_size), "warning")
    assert list(warnings) == [name]
    assert says in warnings[name]


LITTLE: dict[str, Json] = {"vocab_size": None, "pad_token_id": None, "max_position_embeddings": None}


@pytest.mark.parametrize(
    ("spec", "changes", "name", "says"),
    [
        (GOOD, {}, "instances", "1 instance of the model, up to 2 batches in flight"),
        (replace(shaped(GOOD, -1), max_batch_size=None), {}, "batch size", "batches have up to 32 texts"),
        (replace(shaped(GOOD, -1), max_batch_size=None), {}, "dynamic batching", "the predictor does not report it"),
        (shaped(GOOD, length=512), {}, "text length", "128 tokens, padded to the 512 that the model always takes"),
        (GOOD, LITTLE, "vocabulary", "config.json names no vocab_size; the tokenizer has 1024 tokens"),
        (GOOD, LITTLE, "padding token", "config.json names none; the service pads with id 0"),
        (GOOD, LITTLE, "text length", "texts are truncated at 128 tokens (config.json names no limit)"),
    ],
)
def test_advice_has_no_warning(spec: ModelSpec, changes: dict[str, Json], name: str, says: str) -> None:
    binding = binding_of(spec, **changes)
    assert texts_of(binding, "warning") == {}
    assert says in texts_of(binding, "ok", "skipped")[name]


async def test_checks_of_predictive_models_skip_a_generative_one() -> None:
    binding = binding_of(GOOD)
    spec = replace(GOOD, decoupled=True, dynamic_batching=False)
    generative = ModelBinding(binding.config, binding.tokenizer, binding.task, spec)
    assert list(texts_of(generative, "skipped")) == ["dynamic batching"]
    assert texts_of(generative, "warning") == {}
    subject = Subject(binding.config, [])
    subject.binding = generative
    checks = [replace(check, needs=()) for check in command.CHECKS if check.predictive]
    results = [finding async for finding in examine(subject, checks)]
    assert [finding.name for finding in results] == [
        *("batch size", "attention mask", "text length", "other text", "shared memory"),
    ]
    assert {finding.found for finding in results} == {"does not apply to generated text"}


async def test_each_warning_is_logged_once_for_each_model(caplog: pytest.LogCaptureFixture) -> None:
    advice, slow, name = StartAdvice(), replace(GOOD, dynamic_batching=False), "--model_name=bert"
    with caplog.at_level(logging.WARNING):
        advice(binding_of(slow, name))
        assert caplog.messages == []  # waiting requests go first
        await asyncio.sleep(0)
        advice(binding_of(slow, name))
        advice(binding_of(replace(slow, max_batch_size=2), name))
        advice(binding_of(slow, "--model_name=other", "--predictor_model=bert"))
        await asyncio.sleep(0)
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        "model 'bert': dynamic batching: off: Triton does not merge requests, so batches of several workers or "
        "services run one after another",
        "model 'bert': batch size: max_batch_size is 2, which is small",
        "model 'other': dynamic batching: off: Triton does not merge requests, so batches of several workers or "
        "services run one after another",
    ]


def test_the_batches_of_all_workers_keep_the_instances_busy() -> None:
    two, few = replace(GOOD, instances=2), "--max_batches_in_flight=1"
    assert list(texts_of(binding_of(two, few), "warning")) == ["instances"]
    assert texts_of(binding_of(two, few, "--workers=2"), "warning") == {}


class Elsewhere(Index):
    """A predictor with another /dev/shm: the service does not see its outputs."""

    async def register_region(self, *args: Any) -> None:
        pass

    async def unregister_region(self, name: str) -> None:
        pass

    width = 1024

    async def infer(self, *args: Any, **kwargs: Any) -> Reply:
        shared = any(isinstance(value, Destination) for value in (*args, *kwargs.values()))
        return Reply({"logits": Tensor("logits", "FP32", np.full((1, 9, self.width), float(shared), np.float32))})


class Wide(Elsewhere):
    """The same with the logits of a large vocabulary."""

    width = 30_522


async def test_shared_memory_without_the_outputs_is_a_warning(subject: Subject) -> None:
    subject.binding, subject.admin = binding_of(GOOD), Elsewhere(predictor_settings(subject.config))
    [finding] = await inference.shared_memory(subject)
    assert finding.status == "warning" and "does not see the outputs" in finding.found


WIDE = replace(GOOD, outputs=(TensorSpec("logits", "FP32", (-1, 30_522)),))


@pytest.mark.parametrize(
    ("protocol", "remedies"),
    [("v2", ["export the model with --reduce"]), ("grpc-v2", ["export", "set --predictor_protocol=v2"])],
)
async def test_large_outputs_without_shared_memory_are_a_warning(protocol: str, remedies: list[str]) -> None:
    flags = ["--predictor_host=triton:8000", "--predictor_shared_memory=off", f"--predictor_protocol={protocol}"]
    subject = Subject(*parse_config(flags, {}))
    subject.binding = binding_of(WIDE, *flags[1:], vocab_size=30_522)
    [finding] = await inference.shared_memory(subject)
    size = len(inference.sample(subject.binding)) * 30_522 * 4
    assert finding.status == "warning" and f"have {size} bytes" in finding.found
    found = finding.change.split("; or ")
    assert len(found) == len(remedies) and all(map(str.startswith, found, remedies))


async def test_small_outputs_need_no_shared_memory() -> None:
    flags = ["--predictor_host=triton:8000", "--predictor_shared_memory=off", "--predictor_protocol=grpc-v2"]
    subject = Subject(*parse_config(flags, {}))
    subject.binding = binding_of(GOOD, *flags[1:])
    [finding] = await inference.shared_memory(subject)
    assert (finding.status, finding.change) == ("skipped", "")


async def test_a_failure_of_shared_memory_keeps_its_remedy_beside_those_for_large_outputs(subject: Subject) -> None:
    subject.binding, subject.admin = binding_of(WIDE, vocab_size=30_522), Wide(predictor_settings(subject.config))
    [finding] = await inference.shared_memory(subject)
    assert "does not see the outputs" in finding.found and "bytes" in finding.found
    assert finding.change.startswith("mount the same /dev/shm") and "; or export" in finding.change


@pytest.mark.parametrize(
    ("days", "change"),
    [(13, "renew the predictor's certificate: it expires in 13 days"), (15, "")],
    ids=["soon", "later"],
)
async def test_a_certificate_that_expires_within_14_days_is_a_warning(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, days: int, change: str
) -> None:
    until = time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + days * 86400 + 60))
    result = network.Probe("understood", certificate={"notAfter": until}, version="TLSv1.3")
    monkeypatch.setattr(network, "probe", lambda *args: result)
    subject.address = Address("localhost", 8000, True)
    [finding] = await network.tls(subject)
    assert (finding.status, finding.change) == ("warning" if change else "ok", change)


def test_without_a_predictor_the_tokenizer_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--predictor_protocol=none", "--model_name=gpt2", f"--model_dir={DEMO_MODEL.parent / 'gpt2'}", "--json"]
    assert command.run(flags, {}) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(row["name"], row["status"]) for row in results] == [
        ("flags", "ok"),
        ("model files", "ok"),
        ("tokens", "ok"),
        ("tokenizer", "ok"),
    ]
    assert results[-1]["found"].endswith("the model renders chats")
    template = ["--chat_template={{ raise_exception('no') }}", *flags]
    assert command.run(template, {}) == 2, "a template that fails is found"
