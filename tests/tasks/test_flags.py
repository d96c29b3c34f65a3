"""Flags of the service that a task has no use for, and strides that can't be."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from hf_transformer.app.wiring import load_parts
from hf_transformer.errors import ConfigError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks.flags import FLAGS, READS, check_stride, flags_without_effect, reads
from tests.configuring import config
from tests.tasks.task_settings import settings
from tests.triton_repository import task_model_folder

MODELS = {
    "fill_mask": "bert",
    "sequence_classification": "sentiment",
    "zero_shot_classification": "nli",
    "rerank": "cross",
    "token_classification": "ner",
    "question_answering": "squad",
    "text_embedding": "minibert_mean",
    "feature_extraction": "minibert_mean",
}
OTHERS = {
    "return_offsets_mapping": "--return_offsets_mapping",
    "aggregation_strategy": "--aggregation_strategy=max",
    "stride": "--stride=3",
}


def load(task: str, *flags: str) -> Any:
    return load_parts(config(f"--model_dir={task_model_folder(MODELS[task])}", f"--task={task}", *flags))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("task", MODELS)
def test_a_warning_for_each_flag_that_a_task_does_not_read(task: str, caplog: pytest.LogCaptureFixture) -> None:
    load(task, "--aggregation_strategy=none")
    assert warnings(caplog) == []
    load(task, *OTHERS.values())
    assert warnings(caplog) == [
        f"{flag} has no effect for {task}" for name, flag in OTHERS.items() if not reads(task, name)
    ]
    assert flags_without_effect(task, settings(stride=0)) == ([] if reads(task, "stride") else ["--stride=0"])
    caplog.clear()
    for flag in ("return_probabilities", "return_raw_logits"):
        if reads(task, flag):
            load(task, f"--{flag}")
        else:
            with pytest.raises(ConfigError, match=f"--{flag}: {task}"):
                load(task, f"--{flag}")
    assert warnings(caplog) == [], "forms are read or refused"
    assert READS.keys() <= {task.name for task, _ in ALL_TASKS}
    assert all(flags <= set(FLAGS) for flags in READS.values())


@pytest.mark.parametrize(
    ("task", "room"), [("token_classification", 30), ("text_embedding", 30), ("question_answering", 29)]
)
def test_a_stride_without_room_is_refused_at_the_start(task: str, room: int) -> None:
    windows = ["--on_overflow=window", "--max_model_len=32"]
    assert load(task, *windows, f"--stride={room - 1}").task.settings.stride == room - 1
    for stride in (room, 1000):
        with pytest.raises(ConfigError, match=f"--stride={stride}: windows of 32 tokens have room for {room} "):
            load(task, *windows, f"--stride={stride}")
    with pytest.raises(ConfigError, match="windows of 384 tokens have room for 381"):  # shorter than the model
        check_stride("question_answering", settings(max_length=512, stride=381))
    check_stride("question_answering", settings(max_length=512, stride=380))
    check_stride("token_classification", settings(max_length=512, stride=381))
