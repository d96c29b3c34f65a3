"""Layers on a model's token vectors that give sparse and multi-vector embeddings, read from the model's own files.

    1_SpladePooling/config.json             SparseEncoder: the pooling of the logits of a masked LM, without weights
    sparse_linear.pt, colbert_linear.pt     FlagEmbedding (BGE-M3): a weight per token, and a vector per token
    1_Dense/config.json, model.safetensors  PyLate and MultiVectorEncoder: projections of token vectors
    linear.weight beside the encoder's      ColBERT v2 (HF_ColBERT)

Sources: base/modules/dense.py and multi_vector_encoder/model.py of sentence-transformers 6.2;
FlagEmbedding/finetune/embedder/encoder_only/m3/modeling.py of FlagEmbedding 1.3.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils.hub import cached_file

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.sparse import SparsePooling
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.sentence_transformers import read_modules
from hf_transformer.types.request import Json

SPARSE_LINEAR, COLBERT_LINEAR = "sparse_linear.pt", "colbert_linear.pt"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class Residual(torch.nn.Module):
    """A layer whose input, projected if sizes differ, is added to its result (``use_residual`` of Dense)."""

    def __init__(self, layer: torch.nn.Module, residual: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.residual = residual

    def forward(self, vectors: Tensor) -> Tensor:
        result: Tensor = self.layer(vectors) + self.residual(vectors)
        return result


@dataclass(frozen=True, slots=True)
class TokenHeads:
    """The layers of a model after its token vectors.

    Attributes:
        splade: the pooling of the logits of a masked-LM head.
        weights: a linear layer with one result per token, which a ReLU follows.
        vectors: the projection of token vectors. The service normalizes its results.
        dense: whether the model also has one vector per text.
    """

    splade: SparsePooling | None = None
    weights: torch.nn.Module | None = None
    vectors: torch.nn.Module | None = None
    dense: bool = False


def read_token_heads(
    files: ModelFiles, sentences: SentenceTransformers | None, settings: Namespace
) -> TokenHeads | None:
    """Reads the layers of a model for sparse or multi-vector embeddings; None for any other model.

    Raises LoadError for missing or invalid files, and for a layer that the graph can't contain.
    """
    weights, vectors = (_tensors(settings, name) for name in (SPARSE_LINEAR, COLBERT_LINEAR))
    if weights or vectors:
        if sentences is None:
            raise LoadError(f"{settings.model_id}: modules.json is missing, which says how vectors are pooled")
        return TokenHeads(
            weights=_linear(weights, "", SPARSE_LINEAR) if weights else None,
            vectors=_linear(vectors, "", COLBERT_LINEAR) if vectors else None,
            dense=True,
        )
    if sentences and sentences.sparse:
        if sentences.sparse.inside:
            raise LoadError(f"{settings.model_id}: the export does not support {sentences.sparse.inside}")
        return TokenHeads(splade=sentences.sparse)
    if not (sentences and sentences.late_interaction):
        return None
    path = files.model_folder / "modules.json"
    if not path.is_file():
        return TokenHeads(vectors=_linear(stored_weights(settings, ""), "linear.", "ColBERT's projection"))
    folders = [folder for kind, folder in read_modules(path) if kind == "Dense"]
    return TokenHeads(vectors=torch.nn.Sequential(*(_dense(files, folder, settings) for folder in folders)))


def _dense(files: ModelFiles, folder: str, settings: Namespace) -> torch.nn.Module:
    """A Dense module: a linear layer, its activation, and a residual connection."""
    path = files.model_folder / folder / "config.json"
    config = read_json(path, required=True)
    # Files of PyLate and of older versions have no names of inputs, and mean token vectors.
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "token_embeddings"):
            raise LoadError(f"{path}: expected {name} to be token_embeddings, got {config[name]}")
    stored = stored_weights(settings, folder)
    layer = torch.nn.Sequential(
        _linear(stored, "linear.", folder), _activation(path, config.get("activation_function"))
    )
    if not config.get("use_residual"):
        return layer
    residual = "residual.weight" in stored
    return Residual(layer, _linear(stored, "residual.", folder) if residual else torch.nn.Identity())


def _activation(path: Path, name: Json) -> torch.nn.Module:
    """The activation by its name in config.json, by default Tanh as in Dense. Raises LoadError if torch has none."""
    module, _, kind = str(name or "torch.nn.Tanh").rpartition(".")
    found = getattr(torch.nn, kind, None) if module.startswith("torch.nn") else None
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise LoadError(f"{path}: the activation {name} is unknown, expected one of torch.nn")
    activation: torch.nn.Module = found()
    return activation


def _linear(stored: Mapping[str, Tensor], prefix: str, where: str) -> torch.nn.Module:
    """A linear layer with the stored weight and bias. Raises LoadError without a weight."""
    weight, bias = stored.get(f"{prefix}weight"), stored.get(f"{prefix}bias")
    if weight is None or weight.ndim != 2:
        raise LoadError(
            f"{where}: expected a matrix {prefix}weight, found {', '.join(sorted(stored)[:3]) or 'nothing'}"
        )
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight.float()} | ({} if bias is None else {"bias": bias.float()}))
    return layer


def stored_weights(settings: Namespace, folder: str) -> Mapping[str, Tensor]:
    """The weights in a folder of the model. Raises LoadError without a file of weights."""
    for name in WEIGHTS:
        if stored := _tensors(settings, name, folder):
            return stored
    raise LoadError(f"{settings.model_id}: {folder or 'the folder'} has neither {' nor '.join(WEIGHTS)}")


def _tensors(settings: Namespace, name: str, folder: str = "") -> Mapping[str, Tensor]:
    """The tensors in a file of the model, from its folder or the hub; {} for an absent file."""
    try:
        path = cached_file(
            settings.model_id,
            name,
            subfolder=folder,
            revision=settings.revision or "main",
            token=settings.token,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,  # the file is in the cache, or absent
        )
        if path is None:
            return {}
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        tensors: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # each library has errors of its own, for damaged files
        raise LoadError(f"{name} can't be read: {' '.join(str(exc).split())[:200]}") from exc
    return tensors
