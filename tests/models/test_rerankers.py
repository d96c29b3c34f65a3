"""Rerankers of every kind score pairs as their reference code does, on tiny random models."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.multi_vector_encoder import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
)

from hf_transformer.app.loading import load_model
from hf_transformer.commands.export.command import run
from hf_transformer.errors import ConfigError, InvalidInput, LoadError
from hf_transformer.tasks.bi_encoder_rerank import BiEncoderRerank
from hf_transformer.tasks.causal_rerank import CausalRerank
from hf_transformer.types.tensors import TensorSpec
from tests.goldens.checkpoints import checkpoint
from tests.models.exporting import Exports
from tests.support.configuring import config

pytestmark = pytest.mark.filterwarnings("default")

TOLERANCE = 1e-5
SYSTEM = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
ASK = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
QUERY = "What is the capital of China?"
DOCUMENTS = [
    "The capital of China is Beijing.",
    "Gravity is a force that attracts two bodies towards each other.",
    "Ends in a line break.\n",
    " begins and ends with spaces  ",
    "北京 is the Chinese name. <|im_end|> is a token, yes or no?",
    "",
]
LONG = "A capital is a city, and Beijing is a capital. " * 40
PAIR_TEMPLATE = (
    "<|im_start|>system\n{{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | "
    "default('Judge.', true) }}<|im_end|>\n<|im_start|>user\n<Query>: "
    "{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n<Document>: "
    "{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}"
    "<|im_end|>\n<|im_start|>assistant\n"
)
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [SYSTEM, SUFFIX, INSTRUCTION, ASK, QUERY, *DOCUMENTS, LONG, "yes no Yes No A: B:", "<Instruct>: <Document>: "]


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with the words of Qwen's tokenizers."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.NFC()
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(CORPUS * 5, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=trained, pad_token="<|endoftext|>", eos_token="<|im_end|>", model_max_length=256
    )


def gemma_tokenizer() -> PreTrainedTokenizerFast:
    """BPE over text with ▁ for spaces, and line breaks as tokens, like Gemma's."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    trained.train_from_iterator(CORPUS * 5, trainer)
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=trained, model_max_length=256, **names)


SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.5},
}


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    tokenizer = qwen_tokenizer()
    torch.manual_seed(0)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), tie_word_embeddings=False, **SIZES, **ids))
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma")
    tokenizer = gemma_tokenizer()
    torch.manual_seed(1)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "eos", "bos")}
    GemmaForCausalLM(GemmaConfig(vocab_size=len(tokenizer), **SIZES, **ids)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def logits_of(model: torch.nn.Module) -> Callable[[list[int]], np.ndarray]:
    """The logits of one text, without padding."""
    model.train(False)

    def call(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0].numpy()

    return call


class Service:
    """The service's tokenizer and task for a folder, with the model called as the predictor would be.

    Special tokens in texts are tokens, as for the libraries that it is compared with.
    """

    def __init__(self, folder: Path, call: Callable[[list[int]], np.ndarray], *flags: str) -> None:
        self.loaded = load_model(config(f"--model_dir={folder}", "--user_special_tokens=tokens", *flags))
        self.task, self.call = self.loaded.task, call

    def encode(self, documents: list[str], query: str = QUERY, **parameters):
        """The options, the item, and the windows of each text, complete."""
        task = self.task
        options = task.options(parameters)
        item = task.item({"query": query, "texts": documents}, "instances[0]", options)
        encoded = self.loaded.tokenizer.encode_windows(task.texts(item, options), task.tokenization(options))
        complete = [
            [task.complete(task.of_text(item, index), window, options) for window in windows]
            for index, windows in enumerate(encoded)
        ]
        return options, item, complete

    def ids(self, documents: list[str], **parameters) -> list[list[int]]:
        """The ids of texts of one window."""
        return [window.ids for [window] in self.encode(documents, **parameters)[2]]

    def __call__(self, documents: list[str], **parameters) -> list[float]:
        """Scores in the order of the documents."""
        task = self.task
        options, item, encoded = self.encode(documents, **parameters)
        name = task.outputs[0].name
        parts = [
            [
                task.decode(task.of_text(item, index), window, {name: self.call(window.ids)}, options)
                for window in windows
            ]
            for index, windows in enumerate(encoded)
        ]
        answers = task.answer(item, parts, options)
        return [answer["score"] for answer in sorted(answers, key=lambda answer: answer["index"])]


def qwen_reference(folder: Path, documents: list[str], instruction: str = INSTRUCTION, length: int = 256):
    """The code of Qwen3-Reranker's model card: scores and ids."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    call = logits_of(Qwen3ForCausalLM.from_pretrained(folder))
    no, yes = (tokenizer.convert_tokens_to_ids(token) for token in ("no", "yes"))
    prefix, suffix = (tokenizer.encode(text, add_special_tokens=False) for text in (SYSTEM, SUFFIX))
    scores, rows = [], []
    for document in documents:
        text = f"<Instruct>: {instruction}\n<Query>: {QUERY}\n<Document>: {document}"
        room = length - len(prefix) - len(suffix)
        ids = tokenizer(text, truncation="longest_first", max_length=room, return_attention_mask=False)["input_ids"]
        rows.append(prefix + ids + suffix)
        last = torch.tensor(call(rows[-1])[-1, [no, yes]])
        scores.append(float(torch.nn.functional.log_softmax(last, dim=0)[1].exp()))
    return scores, rows


def bge_reference(folder: Path, documents: list[str]) -> tuple[list[float], list[list[int]]]:
    """The logits and ids of FlagEmbedding's BaseLLMReranker."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    call = logits_of(GemmaForCausalLM.from_pretrained(folder))

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    rows = [
        [tokenizer.bos_token_id, *ids(f"A: {QUERY}"), *ids("\n"), *ids(f"B: {document}"), *ids("\n"), *ids(ASK)]
        for document in documents
    ]
    return [float(call(row)[-1, ids("Yes")[0]]) for row in rows], rows


def test_qwen3_scores_are_those_of_the_model_card(qwen: Path) -> None:
    service = Service(qwen, logits_of(Qwen3ForCausalLM.from_pretrained(qwen)), "--task=rerank")
    assert isinstance(service.task, CausalRerank)
    texts = [*DOCUMENTS, LONG]
    scores, rows = qwen_reference(qwen, texts)
    assert len(rows[-1]) == 256  # the long document is cut, and the suffix stays
    assert service.ids(texts) == rows
    assert [one.truncated for [one] in service.encode(texts)[2]] == [False] * len(DOCUMENTS) + [True]
    assert service(texts) == pytest.approx(scores, abs=TOLERANCE)
    assert max(scores) - min(scores) > 0.1
    raw = service(texts, raw_scores=True)
    assert 1 / (1 + np.exp(-np.array(raw))) == pytest.approx(scores, abs=TOLERANCE)
    told, _ = qwen_reference(qwen, texts, "Find the name of a city")
    for name in ("instruction", "prompt"):
        assert service(texts, **{name: "Find the name of a city"}) == pytest.approx(told, abs=TOLERANCE)
    assert told != pytest.approx(scores, abs=1e-3)


def test_limits_and_windows_keep_the_template(qwen: Path) -> None:
    flags = ("--task=rerank", "--on_overflow=window")
    service = Service(qwen, logits_of(Qwen3ForCausalLM.from_pretrained(qwen)), *flags)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(qwen)
    text = f"{SYSTEM}<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>:"
    before, after = (tokenizer(part)["input_ids"] for part in (text, SUFFIX))
    document = tokenizer(f" {LONG}")["input_ids"]
    room = 256 - len(before) - len(after)
    cut = {"truncation": True, "truncation_side": "left"}
    assert service.ids([LONG], **cut) == [before + document[-room:] + after]
    assert service.ids([LONG], max_tokens_per_doc=5) == [before + document[:5] + after]
    _, _, [windows] = service.encode([LONG], stride=10)
    assert [window.ids for window in windows[:2]] == [
        before + document[start : start + room] + after for start in (0, room - 10)
    ]
    [score] = service([LONG], stride=10, raw_scores=True)
    assert score == max(
        float(service.task.decode(None, window, {"logits": service.call(window.ids)}, None)) for window in windows
    )
    words = tokenizer(QUERY)["input_ids"]
    for side, kept in (("right", words[:4]), ("left", words[-4:])):
        short = tokenizer.decode(kept)
        expected = service.ids(DOCUMENTS[:2], query=short)
        assert service.ids(DOCUMENTS[:2], max_tokens_per_query=4, truncation_side=side) == expected


def test_the_word_cache_gives_the_same_pairs(qwen: Path) -> None:
    service = Service(qwen, lambda ids: ids, "--task=rerank")
    texts = [*DOCUMENTS, LONG]
    for _ in range(4):  # it learns from one text of each call
        for text in texts:
            service.encode([text])
    assert [service.ids([text])[0] for text in texts] == qwen_reference(qwen, texts)[1]


def test_a_conversion_to_sequence_classification_has_the_same_scores(qwen: Path, tmp_path: Path) -> None:
    causal = Qwen3ForCausalLM.from_pretrained(qwen)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(qwen)
    head = causal.lm_head.weight[[tokenizer.convert_tokens_to_ids(token) for token in ("no", "yes")]]
    classifier = Qwen3ForSequenceClassification(Qwen3Config.from_pretrained(qwen, num_labels=1))
    classifier.model.load_state_dict(causal.model.state_dict())
    with torch.no_grad():
        classifier.score.weight.copy_(head[1:] - head[:1])
    classifier.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scores, _ = qwen_reference(qwen, DOCUMENTS)
    assert Service(tmp_path, logits_of(classifier), "--task=rerank")(DOCUMENTS) == pytest.approx(scores, abs=TOLERANCE)
    plain = Service(tmp_path, logits_of(classifier), "--task=rerank", "--rerank_template=none")
    ids = tokenizer(QUERY, DOCUMENTS[0])["input_ids"]
    assert plain.ids(DOCUMENTS[:1]) == [ids]


def test_bge_scores_are_those_of_flag_embedding(gemma: Path) -> None:
    service = Service(gemma, logits_of(GemmaForCausalLM.from_pretrained(gemma)), "--task=rerank")
    logits, rows = bge_reference(gemma, DOCUMENTS)
    assert service.ids(DOCUMENTS) == rows
    assert service(DOCUMENTS, raw_scores=True) == pytest.approx(logits, abs=TOLERANCE, rel=TOLERANCE)
    assert service(DOCUMENTS) == pytest.approx(list(1 / (1 + np.exp(-np.array(logits)))), abs=TOLERANCE)
    [cut] = service.ids([LONG])
    assert (len(cut), cut[-20:]) == (256, rows[0][-20:])
    with pytest.raises(InvalidInput, match="instruction: expected no value for a model without instructions"):
        service(DOCUMENTS, instruction="Find a city")


@pytest.fixture(scope="module")
def cross_encoder(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal CrossEncoder as sentence-transformers 6 saves it, with a template for pairs and prompts."""
    folder = tmp_path_factory.mktemp("cross")
    model = CrossEncoder(
        str(qwen),
        device="cpu",
        processor_kwargs={"chat_template": PAIR_TEMPLATE},
        prompts={"city": "Find a city.", "force": "Find a force."},
        default_prompt_name="city",
    )
    tokenizer = model.tokenizer
    model[1] = LogitScore(tokenizer.convert_tokens_to_ids("A"), tokenizer.convert_tokens_to_ids("B"))
    model.save_pretrained(str(folder))
    return folder


def test_a_causal_cross_encoder_keeps_its_template_prompts_and_tokens(qwen: Path, cross_encoder: Path) -> None:
    model = CrossEncoder(str(cross_encoder), device="cpu")
    # The task follows from the folder's files.
    service = Service(cross_encoder, logits_of(Qwen3ForCausalLM.from_pretrained(qwen)))
    assert isinstance(service.task, CausalRerank)
    texts = [*DOCUMENTS, LONG]

    def predict(**parameters) -> list[float]:
        return [float(model.predict([(QUERY, text)], **parameters)[0]) for text in texts]

    for parameters in ({}, {"prompt_name": "force"}, {"prompt": "Find a river."}):
        assert service(texts, **parameters) == pytest.approx(predict(**parameters), abs=TOLERANCE)
    assert predict() != pytest.approx(predict(prompt_name="force"), abs=1e-3)


def test_the_file_of_a_template_replaces_the_models_own(qwen: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jinja"
    path.write_text("Q {{ messages[0].content }}\nD {{ messages[1].content }}\nA")
    service = Service(qwen, lambda ids: ids, "--task=rerank", f"--rerank_template={path}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(qwen)
    before, after = (tokenizer(text)["input_ids"] for text in (f"Q {QUERY}\nD {DOCUMENTS[0]}", "\nA"))
    assert service.ids(DOCUMENTS[:1]) == [before + after]


@pytest.mark.parametrize(
    ("flag", "error", "message"),
    [
        (
            "--rerank_template={{ messages[0].content | trim }} {{ messages[1].content }}",
            LoadError,
            "changes the texts",
        ),
        ("--rerank_template={{ messages[1].content }} {{ messages[0].content }}", LoadError, "the query and then"),
        ("--rerank_template={{ messages[0].content }}", LoadError, "roles query and document"),
        ("--rerank_tokens=yes,no,maybe", LoadError, "one token, or two"),
        ("--disable_special_tokens", ConfigError, "--disable_special_tokens"),
    ],
)
def test_templates_and_tokens_that_cannot_be_served_stop_the_start(
    qwen: Path, flag: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_model(config(f"--model_dir={qwen}", "--task=rerank", flag))


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
@pytest.mark.parametrize("kind", ["qwen", "gemma", "cross_encoder"])
def test_an_export_has_the_logit_of_each_pair(
    kind: str, form: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(kind)
    flags = (f"--model_id={folder}", f"--output={tmp_path}", "--model_name=m", "--task=rerank", f"--format={form}")
    assert run([*flags, "--reduce"], {}) == 0
    exported = tmp_path / "m"
    if form == "onnx":
        session = onnxruntime.InferenceSession(str(exported / "1" / "model.onnx"))
        run_model = lambda ids, mask: session.run(None, {"input_ids": ids, "attention_mask": mask})[0]  # noqa: E731
    else:
        module = torch.jit.load(str(exported / "1" / "model.pt"))
        run_model = lambda ids, mask: module(torch.tensor(ids), torch.tensor(mask))[0].detach().numpy()  # noqa: E731

    def call(ids: list[int]) -> np.ndarray:
        """Padded on both sides beside a copy that is not."""
        rows = np.array([[0, 0, *ids], [*ids, 0, 0]])
        mask = np.array([[0, 0] + [1] * len(ids), [1] * len(ids) + [0, 0]])
        left, right = run_model(rows, mask)
        assert left == pytest.approx(right, abs=1e-4)
        return right

    whole = {"qwen": Qwen3ForCausalLM, "gemma": GemmaForCausalLM, "cross_encoder": Qwen3ForCausalLM}[kind]
    expected = Service(folder, logits_of(whole.from_pretrained(folder)), "--task=rerank")
    # The exported folder has all files that the service reads.
    assert Service(exported, call, "--task=rerank")(DOCUMENTS) == pytest.approx(expected(DOCUMENTS), abs=TOLERANCE)


def test_an_embedding_model_ranks_by_its_own_similarity(tmp_path: Path) -> None:
    folder = tmp_path / "embedding"
    model = SentenceTransformer(str(checkpoint("minibert_cls", tmp_path / "checkpoints")), device="cpu")
    model.prompts = {"query": "what is ", "passage": "text: "}
    model[1].include_prompt = False
    for function in ("cosine", "dot", "euclidean", "manhattan"):
        model.similarity_fn_name = function
        model.save_pretrained(str(folder))
        service = Service(folder, states_of(model[0].model), "--task=rerank")
        assert isinstance(service.task, BiEncoderRerank)
        query = model.encode_query([QUERY], convert_to_tensor=True)
        vectors = torch.stack([model.encode_document(text, convert_to_tensor=True) for text in DOCUMENTS])
        expected = model.similarity(query, vectors)[0].tolist()
        assert service(DOCUMENTS) == pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)
        assert len(service.ids(DOCUMENTS)) == len(DOCUMENTS) + 1  # the query once
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["similarity_fn_name"] == "manhattan"


def states_of(model: torch.nn.Module) -> Callable[[list[int]], np.ndarray]:
    """The last hidden states of one text, without padding."""
    model.train(False)

    def call(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()

    return call


def test_a_sparse_encoder_ranks_by_the_dot_product(tmp_path: Path) -> None:
    base = checkpoint("bert", tmp_path / "checkpoints")
    model = SparseEncoder(modules=[MLMTransformer(str(base)), SpladePooling("max")], device="cpu")
    model.save_pretrained(str(tmp_path / "splade"))
    service = Service(tmp_path / "splade", logits_of(model[0].model), "--task=rerank")
    service.task = service.task.fit([TensorSpec("logits", "FP32", (-1, -1, 1000))])
    query = model.encode_query([QUERY])
    scores = [float(model.similarity(query, model.encode_document([text]))[0, 0]) for text in DOCUMENTS]
    assert service(DOCUMENTS) == pytest.approx(scores, rel=TOLERANCE)
    with pytest.raises(InvalidInput, match="representations: expected one of sparse"):
        service(DOCUMENTS, representations="dense")


def test_a_late_interaction_model_ranks_by_max_sim(tmp_path: Path) -> None:
    base = checkpoint("bert", tmp_path / "checkpoints")
    transformer = Transformer(
        str(base),
        query_length=12,
        document_length=40,
        query_expansion={"strategy": "fixed", "length": 12, "attend": True, "token": "[MASK]"},
    )
    size = transformer.get_embedding_dimension()
    dense = Dense(size, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    mask = MultiVectorMask(skiplist_words=list(string.punctuation))
    normalize = Normalize(module_input_name="token_embeddings")
    model = MultiVectorEncoder(modules=[transformer, dense, mask, normalize], device="cpu")
    model.save_pretrained(str(tmp_path / "colbert"))
    states = states_of(model[0].model)
    weight = model[1].linear.weight.detach().numpy()
    service = Service(tmp_path / "colbert", lambda ids: states(ids) @ weight.T, "--task=rerank")
    service.task = service.task.fit([TensorSpec("token_vectors", "FP32", (-1, -1, 16))])
    texts = [*DOCUMENTS[:5], LONG]
    for query in (QUERY, LONG):  # a query is cut to its own length
        [vectors] = model.encode_query([query])
        scores = [
            float((vectors @ document.T).max(dim=1).values.sum())
            for document in (model.encode_document(text) for text in texts)
        ]
        assert len(service.ids(texts, query=query)[0]) == 12
        assert service(texts, query=query) == pytest.approx(scores, abs=TOLERANCE, rel=TOLERANCE)


@pytest.mark.parametrize("flags", [(), ("--reduce",)], ids=["whole", "reduced"])
def test_triton_serves_causal_rerankers(exports: Exports, qwen: Path, flags: tuple[str, ...]) -> None:
    name, _ = exports.export(qwen, "--task=rerank", "--format=onnx", *flags, name=f"qwen3{len(flags)}")
    texts = [*DOCUMENTS, LONG]
    scores, _ = qwen_reference(qwen, texts)
    with exports.serve(name, "--task=rerank") as service:
        [together] = service.predict([{"query": QUERY, "texts": texts}])
        alone = [service.predict([{"query": QUERY, "texts": [text]}])[0][0]["score"] for text in texts]
    in_order = [answer["score"] for answer in sorted(together, key=lambda answer: answer["index"])]
    assert in_order == pytest.approx(scores, abs=TOLERANCE)
    assert alone == pytest.approx(scores, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("model", "library"),
    [("minibert_cls", SentenceTransformer), ("splade", SparseEncoder), ("colbert", MultiVectorEncoder)],
)
def test_triton_serves_embedding_models_as_rerankers(exports: Exports, model: str, library: type) -> None:
    folder = exports.checkpoint(model)
    original = library(str(folder), device="cpu")
    name, _ = exports.export(folder, "--format=onnx")
    query = original.encode_query([QUERY])
    expected = [float(original.similarity(query, original.encode_document([text]))[0][0]) for text in DOCUMENTS]
    with exports.serve(name, "--task=rerank") as service:
        [answers] = service.predict([{"query": QUERY, "texts": DOCUMENTS}])
    found = [answer["score"] for answer in sorted(answers, key=lambda answer: answer["index"])]
    assert found == pytest.approx(expected, abs=TOLERANCE, rel=TOLERANCE)
