"""Generates config.pbtxt for an exported model.

Source of the fields: ModelConfig in
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent

from hf_transformer.tasks.declaration import BATCH, DECODED, SEQUENCE

FILES: Mapping[str, str] = {"onnx": "model.onnx", "torchscript": "model.pt"}
"""File names by format, as Triton's backends expect."""
TOP_K = 10
"""The default of --top_k."""
MASKS, ENTRIES = "masks", "entries"
FREE = (BATCH, SEQUENCE, DECODED, MASKS, ENTRIES)
"""Names of dynamic axes, also in ONNX files."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output. Axes are sizes, or names of dynamic axes. The datatype is Triton's name, such as INT64."""

    name: str
    axes: tuple[str | int, ...]
    datatype: str = "FP32"


NAMES = {"onnxruntime": "ONNX Runtime", "pytorch": "PyTorch", "python": "Python"}
"""Display names of Triton's backends."""
QUEUE = """\
# A bounded queue that rejects requests when full or after five seconds:
#   default_queue_policy {
#     max_queue_size: 256
#     timeout_action: REJECT
#     default_timeout_microseconds: 5000000
#   }
"""
BATCHING = f"""\
# Triton merges waiting requests with inputs of the same shape.
dynamic_batching {{
{indent(QUEUE, "  ")}}}
"""
NO_BATCHING = """\
# To merge waiting requests with inputs of the same shape:
#   dynamic_batching {}
"""
THREADS = """
# Threads of one execution. Small models are slower with several threads.
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


def config_pbtxt(inputs: Sequence[GraphTensor], outputs: Sequence[GraphTensor], settings: Namespace, task: str) -> str:
    file = "model.py" if settings.backend == "python" else FILES[settings.format]
    return f"""\
# {settings.model_id.rstrip("/").rpartition("/")[2]} for {task}; the {NAMES[settings.backend]} backend runs 1/{file}.
name: "{settings.model_name}"
backend: "{settings.backend}"
default_model_filename: "{file}"
# Triton takes folders with leading digits for versions, such as sentence-transformers' 2_Normalize.
version_policy {{ specific {{ versions: [ 1 ] }} }}

# The dims below leave out the batch axis, which Triton adds for up to max_batch_size texts.
max_batch_size: {settings.max_batch_size}

input [
{_tensors(inputs, settings)}
]
output [
{_tensors(outputs, settings)}
]

{BATCHING if settings.dynamic_batching else NO_BATCHING}
# Without a kind: instances on each GPU, or on the CPU without a GPU.
instance_group [ {{ count: {settings.instances} }} ]
{_warmup(inputs, settings)}{THREADS if settings.backend == "python" else ""}"""


def _warmup(inputs: Sequence[GraphTensor], settings: Namespace) -> str:
    """A comment with a first execution on zeros; empty for a model that reads words or spans, which zeros are not."""
    if any(tensor.axes[1:] not in ((SEQUENCE,), (DECODED,)) for tensor in inputs):
        return ""
    lines = "".join(
        f'#     inputs {{ key: "{_name(tensor, index, settings)}" '
        "value { data_type: TYPE_INT64 dims: [ 16 ] zero_data: true } }\n"
        for index, tensor in enumerate(inputs)
    )
    return f"""
# To run a slow first execution (CUDA graphs, TensorRT) before the model is ready:
#   model_warmup [ {{
#     name: "sixteen tokens"
#     batch_size: 1
{lines}#   }} ]
"""


def _name(tensor: GraphTensor, index: int, settings: Namespace) -> str:
    """The name in config.pbtxt. TorchScript files have no tensor names, so the backend reads the index in the name."""
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
