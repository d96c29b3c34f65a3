from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.config.options import all_options
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task


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
