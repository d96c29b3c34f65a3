"""Train and export the test models of the predictive tasks.

Run it in an environment with torch, transformers, sentencepiece, onnx and onnxruntime, from anywhere:

    python scripts/models/train_tasks.py            all of them, about five minutes on one core
    python scripts/models/train_tasks.py ner squad  only these, with the tokenizers that are there

It writes tests/task_models/<model> (config.json, the tokenizer's files) and tests/model_repository/<model>
(config.pbtxt, 1/model.onnx); of the demo's models both into deploy/model_repository/<model>. One thread and fixed
seeds: the same library versions on the same kind of processor give the same weights. The goldens in tests/goldens are
made from what this writes, so make them again afterwards.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch
from playground_texts import write_playground
from task_folders import files_of, link_tokenizer, repository_of, write_configs, write_sentence_transformers
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
    folder = files_of(spec.name, root)
    folder.mkdir(parents=True, exist_ok=True)
    link_tokenizer(folder, root, spec.tokenizer, spec.max_length)
    model.config.save_pretrained(folder)
    export(spec, model, repository_of(spec.name, root) / "1/model.onnx")
    write_configs(spec.name, spec, root)
    if spec.learns == "meanings":
        export(spec, model, repository_of("minibert_pooled", root) / "1/model.onnx", pooled=True)
        write_sentence_transformers(root, spec, model.config)
    write_playground(folder)


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
