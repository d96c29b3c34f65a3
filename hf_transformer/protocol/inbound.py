"""Inference requests and responses as a server has them over REST and over gRPC: shapes, names, parameters, limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hf_transformer.protocol.tensors import Malformed, check_count, decode_raw, json_kind, raw_elements, shorten
from hf_transformer.types import Json, Tensor, Texts


@dataclass(slots=True)  # a frozen one takes three times as long to make
class InferRequest:
    """A client's request; immutable by convention.

    ``inputs`` are by name. ``outputs`` has the names that the client wants, none if it wants all, and for each whether
    it is sent raw, None where ``binary`` decides. ``parameters`` are the request's without ``binary_data_output``,
    which is in ``binary``. ``id``, ``model_name`` and ``model_version`` are those in the body, empty if there are none.
    """

    inputs: Mapping[str, Tensor | Texts]
    outputs: Mapping[str, bool | None] = field(default_factory=dict)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    id: str = ""
    binary: bool = False
    model_name: str = ""
    model_version: str = ""

    def wants_binary(self, output: str) -> bool:
        """Whether an output is sent raw."""
        wish = self.outputs.get(output)
        return self.binary if wish is None else wish


@dataclass(slots=True)
class InferResponse:
    """The answer to a request; ``id`` is the request's, empty if it had none."""

    model_name: str
    model_version: str
    outputs: Sequence[Tensor]
    id: str = ""


BINARY_DATA, BINARY_DATA_OUTPUT, BINARY_DATA_SIZE = "binary_data", "binary_data_output", "binary_data_size"
CONTENT_TYPE, TEXT = "content_type", "str"
"""The parameter of an input with which clients of MLServer and Seldon tell the content of a tensor of bytes, and its
value for text in UTF-8, the only one that is taken here."""

MOST_TENSORS = 16
"""Inputs, or outputs, of a request: more than any task has."""


def check_number(what: str, count: int) -> None:
    """Raises Malformed for more tensors than any task has."""
    if count > MOST_TENSORS:
        raise Malformed(f"{what}: more than {MOST_TENSORS} tensors")


def check_keys(where: str, found: Mapping[str, Json], known: Sequence[str]) -> None:
    """Raises Malformed for an unknown key."""
    for name in found:
        if name not in known:
            raise Malformed(f"{where}: {shorten(name, 40)!r} is not understood here, expected {', '.join(known)}")


def read_flag(where: str, value: Json) -> bool | None:
    """True, false, or None for null. Raises Malformed for anything else."""
    if value is not None and not isinstance(value, bool):
        raise Malformed(f"{where}: expected true or false, got {json_kind(value)}")
    return value


def check_input_parameters(name: str, parameters: Mapping[str, Json]) -> None:
    """Raises Malformed for an unknown parameter of an input, and for a content other than text."""
    where = f"inputs: the parameters of tensor {name!r}"
    check_keys(where, parameters, (BINARY_DATA_SIZE, CONTENT_TYPE))
    if parameters.get(CONTENT_TYPE, TEXT) != TEXT:
        raise Malformed(f"{where}: {CONTENT_TYPE} is {shorten(parameters[CONTENT_TYPE], 40)!r}, expected {TEXT!r}")


def read_texts(name: str, shape: tuple[int, ...], elements: Sequence[bytes]) -> Texts:
    """The BYTES tensor with these elements, as many as the shape takes. Raises Malformed unless they are UTF-8."""
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            raise Malformed(f"inputs: element {index} of {name!r} is not UTF-8") from None
    return Texts(name, shape, texts)


def read_raw(name: str, datatype: str, shape: tuple[int, ...], raw: memoryview, max_elements: int) -> Tensor | Texts:
    """The input with these raw elements. Raises Malformed and TooLarge as the decoders of requests do."""
    if datatype != "BYTES":
        return Tensor(name, datatype, decode_raw(name, datatype, shape, raw))
    check_count(name, shape, len(raw) // 4, max_elements)  # each element's length takes four bytes
    return read_texts(name, shape, raw_elements(name, shape, raw))


def requested_outputs(entries: Iterable[tuple[str, Mapping[str, Json]]]) -> dict[str, bool | None]:
    """The outputs of a request, from their checked names and their parameters, as InferRequest has them.

    Raises Malformed for a name that comes twice, an unknown parameter, or a ``binary_data`` that is no flag.
    """
    outputs: dict[str, bool | None] = {}
    for name, parameters in entries:
        if name in outputs:
            raise Malformed(f"outputs: {name!r} comes twice")
        where = f"outputs: the parameters of {name!r}"
        check_keys(where, parameters, (BINARY_DATA,))
        outputs[name] = read_flag(f"{where}: {BINARY_DATA}", parameters.get(BINARY_DATA))
    return outputs
