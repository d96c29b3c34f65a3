"""Make the test models of sparse and multi-vector embeddings: a few thousand random weights, and the real files around.

Run it in an environment with torch, transformers, sentence-transformers, onnx and onnxruntime, from the root:

    .venv-models/bin/python scripts/models/representation_models.py

    splade     a SparseEncoder of sentence-transformers: the logits of a masked LM, max pooling; negative biases keep
               vectors sparse, and leave the empty text without a weight
    m3         the files of BGE-M3: CLS pooling, sparse_linear.pt and colbert_linear.pt; three outputs in one graph
    colbert    the files of PyLate 1: a Dense module, markers that are added tokens, queries of 32 tokens

It writes tests/task_models/<model> and tests/model_repository/<model>, without training: the answers are compared with
the libraries' for the same weights, and need not make sense. Fixed seeds give the same weights again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from short_names import shorten
from task_folders import OLD_MODES, OLD_TYPES, link_tokenizer, write_json
from transformers import AutoTokenizer, set_seed

ROOT: Final = Path(__file__).resolve().parents[2]
SEED: Final = 11
SIZE: Final = 16
VECTOR: Final = 80
"""Components of a ColBERT token's vector: more than 64, to which a test shortens them."""
LENGTH: Final = 128
MARKERS: Final = ("[Q] ", "[D] ")
OPSET: Final = 17
VERSIONS: Final = {"sentence_transformers": "4.0.2", "transformers": "4.48.2", "pytorch": "2.5.1"}


def settings_of(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 2 * SIZE,
        "max_position_embeddings": LENGTH + 2,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.3,
    }


def varied(model: Any) -> Any:
    """The model with biases and norms that all differ: ONNX files store equal weights once."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.1 * torch.randn_like(weight)
    return model.train(False)


def save(model: Any, folder: Path) -> None:
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)


def write_modules(folder: Path, modules: list[tuple[str, str]], settings: dict[str, Any]) -> None:
    """modules.json, with the folder and type of each module, and the files of the whole model."""
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)
    write_json(folder / "config_sentence_transformers.json", {"__version__": VERSIONS, **settings})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": LENGTH, "do_lower_case": False})


def splade(folder: Path, tokenizer: Any) -> None:
    model = varied(transformers.BertForMaskedLM(transformers.BertConfig(**settings_of(tokenizer))))
    with torch.no_grad():
        highest = model(**tokenizer("", return_tensors="pt")).logits[0].amax(0)
        model.cls.predictions.bias -= highest + 1.5 * highest.std()
    save(model, folder)
    module = "sentence_transformers.sparse_encoder.models"
    modules = [("", f"{module}.MLMTransformer"), ("1_SpladePooling", f"{module}.SpladePooling")]
    write_modules(folder, modules, {"model_type": "SparseEncoder", "prompts": {"query": "", "document": ""}})
    pooling = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": len(tokenizer)}
    write_json(folder / "1_SpladePooling/config.json", pooling)


def m3(folder: Path, tokenizer: Any) -> None:
    config = transformers.XLMRobertaConfig(**settings_of(tokenizer), type_vocab_size=1)
    save(varied(transformers.XLMRobertaModel(config)), folder)
    torch.save({"weight": torch.randn(1, SIZE), "bias": torch.tensor([-0.1])}, folder / "sparse_linear.pt")
    torch.save({"weight": torch.randn(SIZE, SIZE), "bias": torch.randn(SIZE)}, folder / "colbert_linear.pt")
    paths = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    write_modules(folder, [(path, OLD_TYPES[kind]) for path, kind in paths.items()], {})
    pooling = {"word_embedding_dimension": SIZE, **{key: mode == "cls" for mode, key in OLD_MODES.items()}}
    write_json(folder / "1_Pooling/config.json", pooling)


def colbert(folder: Path, tokenizer: Any) -> None:
    from safetensors.torch import save_file

    tokenizer.add_tokens(list(MARKERS))
    save(varied(transformers.BertModel(transformers.BertConfig(**settings_of(tokenizer)))), folder)
    tokenizer.model_max_length = LENGTH
    tokenizer.save_pretrained(folder)
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": torch.randn(VECTOR, SIZE)}, folder / "1_Dense/model.safetensors")
    dense = {"in_features": SIZE, "out_features": VECTOR, "bias": False}
    write_json(folder / "1_Dense/config.json", {**dense, "activation_function": "torch.nn.modules.linear.Identity"})
    settings: dict[str, Any] = {
        "model_type": "ColBERT",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": "MaxSim",
        "query_prefix": MARKERS[0],
        "document_prefix": MARKERS[1],
        "query_length": 32,
        "document_length": 48,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    }
    modules = [("", OLD_TYPES["Transformer"]), ("1_Dense", "pylate.models.Dense.Dense")]
    write_modules(folder, modules, settings)


MODELS: Final = {"splade": (splade, "uncased"), "m3": (m3, "unigram"), "colbert": (colbert, "uncased")}
"""Model -> the function that makes its checkpoint, and its tokenizer."""


def write(name: str, root: Path) -> None:
    """One model: its checkpoint, then its graph with the weights, and all other files."""
    from hf_transformer.commands.export.checkpoint import load_checkpoint
    from hf_transformer.commands.export.command import parse
    from hf_transformer.commands.export.config_pbtxt import config_pbtxt
    from hf_transformer.commands.export.graph import build_graph

    make, kind = MODELS[name]
    set_seed(SEED)
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, name)
        source.mkdir()
        tokenizer = AutoTokenizer.from_pretrained(root / "tests/task_models/tokenizers" / kind)
        tokenizer.save_pretrained(source)
        make(source, tokenizer)
        settings = parse(
            [f"--model_id={source}", f"--output={temporary}/out", "--backend=python", "--max_batch_size=8"], {}
        )
        graph = build_graph(load_checkpoint(settings), settings)
        repository, files = root / "tests/model_repository" / name, root / "tests/task_models" / name
        for folder in (repository, files):
            shutil.rmtree(folder, ignore_errors=True)
        (repository / "1").mkdir(parents=True)
        write_onnx(graph, repository / "1/model.onnx")
        config = config_pbtxt(graph.inputs, graph.outputs, settings, "text_embedding")
        lines = [re.sub(r"\s*#.*", "", line) for line in config.splitlines()]
        kept = [line for line in lines if line and not line.startswith(("default_model_", "version_policy"))]
        (repository / "config.pbtxt").write_text("\n".join(kept) + "\n", encoding="utf-8")
        weights = shutil.ignore_patterns("*.safetensors", "*.pt", *(["tokenizer*"] if name != "colbert" else []))
        shutil.copytree(source, files, ignore=weights)
        if name != "colbert":
            link_tokenizer(files, root, kind, LENGTH)


def write_onnx(graph: Any, path: Path) -> None:
    """Without folded constants, so that weights keep the names by which a checkpoint is made from them."""
    names = [tensor.name for tensor in graph.inputs]
    free = {
        tensor.name: {index: axis for index, axis in enumerate(tensor.axes) if isinstance(axis, str)}
        for tensor in (*graph.inputs, *graph.outputs)
    }
    example = torch.tensor([[2, 40, 50, 60, 3], [2, 70, 3, 0, 0]])
    tensors = {
        "input_ids": example,
        "attention_mask": (example > 0).long(),
        "token_type_ids": torch.zeros_like(example),
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the tracing exporter is old, and keeps the names of weights
        torch.onnx.export(
            graph,
            tuple(tensors[name] for name in names),
            str(path),
            input_names=names,
            output_names=[tensor.name for tensor in graph.outputs],
            dynamic_axes=free,
            opset_version=OPSET,
            external_data=False,
            dynamo=False,
            do_constant_folding=False,
        )
    shorten(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the test models of sparse and multi-vector embeddings.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to write into")
    parser.add_argument("names", nargs="*", help="only these models")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or MODELS:
        write(name, arguments.root)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
