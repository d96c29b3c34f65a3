"""Tensors, and the descriptions of models and predictors in the open inference protocol.

Treat all objects as immutable. Tensor and Texts are not frozen, since a frozen dataclass takes three times as long to
create.
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
"""The numpy types of the protocol's datatypes. The codecs handle BF16 and BYTES."""


@dataclass(slots=True)
class Tensor:
    """A named tensor. ``datatype`` is a type of the protocol, such as ``INT64``, ``FP32`` or ``BYTES``.

    ``data`` has the tensor's shape. BF16 is a float32 array, since numpy has no bfloat16; BYTES is an object array.
    """

    name: str
    datatype: str
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(slots=True)
class Texts:
    """A client's BYTES tensor of texts in row-major order, a list because arrays are slower for short requests."""

    name: str
    shape: tuple[int, ...]
    texts: list[str]
    datatype: ClassVar[str] = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output in a model's configuration. ``shape`` excludes the batch axis; -1 means a dynamic axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A predictor's description of a model.

    Attributes:
        max_batch_size: 0 for a model without Triton's batch axis; None for a predictor without a configuration
            endpoint, where shapes include the batch axis.
        instances: the number of batches that the model runs concurrently; None if its configuration does not say it,
            as that of an ensemble.
        dynamic_batching: whether the predictor merges waiting requests.
    """

    name: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int | None
    decoupled: bool = False
    instances: int | None = None
    dynamic_batching: bool = False


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A predictor's server metadata, with its ``extensions`` of the V2 protocol."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """A version of a model in a predictor's repository.

    ``state`` is READY, UNAVAILABLE, LOADING or UNLOADING, or empty before the first load. ``reason`` explains the
    state, and may be empty.
    """

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The service's description of its model, for generic clients.

    ``version`` is the predictor's version. ``inputs`` and ``outputs`` are the V2 tensors [instances, ...] of texts and
    answers. ``max_length`` is in tokens, including special tokens.
    """

    name: str
    version: str
    task: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_length: int
