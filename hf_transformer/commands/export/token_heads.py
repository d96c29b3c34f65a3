"""Layers on a model's token vectors that give sparse and multi-vector embeddings, read from the model's own files.

    1_SpladePooling/config.json             SparseEncoder of sentence-transformers: the pooling of masked-LM logits
    sparse_linear.pt, colbert_linear.pt     FlagEmbedding (BGE-M3): a weight per token, and a vector per token
    1_Dense/config.json, model.safetensors  PyLate and MultiVectorEncoder: a chain of projections
    linear.weight beside the encoder's      ColBERT v2 (HF_ColBERT)

Sources: sentence_transformers/base/modules/dense.py, sparse_encoder/modules/splade_pooling.py and
multi_vector_encoder/model.py of sentence-transformers 6.2; FlagEmbedding/finetune/embedder/encoder_only/m3/modeling.py
of FlagEmbedding 1.3.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor
from transformers.utils.hub import cached_file

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import load_json, read_json
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.types.request import Json

SETTINGS = "config_sentence_transformers.json"
MULTI_VECTOR = ("ColBERT", "MultiVectorEncoder")
"""Values of model_type in SETTINGS: PyLate's, and sentence-transformers'."""
SPARSE_LINEAR, COLBERT_LINEAR = "sparse_linear.pt", "colbert_linear.pt"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
WITHOUT_LAYERS = ("Transformer", "MLMTransformer", "Pooling", "Normalize", "MultiVectorMask", "Dropout")


@dataclass(frozen=True, slots=True)
class Splade:
    """The settings of SpladePooling: the strategy is ``max`` or ``sum``, ``twice`` applies log1p twice."""

    strategy: str = "max"
    twice: bool = False


class Projection(torch.nn.Module):
    """Linear layers on token vectors [B,S,H], with the result [B,S,D].

    With ``normalize``, each token's vector has an L2 norm of 1.
    """

    def __init__(self, layers: Sequence[torch.nn.Module], size: int, *, normalize: bool) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.size = size
        self.normalize = normalize

    def forward(self, vectors: Tensor) -> Tensor:
        for layer in self.layers:
            vectors = layer(vectors)
        return torch.nn.functional.normalize(vectors.to(torch.float32), dim=-1) if self.normalize else vectors


class Residual(torch.nn.Module):
    """A linear layer whose input, projected if sizes differ, is added to its result (``use_residual`` of Dense)."""

    def __init__(self, layer: torch.nn.Module, residual: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.residual = residual

    def forward(self, vectors: Tensor) -> Tensor:
        result: Tensor = self.layer(vectors) + self.residual(vectors)
        return result


@dataclass(frozen=True, slots=True)
class TokenHeads:
    """What a model has besides its token vectors.

    Attributes:
        splade: the pooling of the logits of a masked-LM head.
        weights: a linear layer with one result per token, which a ReLU follows.
        vectors: the projection of token vectors.
        dense: whether the model also has one vector per text.
    """

    splade: Splade | None = None
    weights: torch.nn.Module | None = None
    vectors: Projection | None = None
    dense: bool = False


def read_token_heads(files: ModelFiles, settings: Namespace) -> TokenHeads | None:
    """Reads the layers of a model for sparse or multi-vector embeddings; None for any other model.

    Raises LoadError for missing or invalid files, and for a model with layers that the graph can't contain.
    """
    weights, vectors = (_weights(settings, name) for name in (SPARSE_LINEAR, COLBERT_LINEAR))
    if weights or vectors:
        return TokenHeads(
            weights=_linear(weights, "", SPARSE_LINEAR) if weights else None,
            vectors=_projection([_linear(vectors, "", COLBERT_LINEAR)]) if vectors else None,
            dense=True,
        )
    folder = files.model_folder
    model_type = read_json(folder / SETTINGS, required=False).get("model_type")
    if model_type == "SparseEncoder":
        return TokenHeads(splade=_splade(folder))
    if model_type in MULTI_VECTOR:
        modules = _modules(folder)
        layers = [_dense(folder, path, settings) for kind, path in modules if kind == "Dense"]
        known = any(kind == "Normalize" for kind, _ in modules)
        return TokenHeads(vectors=_projection(layers, normalize=known or model_type == "ColBERT", size=_size(files)))
    if "HF_ColBERT" in files.config.get("architectures", ()):
        return TokenHeads(vectors=_projection([_linear(_stored(settings, ""), "linear.", "linear.weight")]))
    return None


def _size(files: ModelFiles) -> int | None:
    size = files.config.get("hidden_size")
    return size if isinstance(size, int) else None


def _projection(layers: Sequence[torch.nn.Module], *, normalize: bool = True, size: int | None = None) -> Projection:
    """The projection by all layers. Without a layer, ``size`` is the size of the model's own token vectors."""
    sizes = [module.out_features for layer in layers for module in layer.modules() if hasattr(module, "out_features")]
    size = int(sizes[-1]) if sizes else size
    if size is None:
        raise LoadError("config.json has no hidden_size, which the export needs for a model without a Dense module")
    return Projection(layers, size, normalize=normalize)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The kind and folder of each module. Raises LoadError for modules that the graph can't contain."""
    modules = load_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise LoadError(f"{folder / 'modules.json'}: expected a list of modules")
    entries = [(str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]
    for kind, path in entries:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise LoadError(f"{folder / 'modules.json'}: the path of {kind}, {path!r}, leads out of the model folder")
        if kind not in (*WITHOUT_LAYERS, "Dense", "SpladePooling"):
            raise LoadError(f"{folder / 'modules.json'}: the export does not support the module {kind}")
    return entries


def _splade(folder: Path) -> Splade:
    """Raises LoadError for a SparseEncoder that is not a masked LM with SpladePooling."""
    modules = _modules(folder)
    paths = [path for kind, path in modules if kind == "SpladePooling"]
    if not paths or any(kind == "Dense" for kind, _ in modules):
        kinds = ", ".join(kind for kind, _ in modules)
        raise LoadError(f"{folder / 'modules.json'}: expected MLMTransformer and SpladePooling, got {kinds}")
    path = folder / paths[0] / "config.json"
    config = read_json(path, required=True)
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise LoadError(
            f"{path}: expected the strategy max or sum and the activation relu or log1p_relu, "
            f"got {strategy} and {activation}"
        )
    return Splade(strategy, activation == "log1p_relu")


def _dense(folder: Path, path: str, settings: Namespace) -> torch.nn.Module:
    """A Dense module: a linear layer, its activation, and a residual connection. Raises LoadError for other inputs."""
    config = read_json(folder / path / "config.json", required=True)
    # Files of PyLate and of older versions have no names of inputs, and mean token vectors.
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "token_embeddings"):
            raise LoadError(f"{folder / path}: expected {name} to be token_embeddings, got {config[name]}")
    stored = _stored(settings, path)
    linear = _linear(stored, "linear.", path)
    layer = torch.nn.Sequential(linear, _activation(folder / path, config.get("activation_function")))
    if not config.get("use_residual"):
        return layer
    residual = _linear(stored, "residual.", path) if "residual.weight" in stored else torch.nn.Identity()
    return Residual(layer, residual)


def _activation(folder: Path, name: Json) -> torch.nn.Module:
    """The activation by its name in config.json, by default Tanh as in Dense. Raises LoadError if torch has none."""
    module, _, kind = str(name or "torch.nn.Tanh").rpartition(".")
    found = getattr(torch.nn, kind, None) if module.startswith("torch.nn") else None
    if not (isinstance(found, type) and issubclass(found, torch.nn.Module)):
        raise LoadError(f"{folder}: the activation {name} is unknown, expected one of torch.nn")
    activation: torch.nn.Module = found()
    return activation


def _linear(stored: Mapping[str, Tensor], prefix: str, file: str) -> torch.nn.Linear:
    """A linear layer with the stored weight and bias. Raises LoadError without a weight."""
    weight, bias = stored.get(f"{prefix}weight"), stored.get(f"{prefix}bias")
    if weight is None or weight.ndim != 2:
        raise LoadError(f"{file}: expected a matrix {prefix}weight, found {', '.join(sorted(stored)) or 'nothing'}")
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": weight.float()} | ({} if bias is None else {"bias": bias.float()}))
    return layer


def _stored(settings: Namespace, folder: str) -> Mapping[str, Tensor]:
    """The weights in a folder of the model. Raises LoadError without a file of weights."""
    for name in WEIGHTS:
        if stored := _weights(settings, name, folder):
            return stored
    raise LoadError(f"{settings.model_id}: {folder or 'the folder'} has neither {' nor '.join(WEIGHTS)}")


def _weights(settings: Namespace, name: str, folder: str = "") -> Mapping[str, Tensor]:
    """The tensors in a file of the model, from its folder or the hub; {} for an absent file."""
    path = cached_file(
        settings.model_id,
        name,
        subfolder=folder,
        revision=settings.revision or "main",
        token=settings.token,
        _raise_exceptions_for_missing_entries=False,
    )
    if path is None:
        return {}
    try:
        if name.endswith(".safetensors"):
            from safetensors.torch import load_file

            tensors: Mapping[str, Tensor] = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as exc:  # each library has errors of its own, for damaged files
        raise LoadError(f"{name} can't be read: {' '.join(str(exc).split())[:200]}") from exc
    return tensors
