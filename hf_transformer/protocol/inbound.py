"""One inference request and its response, as both forms of the V2 protocol carry them."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field

from hf_transformer.protocol.tensors import Malformed, json_kind, shorten
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


BINARY_DATA, BINARY_DATA_OUTPUT, BINARY_DATA_SIZE = "binary_data", "binary_data_output", "binary_data_size"
CONTENT_TYPE = "content_type"
"""A parameter of an input by which clients of MLServer and Seldon say what a tensor of bytes is."""
TEXT = "str"
"""Its value for text in UTF-8, which is all that BYTES are here."""

_OF_INPUTS = dict.fromkeys((BINARY_DATA_SIZE, CONTENT_TYPE)).keys()
_OF_OUTPUTS = dict.fromkeys((BINARY_DATA,)).keys()
"""Parameters of inputs and of outputs."""

MOST_INPUTS = 16
"""More than any task has."""
MOST_OUTPUTS = 16


def check_inputs(count: int) -> None:
    """Raises Malformed for more inputs than any task has."""
    if count > MOST_INPUTS:
        raise Malformed(f"inputs: more than {MOST_INPUTS} tensors")


def check_outputs(count: int) -> None:
    """Raises Malformed for more outputs than any task has."""
    if count > MOST_OUTPUTS:
        raise Malformed(f"outputs: more than {MOST_OUTPUTS} tensors")


def check_keys(where: str, found: Mapping[str, Json], known: KeysView[str]) -> None:
    """Raises Malformed for a key that means nothing; ``known`` are in the order that messages have."""
    if found.keys() <= known:
        return
    for name in found:
        if name not in known:
            raise Malformed(f"{where}: {shorten(name, 40)!r} is not understood here, expected {', '.join(known)}")


def read_flag(where: str, value: Json) -> bool | None:
    """True, false, or nothing. Raises Malformed."""
    if value is not None and not isinstance(value, bool):
        raise Malformed(f"{where}: expected true or false, got {json_kind(value)}")
    return value


def check_input_parameters(name: str, parameters: Mapping[str, Json]) -> None:
    """Raises Malformed for a parameter of an input that means nothing, or that calls it anything but text."""
    if not parameters or (len(parameters) == 1 and BINARY_DATA_SIZE in parameters):  # as most are
        return
    where = f"inputs: the parameters of tensor {name!r}"
    check_keys(where, parameters, _OF_INPUTS)
    if parameters.get(CONTENT_TYPE, TEXT) != TEXT:
        raise Malformed(f"{where}: {CONTENT_TYPE} is {shorten(parameters[CONTENT_TYPE], 40)!r}, expected {TEXT!r}")


def read_texts(name: str, shape: tuple[int, ...], elements: Sequence[bytes]) -> Texts:
    """The BYTES tensor with these elements, as many as the shape takes. Raises Malformed for one that is no text."""
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            raise Malformed(f"inputs: element {index} of {name!r} is not UTF-8") from None
    return Texts(name, shape, texts)


def requested_outputs(entries: Iterable[tuple[str, Mapping[str, Json]]]) -> list[RequestedOutput]:
    """The outputs of a request, from their checked names and their parameters. Raises Malformed."""
    outputs: dict[str, RequestedOutput] = {}
    for name, parameters in entries:
        if name in outputs:
            raise Malformed(f"outputs: {name!r} comes twice")
        outputs[name] = RequestedOutput(name, _wants_binary(name, parameters) if parameters else None)
    return list(outputs.values())


def _wants_binary(name: str, parameters: Mapping[str, Json]) -> bool | None:
    """What the parameters of an output say of its form. Raises Malformed for others."""
    value = parameters.get(BINARY_DATA)
    if len(parameters) == 1 and isinstance(value, bool):
        return value
    where = f"outputs: the parameters of {name!r}"
    check_keys(where, parameters, _OF_OUTPUTS)
    return read_flag(f"{where}: {BINARY_DATA}", value)
