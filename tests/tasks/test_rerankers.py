"""Rerankers with a template, causal models and embedding models, with synthetic outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from hf_transformer.app.loading import load_model, reranker_class
from hf_transformer.app.rerank_template import pair_template
from hf_transformer.errors import InvalidInput, LoadError, PredictorError, TooLarge
from hf_transformer.tasks.base import CrossEncoder, SentenceTransformers
from hf_transformer.tasks.bi_encoder_rerank import BiEncoderRerank
from hf_transformer.tasks.causal_rerank import CausalRerank, last_logit, token_ids
from hf_transformer.tasks.multi_vector import LateInteraction
from hf_transformer.tasks.pair_template import BGE, QWEN3, PairTemplate, Reranker, template_of
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sparse import SparsePooling
from hf_transformer.tokenizer.reranker_files import implied_task, read_reranker, score_tokens
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from hf_transformer.types.tensors import TensorSpec
from hf_transformer.types.tokenization import Encoding, FramedPair
from tests.integration.server.processes import MODEL_FOLDER
from tests.support.configuring import config
from tests.tasks.task_settings import ENCODING, named, settings

ONE = named("LABEL_0")
CAUSAL: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
ITEM = {"query": "q", "texts": ["a", "b"]}
PLAIN_TEMPLATE = PairTemplate(before_query="Q: ", after_query="\n", before_document="D: ")


def pair_task(template: PairTemplate, **files: Any) -> Rerank:
    return Rerank(replace(settings(ONE, **files), reranker=Reranker(template=template)))


def texts(task: Rerank, **parameters: Any) -> Any:
    options = task.options(parameters)
    return task.texts(task.item(ITEM, ("instances", 0), options), options)


# Templates


def test_a_template_is_around_both_texts() -> None:
    assert texts(pair_task(PLAIN_TEMPLATE)) == [("Q: q\n", "D: a"), ("Q: q\n", "D: b")]
    assert texts(pair_task(QWEN3), instruction="Find b.")[0][0].endswith("<Instruct>: Find b.\n<Query>: q\n")
    assert PLAIN_TEMPLATE.with_label() == replace(PLAIN_TEMPLATE, separator=("D:",), before_document=" ")
    assert BGE.with_label() == BGE


def test_prompts_of_the_folder_are_instructions_of_a_template() -> None:
    files = CrossEncoder(None, {"city": "Find a city.", "none": ""}, "city")
    task = pair_task(QWEN3, cross_encoder=files)
    for parameters, instruction in (
        ({}, "Find a city."),
        ({"prompt_name": "none"}, "Given a web search query, retrieve relevant passages that answer the query"),
        ({"prompt": "Find a river."}, "Find a river."),
        ({"instruction": "Find a sea."}, "Find a sea."),
    ):
        assert f"<Instruct>: {instruction}\n<Query>: q\n" in texts(task, **parameters)[0][0]
    # A folder's prompt is no error where the template has no place for it, as in sentence-transformers.
    assert texts(pair_task(PLAIN_TEMPLATE, cross_encoder=files))[0] == ("Q: q\n", "D: a")


@pytest.mark.parametrize(
    ("template", "parameters", "error", "message"),
    [
        (None, {"instruction": "x"}, InvalidInput, "instruction: expected no value .*prompt puts a text before"),
        (PLAIN_TEMPLATE, {"instruction": "x"}, InvalidInput, "instruction: expected no value"),
        (PLAIN_TEMPLATE, {"prompt": "x"}, InvalidInput, "prompt: expected no value"),
        (QWEN3, {"instruction": "x", "prompt": "y"}, InvalidInput, "instruction or prompt, got both"),
        (QWEN3, {"instruction": "x" * 2001}, TooLarge, "instruction: expected at most 2000 characters, got 2001"),
        (QWEN3, {"instruction": 1}, InvalidInput, "instruction: expected a string"),
    ],
)
def test_instructions_that_have_no_place_are_refused(
    template: PairTemplate | None, parameters: Any, error: type[Exception], message: str
) -> None:
    task = Rerank(replace(settings(ONE), reranker=Reranker(template=template)))
    with pytest.raises(error, match=message):
        task.options(parameters)


def test_only_the_document_is_cut_with_a_template() -> None:
    task = pair_task(QWEN3)
    assert task.tokenization(task.options({})).only_second
    parameters = {"max_tokens_per_doc": 7, "max_tokens_per_query": 3}
    options = task.options(parameters)
    assert (options.tokenization.max_each[1], options.query_tokens) == (7, 3)
    assert options.tokenization.max_each[0] > 10**6  # the template is never cut
    assert texts(task, **parameters)[1] == FramedPair(QWEN3.before_query, "q", "\n", "<Document>: b", 3)


def test_a_rendered_template_is_split_at_the_texts() -> None:
    template = template_of(lambda query, document, _: f"<s>query: {query} document: {document}\nscore:")
    assert template == PairTemplate(
        before_query="<s>query: ", after_query=" document:", before_document=" ", suffix=("\nscore:",)
    )
    template = template_of(lambda query, document, told: f"{told or 'Judge.'}\n{query}\n\nD: {document}")
    assert template == PairTemplate(
        before_query="Judge.\n", instructed=("", "\n"), after_query="\n\n", before_document="D: "
    )
    assert template_of(lambda query, document, _: f"only {query}") is None


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", False),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no such role') }}", False),
        (
            "{{ (messages | selectattr('role', 'eq', 'query') | first).content[0].text }}\n"
            "{{ (messages | selectattr('role', 'eq', 'document') | first).content[0].text }}",
            True,
        ),
    ],
    ids=["any role", "other roles", "refuses", "in parts"],
)
def test_a_chat_template_of_the_folder_counts_if_it_is_for_pairs(tmp_path: Path, template: str, found: bool) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    assert (pair_template(tmp_path, None, {}, {}) is not None) is found


# Files


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(orjson.dumps(value))


def no_template(_: Any) -> None:
    return None


def test_the_files_of_a_causal_cross_encoder_name_task_and_tokens(tmp_path: Path) -> None:
    assert implied_task(tmp_path, CAUSAL, None) is None
    assert implied_task(tmp_path, CAUSAL | {"classifier_from_token": ["no", "yes"]}, None) == "rerank"
    assert score_tokens(tmp_path, CAUSAL | {"classifier_from_token": ["0", "1"]}) == ("0", "1")
    assert score_tokens(tmp_path, CAUSAL) == ("no", "yes")
    assert score_tokens(tmp_path, {"architectures": ["GemmaForCausalLM"]}) == ("Yes",)
    modules = [{"type": "a.Transformer", "path": ""}, {"type": "a.LogitScore", "path": "1_LogitScore"}]
    write(tmp_path, "modules.json", modules)
    write(tmp_path, "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    write(tmp_path, "1_LogitScore/config.json", {"true_token_id": 7, "false_token_id": 3})
    assert implied_task(tmp_path, CAUSAL, None) == "rerank"
    assert score_tokens(tmp_path, CAUSAL) == (3, 7)
    assert read_reranker(tmp_path, CAUSAL, lambda _: PLAIN_TEMPLATE).tokens == (3, 7)
    write(tmp_path, "1_LogitScore/config.json", {"true_token_id": 7, "false_token_id": None})
    assert score_tokens(tmp_path, CAUSAL) == (7,)
    write(tmp_path, "1_LogitScore/config.json", {})
    with pytest.raises(LoadError, match="LogitScore has no true_token_id"):
        score_tokens(tmp_path, CAUSAL)


def test_the_template_is_that_of_flag_files_or_architecture(tmp_path: Path) -> None:
    qwen: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"]}
    assert read_reranker(tmp_path, qwen, no_template) == Reranker(template=QWEN3, tokens=("no", "yes"))
    assert read_reranker(tmp_path, qwen, lambda _: PLAIN_TEMPLATE).template == PLAIN_TEMPLATE
    assert read_reranker(tmp_path, qwen, no_template, template="bge", tokens=("A",)) == Reranker(
        template=BGE, tokens=("A",)
    )
    assert read_reranker(tmp_path, CAUSAL, no_template, template="none").template is None
    with pytest.raises(LoadError, match=r"LlamaForCausalLM.*--rerank_template"):
        read_reranker(tmp_path, CAUSAL, no_template)
    # Variables of the template; text as the only modality means that it is not used.
    seen: list[Any] = []

    def own(variables: Any) -> PairTemplate:
        seen.append(variables)
        return PLAIN_TEMPLATE

    calls = {"chat_template": {"add_generation_prompt": True, "restore_suffix": False}}
    write(tmp_path, "sentence_bert_config.json", {"processing_kwargs": calls})
    assert read_reranker(tmp_path, qwen, own).template == PLAIN_TEMPLATE
    assert seen == [{"add_generation_prompt": True}]
    write(tmp_path, "sentence_bert_config.json", {"modality_config": {"text": {"method": "forward"}}})
    assert read_reranker(tmp_path, qwen, own).template == QWEN3
    assert read_reranker(tmp_path, {"architectures": ["BertForSequenceClassification"]}, no_template) == Reranker()


def test_the_form_of_a_reranker_follows_from_its_files() -> None:
    assert reranker_class(CAUSAL, None) is CausalRerank
    assert reranker_class({"architectures": ["BertModel"]}, SentenceTransformers()) is BiEncoderRerank
    assert reranker_class({"architectures": ["BertForSequenceClassification"]}, None) is Rerank


def test_a_cross_encoder_with_a_head_of_modules_needs_no_labels(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="one score per pair"):
        Rerank(settings({}))
    task = Rerank(settings({}, cross_encoder=CrossEncoder(inside="Dense")))
    assert task.outputs[0].other_names == ("scores",)


# Causal models


def test_the_logit_is_that_of_the_last_token() -> None:
    whole = np.array([[9, 9, 9, 9], [1, 5, 2, 7.5]], np.float16)
    assert last_logit(whole, 2, (1, 3)) == 2.5
    assert last_logit(whole, 2, (3,)) == 7.5
    assert last_logit(np.array([3.5], np.float32), 4, (1, 3)) == 3.5
    assert last_logit(np.array([1.0, 2.0, 3.0, 4.0]), 3, (3,)) == 3  # a logit per token, and padding
    for logits in (np.array([np.nan]), np.array([[0, np.inf]])):
        with pytest.raises(PredictorError, match="not finite numbers"):
            last_logit(logits, 1, (1,))


def test_a_causal_score_is_the_softmax_of_both_tokens() -> None:
    vocabulary = load_tokenizer(MODEL_FOLDER, {})
    reranker = Reranker(template=PLAIN_TEMPLATE, tokens=(3, 5))
    task = CausalRerank(replace(settings(CAUSAL), vocabulary=vocabulary, reranker=reranker))
    rows = np.zeros((3, 8), np.float32)
    rows[-1, [3, 5]] = np.log([1, 3])
    options = task.options({})
    item = task.item(ITEM, ("instances", 0), options)
    part = task.decode(item, ENCODING, {"logits": rows}, options)
    [first, second] = task.answer(item, [[part], [0.0]], options)
    assert (first["index"], first["score"], second["score"]) == (0, pytest.approx(0.75), 0.5)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((), "one token, or two"),
        ((1, 1), "two different"),
        ((1, 2, 3), "one token"),
        ((10**9,), "not in the vocabulary"),
    ],
)
def test_tokens_that_make_no_score_are_refused(tokens: tuple[int, ...], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        token_ids(tokens, load_tokenizer(MODEL_FOLDER, {}))


# Embedding models


def embedding_task(flags: Mapping[str, Any] | None = None, **files: Any) -> BiEncoderRerank:
    loaded = load_model(config(f"--model_dir={MODEL_FOLDER}"))
    tokenizer = loaded.tokenizer.with_max_length((flags or {}).get("max_length", loaded.tokenizer.max_length))
    sentences = SentenceTransformers(prompts={"query": "find: ", "passage": "text: "}, **files)
    hidden = {"architectures": ["BertModel"], "hidden_size": 2}
    return BiEncoderRerank(
        replace(settings(hidden, **(flags or {})), vocabulary=tokenizer, sentence_transformers=sentences)
    )


def rank(task: BiEncoderRerank, rows: list[Any], output: str, **parameters: Any) -> Any:
    """The answer for outputs of the query and of both texts."""
    options = task.options(parameters)
    item = task.item(ITEM, ("instances", 0), options)
    parts = [
        [task.decode(task.of_text(item, index), ENCODING, {output: np.array(row, np.float32)}, options)]
        for index, row in enumerate(rows)
    ]
    return task.answer(item, parts, options)


def test_the_query_is_encoded_once_and_each_side_has_its_prompt() -> None:
    task = embedding_task()
    assert texts(task) == ["find: q", "text: a", "text: b"]
    assert [task.text_path(("instances", 0), index) for index in range(3)] == [
        *(("instances", 0, "query"), ("instances", 0, "texts", 0), ("instances", 0, "texts", 1))
    ]


def test_each_side_has_a_limit_of_its_own() -> None:
    task = embedding_task()
    parameters = {"max_tokens_per_query": 1, "max_tokens_per_doc": 2}
    options = task.options(parameters)
    assert options.tokenization.max_each == (2,)
    [query, *_] = texts(task, **parameters)
    [whole] = task.settings.vocabulary.encode(["find: q"])
    [[cut]] = task.settings.vocabulary.encode_windows([query], options.tokenization)
    assert cut.ids == [*whole.ids[:2], whole.ids[-1]] and cut.truncated
    # Texts are cut each by itself, so the query is never cut for a document.
    assert texts(task, truncate_document=True) == texts(task)
    assert task.options(parameters | {"max_tokens": 3}).tokenization.max_length == 3
    with pytest.raises(InvalidInput, match="max_tokens_per_doc: expected 1 or more, got 0"):
        task.options({"max_tokens_per_doc": 0})


def test_a_long_side_is_cut_to_its_limit_before_it_is_split_into_windows() -> None:
    task = embedding_task({"on_overflow": "window", "max_length": 8})
    options = task.options({"max_tokens_per_query": 12, "max_tokens_per_doc": 3, "stride": 0})
    item = task.item({"query": "one two three " * 9, "texts": ["one two three " * 9]}, ("instances", 0), options)
    vocabulary: Any = task.settings.vocabulary
    query, text = vocabulary.encode_windows(task.texts(item, options), options.tokenization)
    assert [len(window) - 2 for window in query] == [6, 6] and [len(window) - 2 for window in text] == [3]
    assert all(window.truncated for window in (*query, *text))


def test_the_vectors_in_memory_count_against_the_values_of_an_answer() -> None:
    late = LateInteraction(size=128, normalize=False)
    vectors = embedding_task(late_interaction=late).fit([TensorSpec("token_vectors", "FP32", (-1, -1, 128))])
    long = Encoding([1] * 512, [0] * 512)
    assert vectors.answer_size(long, vectors.options({})) == 2 + 512 * 128 // 4 // 16
    assert embedding_task().answer_size(long, embedding_task().options({})) == 3


def test_sparse_vectors_and_late_interaction_have_functions_of_their_own() -> None:
    with pytest.raises(LoadError, match="similarity_fn_name is 'euclidean', expected one of dot, cosine"):
        embedding_task(sparse=SparsePooling(), similarity="euclidean")
    output = [TensorSpec("sparse_embedding", "FP32", (-1, 3))]
    rows = [[3.0, 4.0, 0.0], [0.0, 2.0, 0.0], [1.0, 1.0, 1.0]]
    scores = {}
    for name in ("dot", "cosine"):
        task = embedding_task(sparse=SparsePooling(), similarity=name).fit(output)
        scores[name] = {result["index"]: result["score"] for result in rank(task, rows, "sparse_embedding")}
    assert scores["dot"] == {0: 8, 1: 7}
    assert scores["cosine"] == {0: pytest.approx(0.8), 1: pytest.approx(7 / 5 / 3**0.5)}
    vectors = [[[1, 0], [0, 1], [0, 0]], [[1, 2], [0, 0], [0, 0]], [[0, 0], [4, 0], [0, 0]]]
    late = LateInteraction(size=2, normalize=False)
    task = embedding_task(late_interaction=late, similarity="meanmaxsim")
    task = task.fit([TensorSpec("token_vectors", "FP32", (-1, -1, 2))])
    assert [result["score"] for result in rank(task, vectors, "token_vectors")] == [
        pytest.approx(4 / 3),
        pytest.approx(1),
    ]


def test_dense_vectors_are_compared_by_the_models_function() -> None:
    vectors = [[1.0, 0.0], [3.0, 4.0], [0.5, 0.0]]
    cosine = rank(embedding_task(), vectors, "sentence_embedding", return_documents=True)
    assert cosine == [
        {"index": 1, "score": pytest.approx(1), "text": "b"},
        {"index": 0, "score": pytest.approx(0.6), "text": "a"},
    ]
    task = embedding_task(similarity="dot")
    assert rank(task, vectors, "sentence_embedding", top_n=1) == [{"index": 0, "score": 3.0}]
    short = rank(task, vectors, "sentence_embedding", dimensions=1, normalize=True)
    assert [answer["score"] for answer in short] == [1, 1]
    with pytest.raises(LoadError, match="similarity_fn_name is 'hamming', expected one of cosine, dot"):
        embedding_task(similarity="hamming")


def test_vectors_of_tokens_are_compared_by_max_sim() -> None:
    late = LateInteraction(size=2, normalize=False)
    task = embedding_task(late_interaction=late).fit([TensorSpec("token_vectors", "FP32", (-1, -1, 2))])
    rows = [[[1, 0], [0, 1], [0, 0]], [[1, 2], [0, 0], [0, 0]], [[0, 0], [4, 0], [0, 0]]]
    assert rank(task, rows, "token_vectors") == [{"index": 1, "score": 4.0}, {"index": 0, "score": 3.0}]
    named = rank(task, rows, "token_vectors", representations="multi_vector")
    assert named == rank(task, rows, "token_vectors")


def test_one_representation_is_compared() -> None:
    outputs = [TensorSpec("sentence_embedding", "FP32", (-1, 2)), TensorSpec("token_vectors", "FP32", (-1, -1, 2))]
    task = embedding_task().fit(outputs)
    with pytest.raises(InvalidInput, match="one representation to compare, got dense, multi_vector"):
        task.options({"representations": ["dense", "multi_vector"]})
