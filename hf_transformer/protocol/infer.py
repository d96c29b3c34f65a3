"""One inference request and its response, as both forms of the V2 protocol carry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hf_transformer.types import Json, Tensor, Texts


@dataclass(slots=True)  # frozen ones take three times as long to be made
class RequestedOutput:
    """An output that a request names. Nobody changes it. ``binary`` is None where the request as a whole decides."""

    name: str
    binary: bool | None = None


@dataclass(slots=True)
class InferRequest:
    """What a client asks for. Nobody changes it.

    ``id`` is empty if the client gave none. ``outputs`` is empty where it wants all that there are. ``parameters`` are
    those of the request without the protocol's own (``binary_data_output``), which ``binary`` holds: whether outputs
    are sent raw unless they say otherwise themselves. ``model_name`` and ``model_version`` are what a body says beside
    its path, empty if it says nothing.
    """

    inputs: Mapping[str, Tensor | Texts]
    outputs: Sequence[RequestedOutput] = ()
    parameters: Mapping[str, Json] = field(default_factory=dict)
    id: str = ""
    binary: bool = False
    model_name: str = ""
    model_version: str = ""

    def wants_binary(self, output: str) -> bool:
        """Whether an output is sent raw."""
        for wanted in self.outputs:
            if wanted.name == output and wanted.binary is not None:
                return wanted.binary
        return self.binary


@dataclass(slots=True)
class InferResponse:
    """What the client is answered with; ``id`` is the request's own, empty if it had none."""

    model_name: str
    model_version: str
    outputs: Sequence[Tensor]
    id: str = ""
