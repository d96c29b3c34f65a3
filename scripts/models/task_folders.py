"""The files around the weights of a predictive test model: the tokenizer, sentence-transformers' files, Triton's."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from task_models import TaskModel
from transformers import PretrainedConfig

POOLINGS: Final = {
    "minibert_mean": "mean",
    "minibert_cls": "cls",
    "minibert_max": "max",
    "minibert_last": "lasttoken",
}
"""Embedding models, all with the same weights -> how the tokens of a text become one vector."""
POOLED: Final = "minibert_pooled"
NEWER: Final = ("minibert_last",)
"""These have the files that sentence-transformers 6 writes, the others those of version 3."""
OLD_TYPES: Final = {kind: f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")}
NEW_TYPES: Final = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
OLD_MODES: Final = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SHORTER: Final = 64
"""minibert_cls reads this many tokens, fewer than the weights could: its sentence_bert_config.json says so."""

DEMO: Final = ("sentiment", "nli", "cross", "ner", "squad", "minibert_mean")
"""The demo serves these, so they are whole in deploy/model_repository, which the wheel carries."""

_BIG: Final = "model_max_length"


def files_of(name: str, root: Path) -> Path:
    """The folder with a model's config.json and tokenizer."""
    return root / ("deploy/model_repository" if name in DEMO else "tests/task_models") / name


def repository_of(name: str, root: Path) -> Path:
    """The folder with what Triton needs of a model."""
    return root / ("deploy/model_repository" if name in DEMO else "tests/model_repository") / name


def write_configs(name: str, spec: TaskModel, root: Path, *, pooled: bool = False) -> None:
    """config.pbtxt for the tests' Python backend; of the demo's models for both backends, and their model.py."""
    folder = repository_of(name, root)
    if name not in DEMO:
        write_config_pbtxt(folder, spec, pooled=pooled)
        return
    write_config_pbtxt(folder, spec, backend="onnxruntime")
    write_config_pbtxt(folder, spec, file="configs/python.pbtxt")
    _link(folder / "1/model.py", root / "deploy/model_repository/bert/1/model.py")


def link_tokenizer(folder: Path, root: Path, kind: str, max_length: int) -> None:
    """tokenizer.json as a link to the shared one, tokenizer_config.json with this model's length.

    The tokenizer of the demo's models is a file of their first one: nothing in deploy/ points into tests/.
    """
    shared = root / "tests/task_models/tokenizers" / kind
    first = root / "deploy/model_repository" / DEMO[0]
    if folder != first:
        _link(folder / "tokenizer.json", (first if folder.parent == first.parent else shared) / "tokenizer.json")
    elif not (shared / "tokenizer.json").is_symlink():
        (shared / "tokenizer.json").rename(first / "tokenizer.json")
        _link(shared / "tokenizer.json", first / "tokenizer.json")
    settings = json.loads((shared / "tokenizer_config.json").read_text(encoding="utf-8"))
    write_json(folder / "tokenizer_config.json", {**settings, _BIG: max_length})


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent))


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_sentence_transformers(root: Path, spec: TaskModel, config: PretrainedConfig) -> None:
    """The folders of all embedding models: sentence-transformers' files, and what Triton needs."""
    for name in (*POOLINGS, POOLED):
        folder = files_of(name, root)
        folder.mkdir(parents=True, exist_ok=True)
        link_tokenizer(folder, root, spec.tokenizer, spec.max_length)
        config.save_pretrained(folder)
        if name != POOLED:
            _write_modules(folder, name, config.hidden_size, spec.max_length)
        write_configs(name, spec, root, pooled=name == POOLED)


def _write_modules(folder: Path, name: str, size: int, max_length: int) -> None:
    newer = name in NEWER
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": NEW_TYPES[kind] if newer else OLD_TYPES[kind]}
            for index, (path, kind) in enumerate(_modules(name))
        ],
    )
    pooling = POOLINGS[name]
    if newer:
        settings = {"embedding_dimension": size, "pooling_mode": pooling, "include_prompt": True}
        transformer: dict[str, Any] = {
            "transformer_task": "feature-extraction",
            "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
            "module_output_name": "token_embeddings",
        }
    else:
        settings = {
            "word_embedding_dimension": size,
            **{key: kind == pooling for kind, key in OLD_MODES.items()},
            "include_prompt": True,
        }
        length = SHORTER if name == "minibert_cls" else max_length
        transformer = {"max_seq_length": length, "do_lower_case": False}
    write_json(folder / "1_Pooling/config.json", settings)
    write_json(folder / "sentence_bert_config.json", transformer)
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "6.2.0" if newer else "3.0.0"},
            "prompts": {"query": "query: ", "passage": "passage: "} if name == "minibert_mean" else {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )


def _modules(name: str) -> list[tuple[str, str]]:
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    return [*modules, ("2_Normalize", "Normalize")] if name == "minibert_mean" else modules


def write_config_pbtxt(
    folder: Path,
    spec: TaskModel,
    *,
    pooled: bool = False,
    comment: str = "",
    file: str = "config.pbtxt",
    backend: str = "python",
) -> None:
    """Triton's configuration: batches of up to 8. The comment says by default what the model is."""
    if pooled:
        outputs = {"sentence_embedding": str(spec.hidden_size)}
    elif spec.learns == "meanings":
        outputs = {"last_hidden_state": f"-1, {spec.hidden_size}"}
    elif spec.learns == "span":
        outputs = {name: "-1" for name in spec.outputs}
    else:
        outputs = {"logits": f"-1, {len(spec.labels)}" if spec.learns == "tokens" else str(len(spec.labels))}
    inputs = ",\n".join(_tensor(name, "TYPE_INT64", "-1") for name in spec.inputs)
    declared = ",\n".join(_tensor(name, "TYPE_FP32", dims) for name, dims in outputs.items())
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(
        f"# {comment or _said(folder.name, spec)}\n"
        f'name: "{folder.name}"\nbackend: "{backend}"\nmax_batch_size: 8\n\n'
        f"input [\n{inputs}\n]\noutput [\n{declared}\n]\n\n"
        "dynamic_batching { }\n\ninstance_group [ { count: 1, kind: KIND_CPU } ]\n",
        encoding="utf-8",
    )


def _said(name: str, spec: TaskModel) -> str:
    if name == POOLED:
        return "One vector per text, pooled inside the model."
    if name in POOLINGS:
        return f"A vector per token, for {POOLINGS[name]} pooling."
    return f"{spec.architecture} with the {spec.tokenizer} tokenizer: {', '.join(spec.labels) or 'spans of answers'}."


def _tensor(name: str, dtype: str, dims: str) -> str:
    return f'  {{\n    name: "{name}"\n    data_type: {dtype}\n    dims: [ {dims} ]\n  }}'
