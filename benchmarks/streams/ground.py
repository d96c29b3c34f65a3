"""Lays out the models of the generation benchmark: two that stream at a known pace, and the tiny GPT-2 of the tests."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from benchmarks.stress.ground import ROOT, Model
from tests.triton_repository import lay_out as lay_out_test_models

FILES: Final = ROOT / "deploy" / "model_repository" / "gpt2"
"""config.json and the tokenizer, of 768 tokens."""
CONFIG: Final = """name: "{name}"
backend: "python"
max_batch_size: {batch}
model_transaction_policy {{ decoupled: true }}
{tensors}
instance_group [ {{ count: 1, kind: KIND_CPU }} ]
parameters {{ key: "milliseconds" value {{ string_value: "{milliseconds}" }} }}
"""
TENSORS: Final = {
    "tokens": [
        "input input_ids INT32 -1",
        "input input_lengths INT32 1",
        "input request_output_len INT32 1",
        "input end_id INT32 1",
        "input runtime_top_k INT32 1",
        "input runtime_top_p FP32 1",
        "input temperature FP32 1",
        "input random_seed UINT64 1",
        "input streaming BOOL 1",
        "output output_ids INT32 -1, -1",
        "output sequence_length INT32 -1",
    ],
    "text": [
        "input text_input STRING 1",
        "input stream BOOL 1",
        "input sampling_parameters STRING 1",
        "output text_output STRING -1",
    ],
}
"""Kind of model -> its tensors: direction, name, type and dims."""
STEPPED: Final = {"gpt2_past": 0.0, "gpt2_logits": 0.0, "gpt2_past_10ms": 0.01}
"""Logits model -> seconds that each of its runs takes longer."""


def model_of(name: str) -> Model:
    """For the service."""
    return Model(name, "GPT2LMHeadModel")


def lay_out(target: Path, milliseconds: float) -> Path:
    """Fill target/triton (the model repository, returned) and target/<model> (tokenizer and config.json)."""
    repository = target / "triton"
    for kind, tensors in TENSORS.items():
        version = repository / kind / "1"
        version.mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name("model.py"), version / "model.py")
        lines = [_tensor(*line.split(maxsplit=3)) for line in tensors]
        (version.parent / "config.pbtxt").write_text(
            CONFIG.format(
                name=kind, batch=16 if kind == "tokens" else 0, milliseconds=milliseconds, tensors="\n".join(lines)
            )
        )
    lay_out_test_models(repository, ["gpt2_past", "gpt2_logits"])
    for name, seconds in STEPPED.items():
        if seconds:
            _slowed(repository, name, seconds)
    for name in (*TENSORS, *STEPPED):
        shutil.copytree(FILES, target / name)
    return repository


def _tensor(direction: str, name: str, datatype: str, dims: str) -> str:
    return f'{direction} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}'


def _slowed(repository: Path, name: str, seconds: float) -> None:
    """The same model with runs that take longer, as those of a large model do however many rows they have."""
    origin = name.rpartition("_")[0]
    shutil.copytree(repository / origin, repository / name, symlinks=True)
    config = repository / name / "config.pbtxt"
    text = config.read_text().replace(f'name: "{origin}"', f'name: "{name}"', 1)
    config.write_text(text + f'parameters {{ key: "seconds" value {{ string_value: "{seconds}" }} }}\n')
