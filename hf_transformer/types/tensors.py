"""Tensors, and the descriptions of models and predictors in the open inference protocol.

Treat instances as immutable. Classes with instances in every request are not frozen: creating a frozen dataclass takes
three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


NUMPY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""numpy's types for the datatypes of the open inference protocol, except BF16 and BYTES, which the codecs handle."""


@dataclass(slots=True)
class Tensor:
    """A named tensor. ``datatype`` is the protocol's name of its type, such as ``INT64``, ``FP32`` or ``BYTES``.

    ``data`` has the tensor's shape. BF16 is widened to float32, since numpy has no bfloat16; BYTES is an object array.
    """

    name: str
    datatype: str
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(slots=True)
class Texts:
    """A client's BYTES tensor of texts, in row-major order.

    A list, because building and reading an array would dominate the time of a short request.
    """

    name: str
    shape: tuple[int, ...]
    texts: list[str]
    datatype: ClassVar[str] = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output in a model's configuration. ``shape`` has no batch axis; -1 is a free axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A predictor's description of a model.

    ``max_batch_size`` is 0 for a model without Triton's batch axis; shapes are complete then. It is None for a
    predictor without a configuration endpoint; shapes then include the batch axis. ``instances`` is the number of
    batches that the model runs concurrently, by its configuration. With ``dynamic_batching``, the predictor merges
    waiting requests.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int | None
    decoupled: bool = False
    instances: int = 1
    dynamic_batching: bool = False


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A predictor's description of itself, with its ``extensions`` of the V2 protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """One version of a model in a predictor's repository.

    ``state`` is READY, UNAVAILABLE, LOADING or UNLOADING, or empty if the model was never loaded. ``reason`` explains
    why it is not ready, if the predictor reports it.
    """

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The service's description of its model, for generic clients.

    ``version`` is the predictor's. ``inputs`` and ``outputs`` are the V2 protocol's texts and answers, whose first axis
    counts the instances. ``max_length`` is in tokens, special tokens included.
    """

    name: str
    version: str
    task: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_length: int
