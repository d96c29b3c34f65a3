"""Sparse vectors and vectors of tokens against goldens of sentence-transformers, alone and in windows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_transformer.errors import InvalidInput, LoadError, PredictorError
from hf_transformer.tasks.base import SentenceTransformers, TaskSettings
from hf_transformer.tasks.multi_vector import LateInteraction, QueryExpansion, TokenVectors
from hf_transformer.tasks.representations import Representations, fit_outputs
from hf_transformer.tasks.sparse import SparsePooling, Weights, highest, merge, splade, unit_weights
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import TensorSpec
from hf_transformer.types.tokenization import Encoding, TokenIds

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "representations.json").read_text())
FILES = {model["name"]: model["files"] for model in GOLDENS["models"]}
CASES = {f"{c['model']}-{c.get('input_type', 'any')}-{c['text'][:9]}": c for c in GOLDENS["cases"]}
TOLERANCE = GOLDENS["about"]["tolerance"]["component_absolute"]
Loaded = tuple[Tokenizer, TextEmbedding]


def outputs_of(*names: str) -> list[TensorSpec]:
    return [TensorSpec(name, "FP32", (-1, -1)) for name in names]


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Loads a model of the goldens with a predictor's outputs of these names."""

    def load(name: str, *outputs: str, **more: Any) -> Loaded:
        for path, content in FILES[name].items():
            (tmp_path / name / path).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name / path).write_text(json.dumps(content))
        files = find_model_files(None, str(tmp_path / name))
        sentences = read_sentence_transformers(files.model_folder)
        at_most = sentences.max_seq_length if sentences else None
        tokenizer = load_tokenizer(files.tokenizer_folder, files.config, at_most=at_most)
        settings = TaskSettings(
            files.config, tokenizer, sentence_transformers=sentences, max_length=tokenizer.max_length, **more
        )
        task = fit_outputs(TextEmbedding(settings), outputs_of(*outputs))
        assert isinstance(task, TextEmbedding)
        return tokenizer, task

    return load


def run(loaded: Loaded, case: Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
    """The answer to a text, from the model's outputs in the goldens."""
    tokenizer, task = loaded
    options = task.options(parameters)
    item = task.item(case["text"], ("instances", 0), options)
    [windows] = tokenizer.encode_windows(task.texts(item, options), task.tokenization(options))
    [encoding] = [task.complete(item, window, options) for window in windows]
    assert encoding.ids == case["ids"] and len(encoding.type_ids) == len(encoding.ids)
    assert (encoding.attended or len(encoding.ids)) == case["attended"]
    outputs = {role.name: np.array(case["outputs"][name], np.float32) for role, name in roles(task, case)}
    return task.answer(item, [[task.decode(item, encoding, outputs, options)]], options)


def roles(task: TextEmbedding, case: Mapping[str, Any]) -> list[tuple[Any, str]]:
    """The task's roles with the model's outputs that they read."""
    return [
        (role, next(name for name in (role.name, *role.other_names) if name in case["outputs"]))
        for role in task.outputs
    ]


def kinds(case: Mapping[str, Any]) -> list[str]:
    return [name for name in ("dense", "sparse", "multi_vector") if name in case]


def assert_equal(answer: Any, expected: Any) -> None:
    """Compares a representation with a golden."""
    if isinstance(expected, dict):
        assert {str(i): pytest.approx(v, abs=TOLERANCE) for i, v in zip(*answer.values(), strict=True)} == expected
        assert list(answer["indices"]) == sorted(answer["indices"])
        return
    wanted = np.array(expected, np.float32)
    assert answer.shape == wanted.shape and answer.dtype == np.float32
    np.testing.assert_allclose(answer, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_tokens_and_answers_equal_the_libraries(load: Any, case: Any) -> None:
    loaded = load(case["model"], *case["outputs"])
    input_type = {"input_type": case["input_type"]} if "input_type" in case else {}
    default, *_ = kinds(case)
    assert loaded[1].available == tuple(kinds(case))
    assert_equal(run(loaded, case, input_type), case[default])
    answer = run(loaded, case, {**input_type, "representations": kinds(case)})
    assert list(answer) == kinds(case)
    for name, value in answer.items():
        assert_equal(value, case[name])


def test_a_document_is_the_default_of_late_interaction(load: Any) -> None:
    case = CASES["multi_vector-document-cat"]
    assert_equal(run(load("multi_vector", "token_vectors"), case, {}), case["multi_vector"])


def test_a_text_without_weights_has_an_empty_vector(load: Any) -> None:
    _, task = load("bge_m3", "token_weights", "sentence_embedding")
    encoding = Encoding([4, 8, 5], [0] * 3)
    outputs = {"sentence_embedding": np.ones(12, np.float32), "token_weights": np.array([9, -1, 9], np.float32)}
    for parameters in ({}, {"normalize": True}, {"normalize": False}):
        options = task.options({"representations": "sparse", **parameters})
        answer = task.answer("cat", [[task.decode("cat", encoding, outputs, options)]], options)["sparse"]
        assert (answer["indices"].tolist(), answer["values"].tolist()) == ([], [])
        assert json.loads(task.tensor([{"sparse": answer}], options).data[0]) == {
            "sparse": {"indices": [], "values": []}
        }


def test_the_self_score_of_bge_m3s_documentation() -> None:
    weights = np.array([0.08356, 0.08154, 0.1295, 0.252, 0.17, 0.2695, 0.04074], np.float32)
    assert weights @ weights == pytest.approx(0.1971, abs=5e-5)
    merged = merge([Weights(np.array([7, 3, 7]), np.array([0.5, 1, 2], np.float32))], "max")
    assert (merged.indices.tolist(), merged.values.tolist()) == ([3, 7], [1, 2])


def test_colbert_with_fewer_dimensions_has_a_fixed_number_of_vectors_per_query(load: Any) -> None:
    loaded = load("colbert", "token_vectors")
    cases = [case for case in CASES.values() if case["model"] == "colbert"]
    assert {case["input_type"] for case in cases} == {"query", "document"}
    for case in cases:
        vectors = run(loaded, case, {"input_type": case["input_type"], "dimensions": 4})
        skipped = sum(FILES["colbert"]["tokenizer.json"]["model"]["vocab"].get(c, 0) in case["ids"] for c in "!?.,;")
        assert vectors.shape[1] == 4 and np.linalg.norm(vectors, axis=1) == pytest.approx(1)
        if case["input_type"] == "query":
            assert len(vectors) == 9
        else:
            assert len(vectors) < len(case["ids"]) if skipped else len(vectors) == len(case["ids"])


def test_the_exact_rules_of_markers_and_mask_tokens() -> None:
    files = LateInteraction(
        markers={"query": "q", "document": "d"},
        lengths={"query": 8, "document": 6},
        expansion=QueryExpansion(length=6),
        skiplist=("!", "absent"),
    )
    vectors = TokenVectors(files, Vocabulary(), 32)  # type: ignore[arg-type]
    text = Encoding([1, 40, 33, 2], [0, 0, 0, 0], truncated=True)
    assert vectors.complete(text, "query") == Encoding([1, 113, 40, 33, 2, 5], [0] * 6, True, attended=5)
    assert vectors.complete(text, "document") == Encoding([1, 100, 40, 33, 2], [0] * 5, True)
    assert [vectors.room(kind) for kind in ("query", "document")] == [7, 5]
    # A maximum without room for more than the marker is not the absence of a maximum.
    assert [vectors.room("query", limit) for limit in (1, 2, 3)] == [1, 1, 2]
    full = Encoding([1, *[9] * 5, 2], [0] * 7)
    assert vectors.complete(full, "query") == Encoding([1, 113, *[9] * 5, 2], [0] * 8)
    rows = np.arange(8, dtype=np.float16).reshape(4, 2)
    assert vectors.select(rows, text.ids, "document").tolist() == [[0, 1], [2, 3], [6, 7]]
    assert len(vectors.select(rows, text.ids, "query")) == 4


class Vocabulary:
    """A token per character, without a token for longer words."""

    unk_id, mask_id, pad_token_id, cls_id, padding_side = 3, 5, 0, 1, "right"
    special_tokens: Mapping[str, str] = {}
    user_tokens = "none"

    def token_to_id(self, token: str) -> int | None:
        return ord(token) if len(token) == 1 else None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (LateInteraction(markers={"query": "[Q] "}), r"the marker '\[Q\] ' of the model's files is not a token"),
        (LateInteraction(expansion=QueryExpansion(token="<x>")), "'<x>' of query_expansion is not a token"),
    ],
)
def test_tokens_that_the_tokenizer_lacks_are_refused(files: LateInteraction, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        TokenVectors(files, Vocabulary(), 32)  # type: ignore[arg-type]


def test_the_windows_of_a_text_are_merged(load: Any) -> None:
    """Sparse weights by their maximum, vectors of tokens in order, dense vectors by tokens."""
    _, task = load("bge_m3", "token_weights", "token_vectors", "sentence_embedding", on_overflow="window")
    options = task.options({"representations": ["sparse", "multi_vector"]})
    assert task.tokenization(options).windows
    parts = [
        task.decode(
            "text",
            Encoding([4, *ids, 5], [0] * 4),
            {
                "sentence_embedding": np.ones(12, np.float32),
                "token_weights": np.array([[9], *[[weight] for weight in weights], [9]], np.float16),
                "token_vectors": np.array([[0, 0], [3, 4], [0, -2], [1, 0]], np.float32),
            },
            options,
        )
        for ids, weights in (([8, 9], [1, 2]), ([9, 10], [4, 0]))
    ]
    answer = task.answer("text", [parts], options)
    assert (answer["sparse"]["indices"].tolist(), answer["sparse"]["values"].tolist()) == ([8, 9], [1, 4])
    once = [[pytest.approx(0.6), pytest.approx(0.8)], [0, -1], [1, 0]]
    assert answer["multi_vector"].tolist() == [*once, *once]


def test_the_rules_of_weights() -> None:
    weights = Weights(np.array([2, 5, 9]), np.array([3, 1, 4], np.float32))
    assert highest(weights, 2).indices.tolist() == [2, 9] and highest(weights, None) is weights
    assert np.linalg.norm(unit_weights(weights).values) == pytest.approx(1)
    both = merge([weights, Weights(np.array([5]), np.array([2], np.float32))], "sum")
    assert (both.indices.tolist(), both.values.tolist()) == ([2, 5, 9], [3, 3, 4])


def test_the_files_normalize_before_the_highest_weights_and_the_request_after_them() -> None:
    pooling = SparsePooling(max_active=1, normalize=True)
    settings = TaskSettings({"vocab_size": 3}, Vocabulary(), sentence_transformers=SentenceTransformers(sparse=pooling))  # type: ignore[arg-type]
    task = fit_outputs(TextEmbedding(settings), outputs_of("sparse_embedding"))
    outputs, encoding = {"sparse_embedding": np.array([3, 0, 4], np.float32)}, Encoding([1], [0])
    for parameters, expected in (({}, 0.8), ({"normalize": True}, 1), ({"normalize": False}, 4)):
        options = task.options(parameters)
        answer = task.answer("a", [[task.decode("a", encoding, outputs, options)]], options)
        assert (answer["indices"].tolist(), answer["values"].tolist()) == ([2], [pytest.approx(expected)])


def test_the_sum_of_logits_is_computed_in_float32_and_costs_more_than_the_maximum(load: Any) -> None:
    logits = np.random.default_rng(4).normal(size=(300, 50)).astype(np.float16)
    expected = np.log1p(np.maximum(logits.astype(np.float64), 0)).sum(axis=0)
    np.testing.assert_allclose(splade(logits, SparsePooling(strategy="sum")), expected, rtol=1e-5)
    best = np.log1p(np.maximum(logits.max(axis=0), 0).astype(np.float32))
    for given in (logits, logits.astype(np.float32)):
        np.testing.assert_array_equal(splade(given, SparsePooling()), best)
    assert np.isnan(splade(np.array([[1, np.nan], [2, 3]], np.float16), SparsePooling())).tolist() == [False, True]
    costs = []
    for strategy in ("max", "sum"):
        files = SentenceTransformers(sparse=SparsePooling(strategy=strategy))
        settings = TaskSettings({"vocab_size": 250_000}, Vocabulary(), sentence_transformers=files)  # type: ignore[arg-type]
        task = fit_outputs(TextEmbedding(settings), outputs_of("logits"))
        costs.append(task.decode_cost(Encoding([1] * 64, [0] * 64), task.options({})))
    assert 20_000 < costs[0] < costs[1]  # both are a thread's work


@pytest.mark.parametrize(
    ("model", "names", "datatype", "axes"),
    [
        ("bge_m3", ["dense_vecs", "token_weights"], "FP32", 2),
        ("bge_m3", ["token_weights", "token_vectors"], "BYTES", 1),
        ("bge_m3", ["token_vectors"], "FP32", 3),
        ("colbert", ["token_vectors"], "FP32", 3),
        ("splade_max", ["logits"], "BYTES", 1),
    ],
)
def test_the_described_output_is_that_of_the_default_representation(
    load: Any, model: str, names: list[str], datatype: str, axes: int
) -> None:
    [spec] = load(model, *names)[1].tensor_specs
    assert (spec.datatype, len(spec.shape)) == (datatype, axes)


@pytest.mark.parametrize(
    ("model", "names", "available"),
    [
        ("bge_m3", ["last_hidden_state"], ("dense",)),
        ("bge_m3", ["sentence_embedding", "sparse_weights"], ("dense", "sparse")),
        ("bge_m3", ["dense_vecs", "sparse_vecs", "colbert_vecs"], ("dense", "sparse", "multi_vector")),
        ("bge_m3", ["token_weights", "token_vectors"], ("sparse", "multi_vector")),
        ("bge_m3", ["last_hidden_state", "logits"], ("dense",)),
        ("splade_max", ["logits"], ("sparse",)),
        ("splade_max", ["sparse_embedding", "sentence_embedding"], ("dense", "sparse")),
        ("splade_max", ["sentence_embedding"], ("sparse",)),
        ("colbert", ["last_hidden_state"], ("multi_vector",)),
        ("colbert", ["sentence_embedding", "token_vectors"], ("dense", "multi_vector")),
    ],
)
def test_files_and_output_names_decide_about_representations(
    load: Any, model: str, names: list[str], available: tuple[str, ...]
) -> None:
    _, task = load(model, *names)
    assert task.available == available and len(task.outputs) == len(available)
    assert isinstance(task, Representations) is (available != ("dense",))


def test_a_masked_language_model_is_splade_if_the_task_is_chosen() -> None:
    config = {"vocab_size": 4}
    settings = TaskSettings(config, Vocabulary())  # type: ignore[arg-type]
    task = fit_outputs(TextEmbedding(settings), outputs_of("logits__0"))
    assert isinstance(task, Representations)
    options = task.options({})
    logits = np.array([[0, 1, -1, 0], [-2, 0.5, 3, -1]], np.float16)
    answer = task.answer(
        "a", [[task.decode("a", Encoding([1, 2], [0, 0]), {"sparse_embedding": logits}, options)]], options
    )
    assert answer["indices"].tolist() == [1, 2]
    assert answer["values"] == pytest.approx(np.log1p([1, 3]))


def test_the_vectors_of_flagembedding_start_after_the_first_token(load: Any) -> None:
    _, task = load("bge_m3", "dense_vecs", "colbert_vecs")
    options = task.options({"representations": "multi_vector", "normalize": False})
    padded = np.arange(10, dtype=np.float32).reshape(5, 2)
    outputs = {"sentence_embedding": np.ones(12), "colbert_vecs": padded}
    part = task.decode("cat", Encoding([4, 8, 5], [0] * 3), outputs, options)
    assert task.answer("cat", [[part]], options)["multi_vector"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("parameters", "path", "expected"),
    [
        ({"representations": "sparse"}, "representations", "one of multi_vector, which the model has"),
        ({"representations": []}, "representations", "a string or a list of strings"),
        ({"dimensions": 7}, "dimensions", "at most 6, the size of the model's vectors"),
        ({"input_type": "passage"}, "input_type", "one of query, document"),
        ({"input_type": "query", "prompt": "a"}, "input_type", "input_type or prompt"),
        ({"precision": "int4"}, "precision", "one of float32, int8, uint8, binary, ubinary"),
        ({"binary_zero": True}, "binary_zero", "no value without a precision of binary or ubinary"),
        ({"precision": "int8", "normalize": False}, "normalize", "true for the precision int8"),
    ],
)
def test_wrong_parameters_are_refused(load: Any, parameters: Any, path: str, expected: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        run(load("colbert", "token_vectors"), CASES["colbert-document-cat"], parameters)
    assert raised.value.path == ("parameters", path) and raised.value.expected.startswith(expected)


@pytest.mark.parametrize("parameters", [{"dimensions": 2}, {"precision": "int8"}])
def test_parameters_without_effect_on_sparse_vectors_are_refused(load: Any, parameters: Any) -> None:
    with pytest.raises(InvalidInput, match="no value for sparse vectors alone"):
        load("splade_max", "logits")[1].options(parameters)


def test_vectors_that_are_not_finite_are_refused(load: Any) -> None:
    _, task = load("bge_m3", "dense_vecs", "token_weights", "token_vectors")
    good = {"token_weights": np.ones(3), "token_vectors": np.ones((3, 2)), "sentence_embedding": np.ones(12)}
    for name, kind in (("token_weights", "sparse"), ("token_vectors", "multi_vector")):
        bad = {**good, name: np.full_like(good[name], np.nan)}
        with pytest.raises(PredictorError, match="NaN or infinite"):
            task.decode("a", Encoding([4, 8, 5], [0] * 3), bad, task.options({"representations": kind}))


def test_token_ids_get_neither_a_marker_nor_mask_tokens(load: Any) -> None:
    _, task = load("colbert", "token_vectors")
    encoding, options = Encoding([4, 8, 5], [0] * 3), task.options({"input_type": "query"})
    assert task.complete(TokenIds((4, 8, 5)), encoding, options) is encoding


def test_tensors_of_the_open_inference_protocol(load: Any) -> None:
    _, task = load("bge_m3", "sentence_embedding", "token_weights", "token_vectors")
    vectors = np.ones((2, 8), np.float32)
    tensor = task.tensor([*vectors], task.options({"precision": "ubinary"}))
    assert (tensor.datatype, tensor.shape) == ("UINT8", (2, 8))
    assert task.tensor([{"dense": vectors[0]}], task.options({"representations": "dense"})).datatype == "BYTES"
    _, late = load("colbert", "token_vectors")
    padded = late.tensor([vectors[:, :3], vectors[:1, :3]], late.options({}))
    assert (padded.datatype, padded.data[1].tolist()) == ("FP32", [[1, 1, 1], [0, 0, 0]])
    assert [spec.shape for spec in late.tensor_specs] == [(-1, -1, 6)]
    _, both = load("colbert", "sentence_embedding", "token_vectors")
    assert (both.available[0], [len(spec.shape) for spec in both.tensor_specs]) == ("dense", [2])


def test_prompts_follow_the_input_type() -> None:
    prompts = {"search_query": "Q ", "Retrieval-passage": "P ", "other": "O "}
    files = SentenceTransformers(prompts=prompts, default_prompt_name="other")
    task = TextEmbedding(TaskSettings({}, Vocabulary(), sentence_transformers=files))  # type: ignore[arg-type]
    expected = {"query": "Q ", "document": "P ", None: "O "}
    assert {kind: task.options({"input_type": kind}).prompt for kind in expected} == expected
    plain = TextEmbedding(TaskSettings({}, Vocabulary()))  # type: ignore[arg-type]
    assert plain.options({"input_type": "query"}).prompt == ""
    with pytest.raises(InvalidInput, match=r"^parameters\.input_type: expected no value for token ids"):
        task.item({"token_ids": [5]}, ("input",), task.options({"input_type": "query"}))


def test_costs_and_sizes_count_what_is_asked_for(load: Any) -> None:
    _, task = load("bge_m3", "sentence_embedding", "token_weights", "token_vectors")
    encoding = Encoding([1] * 8, [0] * 8)
    sizes = {
        name: task.answer_size(encoding, task.options({"representations": name}))
        for name in ("dense", "sparse", "multi_vector")
    }
    assert sizes == {"dense": 3, "sparse": 4, "multi_vector": 24}
