"""text_embedding against sentence-transformers with the same weights (scripts/goldens/generate_text_embedding.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.conftest import Serve, goldens, refused
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

LONG = "The cat sleeps on the sofa. " * 60
TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]


def copy_of(model: str, folder: Path, **files: Any) -> Path:
    """A copy of a model's folder with other contents in some JSON files, a dot in their names written as __."""
    shutil.copytree(task_model_folder(model), folder, dirs_exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


def cases_of(stored: Any, model: str, key: str) -> list[Any]:
    cases = [case for case in stored["cases"] if case["model"] == model and key in case]
    assert cases
    return cases


def mean_cases(key: str = "default") -> list[Any]:
    return cases_of(goldens("text_embedding"), "minibert_mean", key)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal numbers of vectors, each within the tolerance per component."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other)
        assert np.abs(np.array(one) - np.array(other)).max() <= tolerance


def check_goldens(service: Service, model: str) -> None:
    """In one request and alone, and with a norm of 1 where the model's own vectors have another."""
    cases = cases_of(goldens("text_embedding"), model, "default")
    assert len(cases) >= 40
    together = service.predict([case["text"] for case in cases])
    assert_close(together, [case["default"] for case in cases])
    assert_close([service.predict([case["text"]])[0] for case in cases], [case["default"] for case in cases])
    if model != "minibert_mean":
        cases = cases_of(goldens("text_embedding"), model, "normalized")
        found = service.predict([case["text"] for case in cases], {"normalize": True})
        assert_close(found, [case["normalized"] for case in cases])


@pytest.mark.parametrize("model", ["minibert_mean", "minibert_cls", "minibert_max", "minibert_last"])
def test_vectors_are_those_of_sentence_transformers(serve: Serve, model: str) -> None:
    check_goldens(serve(model), model)


def test_prompts_dimensions_and_normalization_are_those_of_sentence_transformers(serve: Serve) -> None:
    """Also where they make no difference."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("prompt_query", {"prompt_name": "query"}),
        ("prompt_passage", {"prompt_name": "passage"}),
        ("prompt", {"prompt": "about: "}),
        ("dimensions_16", {"dimensions": 16}),
        ("dimensions_16_normalized", {"dimensions": 16, "normalize": True}),
        ("default", {"prompt": "", "dimensions": 48, "normalize": True, "truncation": True}),
        ("default", {"output_format": "pipeline"}),
    ]
    service = serve("minibert_mean")
    for key, parameters in asked:
        vectors = service.predict([case["text"] for case in mean_cases(key)], parameters)
        assert_close(vectors, [case[key] for case in mean_cases(key)])
    vectors = service.predict([case["text"] for case in mean_cases()], {"normalize": False})
    lengths = np.linalg.norm(vectors, axis=1)
    assert (np.abs(lengths - 1) > 0.1).all()
    assert_close(np.array(vectors) / lengths[:, None], [case["default"] for case in mean_cases()])


def test_pooling_may_be_the_models_or_the_services(serve: Serve) -> None:
    """A model that pools itself; a folder without sentence-transformers' files has mean and L2 norm, as in KServe."""
    texts = [case["text"] for case in mean_cases()]
    folder = task_model_folder("minibert_pooled")
    plain = serve("minibert_mean", "v2", f"--model_dir={folder}")
    for service in (serve("minibert_pooled"), plain):
        assert_close(service.predict(texts), [case["default"] for case in mean_cases()])
        assert_close(service.predict(texts[:1]), [mean_cases()[0]["default"]])
    found = plain.predict(texts[:1], {"dimensions": 16})[0]
    assert len(found) == 16 and np.linalg.norm(found) == pytest.approx(1, abs=1e-6)
    refused(serve("minibert_pooled"), ["a"], {"prompt_name": "query"}, "a model without prompts")


def test_files_choose_the_default_prompt_and_the_task(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The default prompt; and the task, as in all-mpnet-base-v2, where config.json says MPNetForMaskedLM."""
    case = mean_cases("prompt_query")[0]
    settings = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"}
    config = json.loads((task_model_folder("minibert_mean") / "config.json").read_text())
    config["architectures"] = ["BertForMaskedLM"]
    folder = tmp_path_factory.mktemp("chosen")
    copy_of("minibert_mean", folder, config_sentence_transformers__json=settings, config__json=config)
    service = serve("minibert_mean", "v2", f"--model_dir={folder}")
    assert_close(service.predict([case["text"]]), [case["prompt_query"]])
    assert_close(service.predict([case["text"]], {"prompt_name": "passage"}), [case["prompt_passage"]])
    assert_close(service.predict([case["text"]], {"prompt": ""}), [case["default"]])


def test_max_seq_length_lowers_the_limit(serve: Serve) -> None:
    """minibert_cls: 64 by sentence_bert_config.json, 128 by the tokenizer; the goldens' very long texts show it too."""
    service = serve("minibert_cls")
    refused(service, [LONG], {"truncation": False}, "expected at most 64 tokens", 413)
    longer = serve("minibert_cls", "v2", "--max_model_len=128", "--on_overflow=error")
    refused(longer, [LONG], {}, "expected at most 128 tokens", 413)
    cut = np.array(longer.predict([LONG], {"truncation": True}))
    assert cut.shape == (1, 48) and np.abs(cut - service.predict([LONG])).max() > 1e-3


@pytest.mark.parametrize("model", ["minibert_mean", "minibert_pooled"])
def test_the_windows_of_a_long_text_are_averaged(serve: Serve, model: str) -> None:
    service, cutting = serve(model, "v2", "--on_overflow=window", "--stride=0"), serve(model)
    plain = {"normalize": False}
    cut, whole = (service.predict([LONG], plain | {"truncation": True}), service.predict([LONG], plain))
    assert_close(cut, cutting.predict([LONG], plain), 1e-6)
    # A sentence has 7 tokens and a window room for 126, 18 sentences: all windows but the last say the same.
    last = service.predict(["The cat sleeps on the sofa. " * (60 - 3 * 18)], plain)
    weights = np.array([128, 128, 128, 6 * 7 + 2])
    expected = (np.array([cut[0], cut[0], cut[0], last[0]]) * weights[:, None]).sum(axis=0) / weights.sum()
    assert_close(whole, [expected])
    assert_close(service.predict(TEXTS), cutting.predict(TEXTS), 1e-6)
    assert np.linalg.norm(service.predict([LONG])[0]) == pytest.approx(1, abs=1e-6)
    overlapping = service.predict([LONG], plain | {"stride": 10})
    assert np.abs(np.array(overlapping) - np.array(whole)).max() > 1e-6


WRONG: list[tuple[Any, int, str]] = [
    ({"prompt_name": "title"}, 400, "parameters.prompt_name...query, passage"),
    ({"prompt_name": "query", "prompt": "x"}, 400, "parameters.prompt_name...prompt"),
    ({"prompt": "x" * 2001}, 413, "parameters.prompt...2001"),
    ({"dimensions": 49}, 400, "parameters.dimensions...49...48"),
    ({"stride": 4}, 400, "parameters.stride...--on_overflow=window"),
]
WRONG_WINDOWS: list[tuple[Any, str]] = [
    ({"stride": 126}, "a stride of less than ...got 126"),
    ({"stride": -1}, "parameters.stride"),
    ({"stride": 4, "truncation": True}, "parameters.stride"),
]


def test_wrong_instances_and_parameters_are_refused(serve: Serve) -> None:
    service = serve("minibert_mean")
    for parameters, status, says in WRONG:
        refused(service, ["a"], parameters, says, status)
    refused(service, ["a", {"texts": "b"}], {}, "instances[1]")
    windows = serve("minibert_mean", "v2", "--on_overflow=window", "--stride=0")
    for parameters, says in WRONG_WINDOWS:
        refused(windows, [LONG], parameters, says)


def test_objects_are_texts_and_floats_have_the_digits_of_float32(serve: Serve) -> None:
    service = serve("minibert_mean")
    assert service.predict([{"text": TEXTS[0]}, TEXTS[0]])[0] == service.predict([TEXTS[0]])[0]
    text = service.post({"instances": [TEXTS[0]]}).text
    numbers = json.loads(text, parse_float=str)["predictions"][0]
    assert len(numbers) == 48 and all(len(one.lstrip("-0.")) <= 10 for one in numbers)
