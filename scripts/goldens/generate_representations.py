"""Compute the goldens of sparse vectors and of vectors of tokens with sentence-transformers.

The models are tiny and random. The file has their small files, and per text the outputs that an exported model would
have, so that tests need no weights. sentence-transformers reads PyLate's and ColBERT's folders, too. BGE-M3 is the
formula of FlagEmbedding's m3.py in torch. Every text is run alone, unpadded.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import sentence_transformers
import torch
import transformers
from safetensors.torch import save_file
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import processors
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree

TEXTS: Final = (
    "the cat sleeps, really!",
    "cat",
    "",
    "?!...",
    "the cat and the dog sleep on the sofa; the bird sings in the garden of the house and flies",
)
WORDS: Final = "the cat dog bird sleep sing fly sofa garden house and on in of really".split()
TOKENS: Final = ("[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES: Final = ("##s", "##es", "##i")
SIZE: Final = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_representations.py",
    "tolerance": {"component_absolute": TOLERANCE},
    "models": "the small files of each model folder",
    "cases": "one per model, text and input type: the token ids, the number of them in the attention mask, the "
    "outputs of the model, and the answer, dense [D], sparse {id: weight} or multi_vector [tokens, d]",
}


def bert_tokenizer(*added: str, special: bool = True) -> BertTokenizer:
    """A WordPiece tokenizer of a few words, with added tokens."""
    vocabulary = [*TOKENS, *WORDS, *PIECES, *string.punctuation]
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)}, model_max_length=24)
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": list(added)})
    else:
        tokenizer.add_tokens(list(added))
    return tokenizer


def bert(kind: type[PreTrainedModel], tokenizer: BertTokenizer) -> PreTrainedModel:
    """A random BERT whose weights are large enough for different answers to texts."""
    model = kind(BertConfig(vocab_size=len(tokenizer), **SIZE))
    for parameter in model.parameters():
        parameter.normal_(0, 0.6 if parameter.dim() > 1 else 0.1)
    return model.eval()


def save(folder: Path, model: PreTrainedModel, tokenizer: Any) -> Path:
    """Saves a checkpoint."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def splade(folder: Path, pooling: Mapping[str, str], most: int | None) -> SparseEncoder:
    """A SparseEncoder, saved and loaded."""
    tokenizer = bert_tokenizer()
    plain = save(folder / "plain", bert(BertForMaskedLM, tokenizer), tokenizer)
    modules = [Transformer(str(plain), transformer_task="fill-mask"), SpladePooling(**pooling)]
    SparseEncoder(modules=modules, max_active_dims=most, device="cpu").save_pretrained(str(folder))
    return SparseEncoder(str(folder), device="cpu")


def multi_vector(folder: Path) -> MultiVectorEncoder:
    """A MultiVectorEncoder, saved and loaded. Its markers are in the prompts."""
    tokenizer = bert_tokenizer("[Q]", "[D]")
    plain = save(folder / "plain", bert(BertModel, tokenizer), tokenizer)
    expansion = {"strategy": "fixed", "attend": False, "length": 12}
    transformer = Transformer(str(plain), document_length=14, query_expansion=expansion)
    modules = [
        transformer,
        Dense(12, 6, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings"),
        MultiVectorMask(skiplist_words=list(string.punctuation)),
        Normalize(module_input_name="token_embeddings"),
    ]
    prompts = {"query": "[Q] ", "document": "[D] "}
    MultiVectorEncoder(modules=modules, prompts=prompts, device="cpu").save_pretrained(str(folder))
    return MultiVectorEncoder(str(folder), device="cpu")


def pylate(folder: Path) -> MultiVectorEncoder:
    """A folder as PyLate writes it, whose mask tokens are attended to."""
    tokenizer = bert_tokenizer("[Q] ", "[D] ", special=False)
    save(folder, bert(BertModel, tokenizer), tokenizer)
    dense = folder / "1_Dense"
    dense.mkdir()
    settings = {"in_features": 12, "out_features": 6, "bias": False}
    write(dense / "config.json", settings | {"activation_function": "torch.nn.modules.linear.Identity"})
    save_file({"linear.weight": torch.randn(6, 12)}, dense / "model.safetensors")
    kinds = (("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense"))
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds)]
    write(folder / "modules.json", modules)
    write(folder / "sentence_bert_config.json", {"max_seq_length": 11, "do_lower_case": False})
    pylate_settings = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 10, "document_length": 12}
    more = {"attend_to_expansion_tokens": True, "do_query_expansion": True, "skiplist_words": [",", "!", ";"]}
    write(folder / "config_sentence_transformers.json", {"model_type": "ColBERT", **pylate_settings, **more})
    return MultiVectorEncoder(str(folder), device="cpu")


def colbert(folder: Path) -> MultiVectorEncoder:
    """A checkpoint of the original ColBERT, with its projection beside the encoder's weights."""
    tokenizer = bert_tokenizer()
    model = bert(BertModel, tokenizer)
    model.config.architectures = ["HF_ColBERT"]
    save(folder, model, tokenizer)
    write(folder / "config.json", {**json.loads((folder / "config.json").read_text()), "architectures": ["HF_ColBERT"]})
    weights = {f"bert.{name}": weight.contiguous() for name, weight in model.state_dict().items()}
    save_file({**weights, "linear.weight": torch.randn(6, 12)}, folder / "model.safetensors", {"format": "pt"})
    metadata = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 9, "doc_maxlen": 16}
    write(folder / "artifact.metadata", {**metadata, "dim": 6, "mask_punctuation": True})
    return MultiVectorEncoder(str(folder), device="cpu")


def bge_m3(folder: Path) -> tuple[PreTrainedModel, Any, torch.nn.Linear, torch.nn.Linear]:
    """XLM-R with BGE-M3's linear layers, and the tokenizer's special tokens of XLM-R."""
    tokenizer = bert_tokenizer()
    backend = tokenizer.backend_tokenizer
    tokenizer.add_special_tokens({"bos_token": "[CLS]", "eos_token": "[SEP]"})
    backend.post_processor = processors.RobertaProcessing(("[SEP]", 5), ("[CLS]", 4))
    model = XLMRobertaModel(XLMRobertaConfig(vocab_size=len(tokenizer), pad_token_id=0, **SIZE)).eval()
    for parameter in model.parameters():
        parameter.normal_(0, 0.6 if parameter.dim() > 1 else 0.1)
    save(folder, model, tokenizer)
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))
    ]
    write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 12, "pooling_mode_cls_token": True})
    sparse_linear = torch.nn.Linear(12, 1)
    sparse_linear.weight.normal_(0, 4)
    hidden = model(torch.tensor([tokenizer(TEXTS[-1])["input_ids"]])).last_hidden_state[0]
    sparse_linear.bias -= sparse_linear(hidden).mean()  # about half of the tokens have a weight
    return model, tokenizer, sparse_linear, torch.nn.Linear(12, 12)


def write(path: Path, value: Any) -> None:
    """Writes JSON."""
    path.write_text(json.dumps(value))


def small_files(folder: Path) -> dict[str, Any]:
    """The JSON files of a folder and of its modules, by path."""
    names = [*folder.glob("*.json"), *folder.glob("[0-9]_*/config.json"), *folder.glob("artifact.metadata")]
    return {str(path.relative_to(folder)): json.loads(path.read_text()) for path in sorted(names)}


def sparse_case(model: SparseEncoder, text: str) -> dict[str, Any]:
    """The weights of a text."""
    features = model.preprocess([text])
    logits = model[0](dict(features))["token_embeddings"][0]
    ids = features["input_ids"][0].tolist()
    weights = model.encode([text], show_progress_bar=False, convert_to_sparse_tensor=False)[0]
    answer = {str(number): float(weights[number]) for number in weights.nonzero()[:, 0].tolist()}
    return {"ids": ids, "attended": len(ids), "outputs": {"logits": logits}, "sparse": answer}


def multi_vector_case(model: MultiVectorEncoder, text: str, kind: str) -> dict[str, Any]:
    """The vectors of a query's or document's tokens."""
    features = model.preprocess([text], prompt=model.prompts[kind], task=kind)
    ids, mask = features["input_ids"][0].tolist(), features["attention_mask"][0].tolist()
    projected = model[1](dict(model[0](dict(features))))["token_embeddings"][0]
    encode: Callable[..., Any] = model.encode_query if kind == "query" else model.encode_document
    vectors = encode([text], show_progress_bar=False, convert_to_numpy=True)[0]
    case = {"input_type": kind, "ids": ids, "attended": sum(mask), "outputs": {"token_vectors": projected}}
    return {**case, "multi_vector": vectors}


def bge_m3_case(parts: tuple[PreTrainedModel, Any, torch.nn.Linear, torch.nn.Linear], text: str) -> dict[str, Any]:
    """All representations of a text. Without a linear layer's weights in a file, the outputs of the layers are here."""
    model, tokenizer, sparse_linear, colbert_linear = parts
    ids = tokenizer(text, truncation=True, max_length=24)["input_ids"]
    hidden = model(torch.tensor([ids])).last_hidden_state[0]
    weights, vectors = torch.relu(sparse_linear(hidden))[:, 0], colbert_linear(hidden)
    pooled = torch.zeros(len(tokenizer)).scatter_reduce(0, torch.tensor(ids), weights, "amax")
    pooled[[4, 5, 0, 3]] = 0  # [CLS], [SEP], [PAD], [UNK]
    answer = {str(number): float(pooled[number]) for number in pooled.nonzero()[:, 0].tolist()}
    return {
        "ids": ids,
        "attended": len(ids),
        "outputs": {"last_hidden_state": hidden, "token_weights": weights, "token_vectors": vectors},
        "dense": functional.normalize(hidden[0], dim=-1),
        "sparse": answer,
        "multi_vector": functional.normalize(vectors[1:], dim=-1),
    }


def everything(folder: Path) -> dict[str, Any]:
    """The contents of representations.json."""
    torch.manual_seed(41)
    folders = {}
    for name in ("splade_max", "splade_sum", "multi_vector", "pylate", "colbert", "bge_m3"):
        folders[name] = folder / name
        folders[name].mkdir()
    sparse = {
        "splade_max": splade(folders["splade_max"], {"pooling_strategy": "max"}, None),
        "splade_sum": splade(
            folders["splade_sum"], {"pooling_strategy": "sum", "activation_function": "log1p_relu"}, 4
        ),
    }
    vectors = {
        "multi_vector": multi_vector(folders["multi_vector"]),
        "pylate": pylate(folders["pylate"]),
        "colbert": colbert(folders["colbert"]),
    }
    cases = [{"model": name, "text": t, **sparse_case(model, t)} for name, model in sparse.items() for t in TEXTS]
    cases += [
        {"model": name, "text": text, **multi_vector_case(model, text, kind)}
        for name, model in vectors.items()
        for text in TEXTS
        for kind in ("query", "document")
    ]
    parts = bge_m3(folders["bge_m3"])
    learned = [{"model": "bge_m3", "text": text, **bge_m3_case(parts, text)} for text in TEXTS]
    must_agree("texts with weights", sum(bool(case["sparse"]) for case in learned) >= 3, True)
    cases += learned
    models = [{"name": name, "files": small_files(path)} for name, path in folders.items()]
    return {"about": ABOUT, "models": models, "cases": cases}


if __name__ == "__main__":
    generate("representations", everything, transformers, sentence_transformers)
