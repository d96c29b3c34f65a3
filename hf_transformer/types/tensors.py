"""Tensors, and the descriptions of models and predictors in the open inference protocol.

Treat instances as immutable. Those made for every request are not frozen: a frozen dataclass takes three times as long
to make.
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
"""Datatypes of the open inference protocol that numpy has too; BF16 and BYTES are handled by the codecs."""


@dataclass(slots=True)
class Tensor:
    """A named tensor as it travels: ``datatype`` is the protocol's name of the type (``INT64``, ``FP32``, ``BYTES``).

    ``data`` has the tensor's shape. BF16 arrives widened to float32 (numpy has no bfloat16), BYTES as an object array.
    """

    name: str
    datatype: str
    data: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(slots=True)
class Texts:
    """A BYTES tensor that a client has sent: its elements are text, in the order of rows (row-major).

    Not an array: short requests would spend more time on making one and reading it again than on anything else.
    """

    name: str
    shape: tuple[int, ...]
    texts: list[str]
    datatype: ClassVar[str] = "BYTES"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output in a model's configuration; ``shape`` has no batch dimension, -1 is a free axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the predictor says of a model.

    ``max_batch_size`` is 0 for a model without a batch dimension of Triton's own (shapes are then complete).
    ``max_batch_size`` is None where the predictor can't tell (it has no configuration endpoint); the specs' shapes
    are then those of the metadata, batch axis included. ``instances`` is how many batches the model works on at a time,
    as far as its configuration tells. ``dynamic_batching`` says that the predictor merges requests which wait.
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
    """What a predictor says of itself. ``extensions`` are those of the V2 protocol that it has."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepositoryEntry:
    """One model, in one version, of a predictor's repository.

    ``state`` is READY, UNAVAILABLE, LOADING or UNLOADING, and empty for one that was never loaded; ``reason`` says why
    it is not ready, where the predictor tells.
    """

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the service says of the model that it serves, so that a generic client can drive it.

    ``version`` is the predictor's. ``inputs`` and ``outputs`` are those that clients of the V2 protocol send and get:
    text in, answers out; the first axis counts the instances. ``max_length`` is in tokens, special ones included.
    """

    name: str
    version: str
    task: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_length: int
