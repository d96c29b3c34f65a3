from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.config.options import all_options
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task


@pytest.mark.parametrize("name", ["fill_mask", "fill-mask", "Fill_Mask", " fill-mask "])
def test_names_in_every_form(name: str) -> None:
    assert find_task(name, {}, ALL_TASKS).name == "fill_mask"


def test_the_name_wins_over_the_architecture() -> None:
    assert find_task("fill_mask", {"architectures": ["BertModel"]}, ALL_TASKS).name == "fill_mask"


@pytest.mark.parametrize(("task", "suffix"), [(task.name, suffix) for task, suffix in ALL_TASKS if suffix])
def test_architectures(task: str, suffix: str) -> None:
    assert find_task(None, {"architectures": [f"XLMRoberta{suffix}"]}, ALL_TASKS).name == task


def test_help_names_them_all() -> None:
    [option] = [one for one in all_options() if one.name == "task"]
    assert all(task.name in option.help for task, _ in ALL_TASKS)


def test_names_are_told_apart() -> None:
    tasks = dict.fromkeys(task for task, _ in ALL_TASKS)
    names = [name for task in tasks for name in (task.name, *task.other_names)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "-" not in name for name in names)


def test_an_unknown_task_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"poetry.*fill_mask"):
        find_task("poetry", {}, ALL_TASKS)


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": ["ViTForImageClassification"]}])
def test_an_architecture_that_says_nothing(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=r"--task.*fill_mask"):
        find_task(None, config, ALL_TASKS)


def test_a_config_json_that_is_missing_is_not_quoted() -> None:
    with pytest.raises(LoadError, match=r"there is no config.json"):
        find_task(None, {}, ALL_TASKS)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("GPT2LMHeadModel", "text_generation"),
        ("LlamaForCausalLM", "text_generation"),
        ("T5ForConditionalGeneration", "text2text_generation"),
    ],
)
def test_architectures_that_generate(architecture: str, name: str) -> None:
    assert find_task(None, {"architectures": [architecture]}, ALL_TASKS).name == name


@pytest.mark.parametrize("name", ["text2text-generation", "summarization", "translation"])
def test_names_of_text_to_text(name: str) -> None:
    assert find_task(name, {}, ALL_TASKS).name == "text2text_generation"
