"""What flags and config.json say of a task: which one it is, its labels, and flags that it has no use for."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hf_transformer.app.wiring import check_stride, flags_without_effect, load_parts
from hf_transformer.config.options import all_options
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task
from hf_transformer.tasks.labels import read_labels, read_problem_type, text_logits
from tests.support.configuring import config
from tests.support.triton_repository import task_model_folder
from tests.tasks.task_settings import settings


def test_names_in_every_form_and_architectures() -> None:
    masks, others = "fill_mask,fill-mask,Fill_Mask, fill-mask ", "text2text-generation,summarization,translation"
    for task, names in (("fill_mask", masks.split(",")), ("text2text_generation", others.split(","))):
        for name in names:
            assert find_task(name, {"architectures": ["BertModel"]}, ALL_TASKS).name == task
    for task, architecture in (
        *[(task.name, f"XLMRoberta{suffix}") for task, suffix in ALL_TASKS if suffix],
        ("text_generation", "GPT2LMHeadModel"),
        ("text_generation", "LlamaForCausalLM"),
        ("text2text_generation", "T5ForConditionalGeneration"),
    ):
        assert find_task(None, {"architectures": [architecture]}, ALL_TASKS).name == task


def test_names_are_told_apart_and_help_has_them_all() -> None:
    tasks = dict.fromkeys(task for task, _ in ALL_TASKS)
    names = [name for task in tasks for name in (task.name, *task.other_names)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "-" not in name for name in names)
    [option] = [one for one in all_options() if one.name == "task"]
    assert all(task.name in option.help for task in tasks)


@pytest.mark.parametrize(
    ("name", "config", "error", "says"),
    [
        ("poetry", {}, ConfigError, r"poetry.*fill_mask"),
        (None, {}, LoadError, r"there is no config.json.*--task.*fill_mask|--task.*fill_mask.*there is no config.json"),
        (None, {"architectures": None}, LoadError, r"--task.*fill_mask"),
        (None, {"architectures": ["ViTForImageClassification"]}, LoadError, r"--task.*fill_mask"),
    ],
)
def test_tasks_that_are_not_known(name: str | None, config: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        find_task(name, config, ALL_TASKS)


# Flags that only some tasks read

LOGITS = {"return_probabilities", "return_raw_logits"}
OTHERS = {
    "return_offsets_mapping": "--return_offsets_mapping",
    "aggregation_strategy": "--aggregation_strategy=max",
    "stride": "--stride=3",
}
READS: dict[str, tuple[str, set[str]]] = {
    "fill_mask": ("bert", LOGITS),
    "sequence_classification": ("sentiment", LOGITS),
    "zero_shot_classification": ("nli", set()),
    "rerank": ("cross", set()),
    "token_classification": ("ner", LOGITS | OTHERS.keys()),
    "question_answering": ("squad", {"stride"}),
    "text_embedding": ("minibert_mean", {"stride"}),
    "feature_extraction": ("minibert_mean", set()),
}
"""A model of each task, and the flags that it reads."""


def load(task: str, *flags: str) -> Any:
    return load_parts(config(f"--model_dir={task_model_folder(READS[task][0])}", f"--task={task}", *flags))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("task", READS)
def test_a_warning_for_each_flag_that_a_task_does_not_read(task: str, caplog: pytest.LogCaptureFixture) -> None:
    reads, kind = READS[task][1], find_task(task, {}, ALL_TASKS)
    load(task, "--aggregation_strategy=none")
    assert warnings(caplog) == []
    load(task, *OTHERS.values())
    assert warnings(caplog) == [
        f"{flag} has no effect for {task}" for name, flag in OTHERS.items() if name not in reads
    ]
    assert flags_without_effect(kind, settings(stride=0)) == ([] if "stride" in reads else ["--stride=0"])
    caplog.clear()
    for flag in LOGITS:
        if flag in reads:
            load(task, f"--{flag}")
        else:
            with pytest.raises(ConfigError, match=f"--{flag}: {task}"):
                load(task, f"--{flag}")
    assert warnings(caplog) == [], "forms are read or refused"


@pytest.mark.parametrize(
    ("task", "room"), [("token_classification", 30), ("text_embedding", 30), ("question_answering", 29)]
)
def test_a_stride_without_room_is_refused_at_the_start(task: str, room: int) -> None:
    windows = ["--on_overflow=window", "--max_model_len=32"]
    assert load(task, *windows, f"--stride={room - 1}").task.settings.stride == room - 1
    for stride in (room, 1000):
        with pytest.raises(ConfigError, match=f"--stride={stride}: windows of 32 tokens have room for {room} "):
            load(task, *windows, f"--stride={stride}")
    answers, tokens = (find_task(name, {}, ALL_TASKS) for name in ("question_answering", "token_classification"))
    with pytest.raises(ConfigError, match="windows of 384 tokens have room for 381"):  # shorter than the model
        check_stride(answers, settings(max_length=512, stride=381))
    check_stride(answers, settings(max_length=512, stride=380))
    check_stride(tokens, settings(max_length=512, stride=381))


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
def test_labels(config: dict[str, Any], labels: tuple[str, ...]) -> None:
    assert read_labels(config) == labels


def test_labels_that_are_none_and_how_many_the_model_has_to_have() -> None:
    for given in ({}, {"1": "a"}, {"0": "a", "2": "b"}, {"zero": "a"}, ["a"], 0, "2", True):
        name = "id2label" if isinstance(given, dict | list) else "num_labels"
        with pytest.raises(LoadError, match=name):
            read_labels({name: given})
    (axis,) = text_logits(3).axes
    assert (axis.minimum, axis.maximum, axis.why) == (3, 3, "config.json names 3 labels (id2label)")
    assert "1 label (" in text_logits(1).axes[0].why
    assert read_problem_type({}) is None
    assert read_problem_type({"problem_type": "regression"}) == "regression"
    with pytest.raises(LoadError, match="'ranking'"):
        read_problem_type({"problem_type": "ranking"})
