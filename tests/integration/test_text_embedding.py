"""text_embedding against sentence-transformers with the same weights (tests/goldens/generate_text_embedding.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.commands.local_triton import poll
from tests.integration.conftest import ROOT, Serve
from tests.service import Service
from tests.triton_repository import task_model_folder

MODELS = ["minibert_mean", "minibert_cls", "minibert_max", "minibert_last"]
LONG = "The cat sleeps on the sofa. " * 60
TEXTS = ["The cat sleeps on the sofa.", "It will rain tomorrow!"]


@pytest.fixture(scope="module")
def goldens() -> Any:
    return json.loads((ROOT / "tests" / "goldens" / "text_embedding.json").read_text())


@pytest.fixture
def embed(serve: Serve) -> Any:
    """A service for a model, with its own folder and more flags."""

    def start(model: str, *flags: str, folder: Path | None = None, protocol: str = "v2") -> Service:
        return serve(model, protocol, f"--model_dir={folder or task_model_folder(model)}", *flags)

    return start


def copy_of(model: str, folder: Path, **files: Any) -> Path:
    """A copy of a model's folder with other contents in some JSON files, a dot in their names written as __."""
    shutil.copytree(task_model_folder(model), folder, dirs_exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(json.dumps(content))
    return folder


def cases_of(goldens: Any, model: str, key: str) -> list[Any]:
    cases = [case for case in goldens["cases"] if case["model"] == model and key in case]
    assert cases
    return cases


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal numbers of vectors, each within the tolerance per component."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert len(one) == len(other)
        assert np.abs(np.array(one) - np.array(other)).max() <= tolerance


@pytest.mark.parametrize("model", MODELS)
def test_alone(embed: Any, goldens: Any, model: str) -> None:
    service = embed(model)
    for case in cases_of(goldens, model, "default"):
        assert_close(service.predict([case["text"]]), [case["default"]])


@pytest.mark.parametrize("model", MODELS)
def test_in_one_mixed_request(embed: Any, protocol: str, goldens: Any, model: str) -> None:
    cases = cases_of(goldens, model, "default")
    assert len(cases) >= 40
    service = embed(model, protocol=protocol)
    assert_close(service.predict([case["text"] for case in cases]), [case["default"] for case in cases])
    if model != MODELS[0]:
        cases = cases_of(goldens, model, "normalized")
        found = service.predict([case["text"] for case in cases], {"normalize": True})
        assert_close(found, [case["normalized"] for case in cases])


def test_a_model_that_pools_itself(embed: Any, goldens: Any) -> None:
    cases = cases_of(goldens, "minibert_mean", "default")
    service = embed("minibert_pooled")
    assert_close(service.predict([case["text"] for case in cases]), [case["default"] for case in cases])
    assert_close(service.predict([cases[0]["text"]]), [cases[0]["default"]])


def test_a_folder_without_files_of_sentence_transformers(embed: Any, goldens: Any) -> None:
    """Mean and L2 norm then, as KServe does; minibert_pooled's folder has no such files."""
    cases = cases_of(goldens, "minibert_mean", "default")
    service = embed("minibert_mean", folder=task_model_folder("minibert_pooled"))
    assert_close(service.predict([case["text"] for case in cases]), [case["default"] for case in cases])
    found = service.predict([cases[0]["text"]], {"dimensions": 16})[0]
    assert len(found) == 16 and np.linalg.norm(found) == pytest.approx(1, abs=1e-6)


def test_parameters(embed: Any, goldens: Any) -> None:
    service = embed("minibert_mean")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("prompt_query", {"prompt_name": "query"}),
        ("prompt_passage", {"prompt_name": "passage"}),
        ("prompt", {"prompt": "about: "}),
        ("dimensions_16", {"dimensions": 16}),
        ("dimensions_16_normalized", {"dimensions": 16, "normalize": True}),
        ("default", {"prompt": "", "dimensions": 48, "normalize": True, "truncation": True}),
        ("default", {"output_format": "pipeline"}),
    ]
    for key, parameters in asked:
        cases = cases_of(goldens, "minibert_mean", key)
        found = service.predict([case["text"] for case in cases], parameters)
        assert_close(found, [case[key] for case in cases])


def test_without_normalization(embed: Any, goldens: Any) -> None:
    cases = cases_of(goldens, "minibert_mean", "default")
    found = embed("minibert_mean").predict([case["text"] for case in cases], {"normalize": False})
    lengths = np.linalg.norm(found, axis=1)
    assert (np.abs(lengths - 1) > 0.1).all()
    assert_close(np.array(found) / lengths[:, None], [case["default"] for case in cases])


def test_the_default_prompt(embed: Any, goldens: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    case = cases_of(goldens, "minibert_mean", "prompt_query")[0]
    settings = {"prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query"}
    folder = tmp_path_factory.mktemp("default_prompt")
    copy_of("minibert_mean", folder, config_sentence_transformers__json=settings)
    service = embed("minibert_mean", folder=folder)
    assert_close(service.predict([case["text"]]), [case["prompt_query"]])
    assert_close(service.predict([case["text"]], {"prompt_name": "passage"}), [case["prompt_passage"]])
    assert_close(service.predict([case["text"]], {"prompt": ""}), [case["default"]])


def test_max_seq_length_lowers_the_limit(embed: Any) -> None:
    """minibert_cls: 64 by sentence_bert_config.json, 128 by the tokenizer; the goldens' very long texts show it too."""
    service = embed("minibert_cls")
    assert service.post({"instances": [LONG], "parameters": {"truncation": False}}).status_code == 413
    short = service.predict([LONG])
    longer = embed("minibert_cls", "--max_model_len=128").predict([LONG])
    assert np.abs(np.array(short) - np.array(longer)).max() > 1e-3


@pytest.mark.parametrize("model", ["minibert_mean", "minibert_pooled"])
def test_windows(embed: Any, model: str) -> None:
    service = embed(model, "--on_overflow=window", "--stride=0")
    plain = {"normalize": False}
    cut, whole = (service.predict([LONG], plain | {"truncation": True}), service.predict([LONG], plain))
    assert_close(cut, embed(model).predict([LONG], plain), 1e-6)
    # A sentence has 7 tokens and a window room for 126, 18 sentences: all windows but the last say the same.
    last = service.predict(["The cat sleeps on the sofa. " * (60 - 3 * 18)], plain)
    weights = np.array([128, 128, 128, 6 * 7 + 2])
    expected = (np.array([cut[0], cut[0], cut[0], last[0]]) * weights[:, None]).sum(axis=0) / weights.sum()
    assert_close(whole, [expected])
    assert_close(service.predict(TEXTS), embed(model).predict(TEXTS), 1e-6)
    assert np.linalg.norm(service.predict([LONG])[0]) == pytest.approx(1, abs=1e-6)
    overlapping = service.predict([LONG], plain | {"stride": 10})
    assert np.abs(np.array(overlapping) - np.array(whole)).max() > 1e-6


def test_on_overflow_error(embed: Any) -> None:
    service = embed("minibert_mean", "--on_overflow=error")
    assert service.post({"instances": [LONG]}).status_code == 413
    assert len(service.predict([LONG], {"truncation": True})[0]) == 48


WRONG: list[tuple[Any, int, list[str]]] = [
    ({"prompt_name": "title"}, 400, ["parameters.prompt_name", "query, passage"]),
    ({"prompt_name": "query", "prompt": "x"}, 400, ["parameters.prompt_name", "prompt"]),
    ({"prompt_name": 3}, 400, ["parameters.prompt_name", "a number"]),
    ({"prompt": ["x"]}, 400, ["parameters.prompt", "a list"]),
    ({"prompt": "x" * 2001}, 413, ["parameters.prompt", "2001"]),
    ({"dimensions": 49}, 400, ["parameters.dimensions", "49", "48"]),
    ({"dimensions": 0}, 400, ["parameters.dimensions"]),
    ({"dimensions": "16"}, 400, ["parameters.dimensions", "a string"]),
    ({"normalize": 1}, 400, ["parameters.normalize", "a number"]),
    ({"truncation": "no"}, 400, ["parameters.truncation"]),
    ({"stride": 4}, 400, ["parameters.stride", "--on_overflow=window"]),
    ({"output_format": "json"}, 400, ["parameters.output_format", "kserve, pipeline"]),
    ({"top_k": 3}, 400, ["parameters.top_k", "normalize"]),
]


def test_wrong_parameters(embed: Any) -> None:
    service = embed("minibert_mean")
    for parameters, status, words in WRONG:
        response = service.post({"instances": ["a"], "parameters": parameters})
        assert response.status_code == status
        assert all(word in response.json()["error"] for word in words), response.text


def test_more_refusals(embed: Any) -> None:
    response = embed("minibert_pooled").post({"instances": ["a"], "parameters": {"prompt_name": "query"}})
    assert response.status_code == 400 and "the model has none" in response.json()["error"]
    response = embed("minibert_mean").post({"instances": ["a", {"texts": "b"}]})
    assert response.status_code == 400 and "instances[1]" in response.json()["error"]
    service = embed("minibert_mean", "--on_overflow=window")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"stride": 126}, "a stride of 126 tokens is too long"),
        ({"stride": -1}, "parameters.stride"),
        ({"stride": 4, "truncation": True}, "parameters.stride"),
    ]
    for parameters, says in refused:
        response = service.post({"instances": [LONG], "parameters": parameters})
        assert response.status_code == 400 and says in response.json()["error"]


def test_objects_and_the_digits_of_a_float32(embed: Any) -> None:
    service = embed("minibert_mean")
    assert service.predict([{"text": TEXTS[0]}, TEXTS[0]])[0] == service.predict([TEXTS[0]])[0]
    text = service.post({"instances": [TEXTS[0]]}).text
    numbers = json.loads(text, parse_float=str)["predictions"][0]
    assert len(numbers) == 48 and all(len(one.lstrip("-0.")) <= 10 for one in numbers)


def test_the_files_choose_the_task(embed: Any, goldens: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As in all-mpnet-base-v2, where config.json says MPNetForMaskedLM."""
    config = json.loads((task_model_folder("minibert_mean") / "config.json").read_text())
    folder = tmp_path_factory.mktemp("architecture")
    copy_of("minibert_mean", folder, config__json=config | {"architectures": ["BertForMaskedLM"]})
    case = cases_of(goldens, "minibert_mean", "default")[0]
    assert_close(embed("minibert_mean", folder=folder).predict([case["text"]]), [case["default"]])


def test_a_module_that_the_model_has_to_apply(
    serve: Serve, embed: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Token vectors alone would give other embeddings; a model that gives the finished vector is fine."""
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{kind}" if index else "", "type": f"x.models.{kind}"}
        for index, kind in enumerate(kinds)
    ]
    folder = tmp_path_factory.mktemp("dense")
    copy_of("minibert_mean", folder, modules__json=modules)
    assert_close(embed("minibert_pooled", folder=folder).predict(TEXTS), embed("minibert_mean").predict(TEXTS))
    service = serve("minibert_mean", "v2", f"--model_dir={folder}", ready=False)
    assert poll(lambda: "reads [embedding after Dense]" in service.post({"instances": ["a"]}).text, 20.0)
