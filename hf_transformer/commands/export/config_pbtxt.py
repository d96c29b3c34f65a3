"""config.pbtxt of an exported model.

The fields are those of ModelConfig in Triton's model_config.proto:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent

FILES: Mapping[str, str] = {"onnx": "model.onnx", "torchscript": "model.pt"}
"""The names by format that Triton's backends look for in the folder of a version."""
TOP_K = 10  # tokens per mask of a reduced fill_mask model, without --top_k
BATCH, SEQUENCE, DECODED, MASKS = FREE = ("batch", "sequence", "decoder_sequence", "masks")
"""Free axes, by the names that they have in an ONNX file."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output: free axes by name, others by size; the datatype as Triton calls it (INT64, FP32, FP16)."""

    name: str
    axes: tuple[str | int, ...]
    datatype: str = "FP32"


NAMES = {"onnxruntime": "ONNX Runtime", "pytorch": "PyTorch", "python": "Python"}
"""Triton's backends, for people to read."""
QUEUE = """\
# A queue that refuses, instead of growing, and gives up what has waited too long:
#   default_queue_policy {
#     max_queue_size: 256
#     timeout_action: REJECT
#     default_timeout_microseconds: 5000000
#   }
"""
BATCHING = f"""\
# Requests that wait are run together, where their texts are of one shape.
dynamic_batching {{
{indent(QUEUE, "  ")}}}
"""
NO_BATCHING = """\
# Requests that wait could be run together, where their texts are of one shape:
#   dynamic_batching {}
"""
THREADS = """
# Of one execution. A small model loses more to several threads than it gains.
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def config_pbtxt(inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], settings: Namespace, task: str) -> str:
    """The whole file."""
    file = "model.py" if settings.backend == "python" else FILES[settings.format]
    warmup = "".join(
        f'#     inputs {{ key: "{_name(tensor, index, settings)}" '
        "value { data_type: TYPE_INT64 dims: [ 16 ] zero_data: true } }\n"
        for index, tensor in enumerate(inputs)
    )
    return f"""\
# {settings.model_id.rstrip("/").rpartition("/")[2]} for {task}; the {NAMES[settings.backend]} backend runs 1/{file}.
name: "{settings.model_name}"
backend: "{settings.backend}"
default_model_filename: "{file}"
# Triton takes a folder for a version by its leading digits, such as sentence-transformers' 2_Normalize.
version_policy {{ specific {{ versions: [ 1 ] }} }}

# Dimensions below leave the batch axis out: Triton adds it, for up to so many texts.
max_batch_size: {settings.max_batch_size}

input [
{_tensors(inputs, settings)}
]
output [
{_tensors(outputs, settings)}
]

{BATCHING if settings.dynamic_batching else NO_BATCHING}
# Without a kind, on each GPU that there is, else on the CPU.
instance_group [ {{ count: {settings.instances} }} ]

# A first execution before the model counts as ready, where that is slow (CUDA graphs, TensorRT):
#   model_warmup [ {{
#     name: "sixteen tokens"
#     batch_size: 1
{warmup}#   }} ]
{THREADS if settings.backend == "python" else ""}"""


def _name(tensor: GraphTensor, index: int, settings: Namespace) -> str:
    """TorchScript keeps no names, so its backend goes by the number behind the name."""
    return f"{tensor.name}__{index}" if settings.format == "torchscript" else tensor.name


def _tensors(tensors: Sequence[GraphTensor], settings: Namespace) -> str:
    entries = []
    for index, tensor in enumerate(tensors):
        dims = ", ".join("-1" if isinstance(axis, str) else str(axis) for axis in tensor.axes[1:])
        free = ", ".join(axis for axis in tensor.axes[1:] if isinstance(axis, str))
        entries.append(
            f'  {{\n    name: "{_name(tensor, index, settings)}"\n    data_type: TYPE_{tensor.datatype}\n'
            f"    dims: [ {dims} ]{free and f'  # free: {free}'}\n  }}"
        )
    return ",\n".join(entries)
