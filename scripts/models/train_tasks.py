"""Train and export the test models of the predictive tasks.

Run it in an environment with torch, transformers, sentencepiece, onnx and onnxruntime, from anywhere:

    python scripts/models/train_tasks.py            all of them, about five minutes on one core
    python scripts/models/train_tasks.py ner squad  only these, with the tokenizers that are there

It writes tests/task_models/<model> (config.json, the tokenizer's files) and tests/model_repository/<model>
(config.pbtxt, 1/model.onnx). One thread and fixed seeds: the same library versions on the same kind of processor give
the same weights. The goldens in tests/goldens are made from what this writes, so make them again afterwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch
from task_folders import link_tokenizer, write_config_pbtxt, write_sentence_transformers
from task_models import MODELS, TaskModel, new_model
from task_onnx import export
from task_tokenizers import TOKENIZERS
from task_training import train
from transformers import AutoTokenizer, PreTrainedTokenizerBase, set_seed

ROOT: Final = Path(__file__).resolve().parents[2]
SEED: Final = 5


def make(spec: TaskModel, tokenizer: PreTrainedTokenizerBase, root: Path) -> None:
    """Train one model and write its two folders."""
    set_seed(SEED)
    model = new_model(spec, tokenizer)
    train(spec, model, tokenizer, SEED)
    folder = root / "tests/task_models" / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    link_tokenizer(folder, spec.tokenizer, spec.max_length)
    model.config.save_pretrained(folder)
    served = root / "tests/model_repository" / spec.name
    export(spec, model, served / "1/model.onnx")
    write_config_pbtxt(served, spec)
    if spec.learns == "meanings":
        export(spec, model, served.with_name("minibert_pooled") / "1/model.onnx", pooled=True)
        write_sentence_transformers(root / "tests", spec, model.config)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and export the predictive test models.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to write into")
    parser.add_argument("names", nargs="*", help="only these models")
    arguments = parser.parse_args()
    names = arguments.names or [spec.name for spec in MODELS]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizers = arguments.root / "tests/task_models/tokenizers"
    if not arguments.names:
        for kind, build in TOKENIZERS.items():
            build().save_pretrained(tokenizers / kind)
    for spec in MODELS:
        if spec.name in names:
            make(spec, AutoTokenizer.from_pretrained(tokenizers / spec.tokenizer), arguments.root)


if __name__ == "__main__":
    main()
