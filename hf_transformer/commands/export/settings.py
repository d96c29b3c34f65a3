"""The flags of ``hf-transformer export``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hf_transformer.commands.flags import FlagParser
from hf_transformer.config.option import BOOLEAN, integer, name_list, number
from hf_transformer.errors import ConfigError

Format = Literal["onnx", "torchscript"]

BACKENDS: Mapping[str, tuple[str, ...]] = {"onnx": ("onnxruntime", "python"), "torchscript": ("pytorch", "python")}
"""Triton's backends that run each format, the default first."""
FILES: Mapping[str, str] = {"onnx": "model.onnx", "torchscript": "model.pt"}
"""The names that Triton's backends look for in the folder of a version."""
TOLERANCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 5e-2}
"""The default of --tolerance by precision."""
INPUT_NAMES = name_list("NAMES", "different names separated by commas, such as input_ids,attention_mask")

TOP_K = 10
"""Tokens per mask of a reduced fill_mask model, without --top_k."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """The checked flags. ``inputs`` is empty for all that the model takes; ``top_k`` is None where it is not given."""

    model_id: str
    output: Path
    model_name: str
    task: str | None
    format: Format
    backend: str
    revision: str | None
    inputs: tuple[str, ...]
    max_batch_size: int
    precision: Literal["fp32", "fp16"]
    instances: int
    dynamic_batching: bool
    reduce: bool
    top_k: int | None
    tolerance: float
    force: bool
    trust_remote_code: bool
    token: str | None = field(repr=False)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> ExportSettings:
    """Reads the flags. Exits with code 2 and a message for an unknown one or a value that is none.

    Raises:
        ConfigError: flags contradict each other.
    """
    given = vars(_parser(environ).parse_args(argv))
    backends = BACKENDS[given["format"]]
    backend = given["backend"] or backends[0]
    if backend not in backends:
        raise ConfigError(
            f"--backend={backend}: does not run --format={given['format']}, expected {' or '.join(backends)}"
        )
    name = given["model_name"] or Path(given["model_id"]).name
    if not re.fullmatch(r"""[^\s/?#%"'\\.][^\s/?#%"'\\]*""", name):
        raise ConfigError(
            f"--model_name={name}: expected a name without spaces, quotes and / \\ ? # %, and no dot first"
        )
    if given["top_k"] is not None and not given["reduce"]:
        raise ConfigError("--top_k: belongs to --reduce, which is not set")
    if backend == "python" and re.search(r"\s", str(given["output"].resolve())):
        raise ConfigError(f"--output={given['output']}: a path with spaces, where Triton's Python backend can't start")
    folder = Path(given["model_id"]).expanduser()
    given |= {
        "model_id": str(folder) if folder.is_dir() else given["model_id"],
        "backend": backend,
        "model_name": name,
        "tolerance": TOLERANCES[given["precision"]] if given["tolerance"] is None else given["tolerance"],
    }
    return ExportSettings(**given)


def _parser(environ: Mapping[str, str]) -> FlagParser:
    parser = FlagParser(
        "export", "Export a Hugging Face model for Triton, with the tokenizer beside it, and check the result."
    )
    add, count = parser.add, integer(1)
    add("model_id", required=True, metavar="ID", help="model on the Hugging Face hub, or a local folder")
    add("output", required=True, type=Path, metavar="FOLDER", help="model repository to write the model's folder into")
    add("model_name", metavar="NAME", help="name of the model in Triton and in the service [the end of --model_id]")
    add("task", metavar="NAME", help="what the model does [by the architecture in config.json]")
    add("format", choices=tuple(BACKENDS), default="onnx", help="format of the model file [onnx]")
    add("backend", choices=("onnxruntime", "pytorch", "python"), help="Triton's backend [that of the format]")
    add("revision", metavar="REVISION", help="a branch, tag or commit of --model_id [main]")
    add(
        "inputs",
        INPUT_NAMES,
        default=(),
        help="the model's inputs, with commas [all that it takes]",
    )
    add("max_batch_size", count, default=32, help="texts in one batch [32]")
    add("precision", choices=tuple(TOLERANCES), default="fp32", help="of the weights and outputs [fp32]")
    add("instances", count, default=1, help="copies of the model in Triton [1]")
    add("dynamic_batching", BOOLEAN, default=True, help="let Triton run waiting requests together [true]")
    add("reduce", action="store_true", help="end the graph in the task's own reduction: bytes instead of megabytes")
    add("top_k", count, help=f"tokens per mask of a reduced fill_mask model [{TOP_K}]")
    add("tolerance", number(zero=True), help="largest difference that counts as the same [0.001, fp16 0.05]")
    add("force", action="store_true", help="replace the model's folder if it is there")
    add("trust_remote_code", action="store_true", help="allow a model that comes with Python code of its own")
    add("token", default=environ.get("HF_TOKEN"), metavar="TOKEN", help="for private models; better: HF_TOKEN")
    return parser
