"""The choice of a task, its labels, and the flags that it reads."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hf_transformer.app.loading import load_model
from hf_transformer.app.settings import check_stride, flags_without_effect
from hf_transformer.config.options import all_options
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task
from hf_transformer.tasks.labels import read_labels, read_problem_type, text_logits
from hf_transformer.tasks.options import LOGITS
from hf_transformer.tasks.question_answering import QuestionAnswering
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.types.task_names import TASK_NAMES
from tests.support.configuring import config
from tests.support.triton_repository import task_model_folder
from tests.tasks.task_settings import settings


@pytest.mark.parametrize(
    ("task", "names"),
    [
        ("fill_mask", ("fill_mask", "fill-mask", "Fill_Mask", " fill-mask ")),
        ("text2text_generation", ("text2text-generation", "summarization", "translation")),
    ],
)
def test_the_flag_wins_over_the_architecture_in_every_spelling(task: str, names: tuple[str, ...]) -> None:
    assert {find_task(name, {"architectures": ["BertModel"]}, ALL_TASKS).name for name in names} == {task}


@pytest.mark.parametrize(
    ("task", "architecture"),
    [
        *[(task.name, f"XLMRoberta{suffix}") for task, suffix in ALL_TASKS if suffix],
        ("text_generation", "GPT2LMHeadModel"),
        ("text_generation", "LlamaForCausalLM"),
        ("text2text_generation", "T5ForConditionalGeneration"),
    ],
)
def test_an_architecture_has_one_task(task: str, architecture: str) -> None:
    assert find_task(None, {"architectures": [architecture]}, ALL_TASKS).name == task


def test_names_of_tasks_are_unique_and_the_help_has_all() -> None:
    assert {task.name for task, _ in ALL_TASKS} == TASK_NAMES.keys()
    names = [name for task, others in TASK_NAMES.items() for name in (task, *others)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "-" not in name for name in names)
    [option] = [option for option in all_options() if option.name == "task"]
    assert all(task in option.help for task in TASK_NAMES)


@pytest.mark.parametrize(
    ("name", "config", "error", "message"),
    [
        ("poetry", {}, ConfigError, r"^--task: .*fill_mask.*, got 'poetry'$"),
        ("fill-masks", {}, ConfigError, r"got 'fill-masks'; did you mean fill_mask\?$"),
        ("sentiment", {}, ConfigError, r"did you mean sentiment_analysis\?$"),
        (None, {}, LoadError, r"there is no config.json.*--task.*fill_mask"),
        (None, {"architectures": None}, LoadError, r"--task.*fill_mask"),
        (None, {"architectures": ["ViTForImageClassification"]}, LoadError, r"--task.*fill_mask"),
    ],
)
def test_an_unknown_task_is_answered_with_the_known_ones(
    name: str | None, config: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find_task(name, config, ALL_TASKS)


# Flags that only some tasks read

WARNED = {
    "return_offsets_mapping": "--return_offsets_mapping",
    "aggregation_strategy": "--aggregation_strategy=max",
    "stride": "--stride=3",
}
LOGITS_FLAGS = {*LOGITS}
READS: dict[str, tuple[str, set[str]]] = {
    "fill_mask": ("bert", LOGITS_FLAGS),
    "sequence_classification": ("sentiment", LOGITS_FLAGS | {"stride"}),
    "zero_shot_classification": ("nli", {"stride"}),
    "zero_shot_token_classification": ("gliner", {"stride"}),
    "rerank": ("cross", {"stride"}),
    "token_classification": ("ner", LOGITS_FLAGS | WARNED.keys()),
    "question_answering": ("squad", {"stride"}),
    "text_embedding": ("minibert_mean", {"stride"}),
    "feature_extraction": ("minibert_mean", set()),
}
"""A model of each task, and the flags that it reads."""


def load(task: str, *flags: str) -> Any:
    return load_model(config(f"--model_dir={task_model_folder(READS[task][0])}", f"--task={task}", *flags))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("flag", ["--response_template=none", "--tool_call_parser=hermes", "--reasoning_parser=qwen3"])
def test_flags_of_chats_warn_where_they_have_no_effect(flag: str, caplog: pytest.LogCaptureFixture) -> None:
    load("text_embedding", flag)
    flags = "--response_template, --tool_call_parser and --reasoning_parser"
    assert warnings(caplog) == [f"{flags} have no effect for text_embedding"]


@pytest.mark.parametrize("flag", ["--rerank_template=qwen3", "--rerank_tokens=no,yes"])
def test_flags_of_rerankers_warn_where_they_have_no_effect(flag: str, caplog: pytest.LogCaptureFixture) -> None:
    load("text_embedding", flag)
    assert warnings(caplog) == ["--rerank_template and --rerank_tokens have no effect for text_embedding"]


@pytest.mark.parametrize("task", READS)
def test_a_flag_that_the_task_does_not_read_is_a_warning_or_an_error(
    task: str, caplog: pytest.LogCaptureFixture
) -> None:
    reads, kind = READS[task][1], find_task(task, {}, ALL_TASKS)
    load(task, "--aggregation_strategy=none")
    assert warnings(caplog) == []
    load(task, *WARNED.values())
    assert sorted(warnings(caplog)) == sorted(
        f"{flag} has no effect for {task}" for name, flag in WARNED.items() if name not in reads
    )
    assert flags_without_effect(kind, config("--stride=0")) == ([] if "stride" in reads else ["--stride=0"])
    caplog.clear()
    for flag in LOGITS:
        if flag in reads:
            load(task, f"--{flag}")
        else:
            with pytest.raises(ConfigError, match=f"--{flag}: {task}"):
                load(task, f"--{flag}")
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("task", "room"),
    [
        *(("token_classification", 30), ("text_embedding", 30), ("sequence_classification", 30)),
        *(("question_answering", 29), ("rerank", 29), ("zero_shot_classification", 29)),
    ],
)
def test_a_stride_without_room_is_refused_at_the_start(task: str, room: int) -> None:
    windows = ["--on_overflow=window", "--max_model_len=32"]
    assert load(task, *windows, f"--stride={room - 1}").task.settings.stride == room - 1
    for stride in (room, 1000):
        with pytest.raises(ConfigError, match=f"^--stride={stride}: expected less than {room}, .*window of 32"):
            load(task, *windows, f"--stride={stride}")


def test_the_windows_of_question_answering_may_be_shorter_than_the_model() -> None:
    with pytest.raises(ConfigError, match=r"less than 381, .* window of 384"):
        check_stride(QuestionAnswering, settings(max_length=512, stride=381))
    check_stride(QuestionAnswering, settings(max_length=512, stride=380))
    check_stride(TokenClassification, settings(max_length=512, stride=381))


# Labels


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        pytest.param({}, ("LABEL_0", "LABEL_1"), id="transformers leaves two labels out"),
        pytest.param({"num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), id="a number alone"),
        pytest.param({"id2label": {"1": "b", "0": "a"}}, ("a", "b"), id="keys that are strings, in another order"),
        pytest.param({"id2label": {0: "a"}}, ("a",), id="keys that are numbers"),
        pytest.param({"id2label": {str(n): f"l{n}" for n in range(11)}}, tuple(f"l{n}" for n in range(11)), id="ten"),
        pytest.param({"id2label": {"0": "a"}, "num_labels": 7}, ("a",), id="the names win over the number"),
    ],
)
def test_labels_are_named_or_numbered(config: dict[str, Any], labels: tuple[str, ...]) -> None:
    assert read_labels(config) == labels


@pytest.mark.parametrize("value", [{}, {"1": "a"}, {"0": "a", "2": "b"}, {"zero": "a"}, ["a"], 0, "2", True], ids=str)
def test_wrong_labels_are_refused(value: Any) -> None:
    field = "id2label" if isinstance(value, dict | list) else "num_labels"
    with pytest.raises(LoadError, match=field):
        read_labels({field: value})


def test_the_logits_of_a_text_have_a_column_per_label() -> None:
    (axis,) = text_logits(3).axes
    assert (axis.minimum, axis.maximum, axis.why) == (3, 3, "config.json names 3 labels (id2label)")
    assert "1 label (" in text_logits(1).axes[0].why


def test_the_problem_type_is_a_known_one() -> None:
    assert read_problem_type({}) is None
    assert read_problem_type({"problem_type": "regression"}) == "regression"
    with pytest.raises(LoadError, match="'ranking'"):
        read_problem_type({"problem_type": "ranking"})
