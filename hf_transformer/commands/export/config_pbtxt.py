"""config.pbtxt of an exported model.

The fields are those of ModelConfig in Triton's model_config.proto:
https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from hf_transformer.commands.export.graph import Axis, Graph
from hf_transformer.commands.export.settings import FILES, ExportSettings

WHERE = {
    "onnxruntime": "the ONNX Runtime backend runs 1/model.onnx",
    "pytorch": "the PyTorch backend runs 1/model.pt",
    "python": "the Python backend runs 1/model.py",
}


def tensor_name(name: str, index: int, settings: ExportSettings) -> str:
    """The name of an input or output in Triton: TorchScript keeps none, so its backend goes by the number behind."""
    return f"{name}__{index}" if settings.format == "torchscript" else name


def config_pbtxt(graph: Graph, settings: ExportSettings, task: str) -> str:
    """The whole file."""
    inputs = [
        _tensor(tensor_name(name, index, settings), "INT64", graph.axes_of(name))
        for index, name in enumerate(graph.inputs)
    ]
    outputs = [
        _tensor(tensor_name(output.name, index, settings), output.datatype, output.axes)
        for index, output in enumerate(graph.outputs)
    ]
    sections = [
        f"# {settings.model_id.rstrip('/').rpartition('/')[2]} for {task}; {WHERE[settings.backend]}.\n"
        f'name: "{settings.model_name}"\nbackend: "{settings.backend}"\n'
        f'default_model_filename: "{_filename(settings)}"\n\n'
        "# Dimensions below leave the batch axis out: Triton adds it, for up to so many texts.\n"
        f"max_batch_size: {settings.max_batch_size}\n",
        f"input [\n{_list(inputs)}\n]\noutput [\n{_list(outputs)}\n]\n",
        _batching(settings),
        "# Without a kind, on each GPU that there is, else on the CPU.\n"
        f"instance_group [ {{ count: {settings.instances} }} ]\n",
        _warmup(graph, settings),
    ]
    if settings.backend == "python":
        threads = "# Of one execution. A small model loses more to several threads than it gains.\n"
        sections.append(f'{threads}parameters {{ key: "intra_op_thread_count" value {{ string_value: "1" }} }}\n')
    return "\n".join(sections)


def _filename(settings: ExportSettings) -> str:
    return "model.py" if settings.backend == "python" else FILES[settings.format]


def _tensor(name: str, datatype: str, axes: Sequence[Axis]) -> str:
    dims = ", ".join("-1" if isinstance(axis, str) else str(axis) for axis in axes[1:])
    free = ", ".join(axis for axis in axes[1:] if isinstance(axis, str))
    said = f"  # free: {free}" if free else ""
    return f'  {{\n    name: "{name}"\n    data_type: TYPE_{datatype}\n    dims: [ {dims} ]{said}\n  }}'


def _list(tensors: Sequence[str]) -> str:
    return ",\n".join(tensors)


QUEUE = """\
# A queue that refuses, instead of growing, and gives up what has waited too long:
#   default_queue_policy {
#     max_queue_size: 256
#     timeout_action: REJECT
#     default_timeout_microseconds: 5000000
#   }
"""


def _batching(settings: ExportSettings) -> str:
    if not settings.dynamic_batching:
        return (
            "# Requests that wait could be run together, where their texts are of one shape:\n#   dynamic_batching {}\n"
        )
    said = "# Requests that wait are run together, where their texts are of one shape."
    return f"{said}\ndynamic_batching {{\n{indent(QUEUE, '  ')}}}\n"


def _warmup(graph: Graph, settings: ExportSettings) -> str:
    inputs = "".join(
        f'#     inputs {{ key: "{tensor_name(name, index, settings)}" '
        "value { data_type: TYPE_INT64 dims: [ 16 ] zero_data: true } }\n"
        for index, name in enumerate(graph.inputs)
    )
    said = "# A first execution before the model counts as ready, where that is slow (CUDA graphs, TensorRT):\n"
    return f'{said}#   model_warmup [ {{\n#     name: "sixteen tokens"\n#     batch_size: 1\n{inputs}#   }} ]\n'
