"""Inference requests and responses as a server has them over REST and over gRPC: shapes, names, parameters, limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hf_transformer.errors import describe
from hf_transformer.protocol.tensors import Malformed, check_count, decode_raw, raw_elements, shorten
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Tensor, Texts


@dataclass(slots=True)  # a frozen one takes three times as long to make
class InferRequest:
    """A client's request; immutable by convention.

    ``inputs`` are by name. ``outputs`` has the names that the client wants, none if it wants all, and for each whether
    it is sent raw, None where ``binary`` decides. ``parameters`` are the request's without ``binary_data_output``,
    which is in ``binary``. ``id``, ``model_name`` and ``model_version`` are those in the body, empty if there are none.
    ``ignored`` has the names of keys and parameters that nobody knows, see ``note_ignored``.
    """

    inputs: Mapping[str, Tensor | Texts]
    outputs: Mapping[str, bool | None] = field(default_factory=dict)
    parameters: Mapping[str, Json] = field(default_factory=dict)
    id: str = ""
    binary: bool = False
    model_name: str = ""
    model_version: str = ""
    ignored: Sequence[str] = ()

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

UNSUPPORTED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification")
"""Parameters of Triton's extensions that say where a tensor is, or change what it holds. They are refused: a client
would take what it finds for its answer."""
MOST_IGNORED, LONGEST_IGNORED = 10, 40
"""Limits of the header: names, and characters of each."""
_NO_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
"""Characters outside an HTTP token (RFC 9110, 5.6.2), which gRPC metadata can't have either."""

MOST_TENSORS = 16
"""Inputs, or outputs, of a request: more than any task has."""


def check_number(what: str, count: int) -> None:
    """Raises Malformed for more tensors than any task has."""
    if count > MOST_TENSORS:
        raise Malformed(f"{what}: more than {MOST_TENSORS} tensors")


def note_ignored(name: str, ignored: list[str]) -> None:
    """Add the name of an unknown, ignored parameter to ``ignored``, made safe for a header."""
    if len(ignored) < MOST_IGNORED:
        shown = _NO_TOKEN.sub("_", name[:LONGEST_IGNORED]) or "_"
        if shown not in ignored:
            ignored.append(shown)


def note_unknown(found: Iterable[str], known: Collection[str], ignored: list[str]) -> None:
    """Add all unknown names to ``ignored``."""
    for name in found:
        if name not in known:
            note_ignored(name, ignored)


def check_parameters(where: str, found: Mapping[str, Json], known: Sequence[str], ignored: list[str]) -> None:
    """Notes the unknown parameters of an input or output. Raises Malformed for one of UNSUPPORTED."""
    for name in found:
        if name in UNSUPPORTED:
            raise Malformed(f"{where}: {name!r} is not understood here, expected {', '.join(known)}")
    note_unknown(found, known, ignored)


def read_flag(where: str, value: Json) -> bool | None:
    """True, false, or None for null. Raises Malformed for anything else."""
    if value is not None and not isinstance(value, bool):
        raise Malformed(f"{where}: expected true or false, got {describe(value)}")
    return value


def check_input_parameters(name: str, parameters: Mapping[str, Json], ignored: list[str]) -> None:
    """Checks an input's parameters, as ``check_parameters``. Raises Malformed for a content other than text, too."""
    where = f"inputs: the parameters of tensor {name!r}"
    check_parameters(where, parameters, (BINARY_DATA_SIZE, CONTENT_TYPE), ignored)
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


def requested_outputs(entries: Iterable[tuple[str, Mapping[str, Json]]], ignored: list[str]) -> dict[str, bool | None]:
    """The outputs of a request, from their checked names and their parameters, as InferRequest has them.

    Raises Malformed for a name that comes twice, a parameter of UNSUPPORTED, or a ``binary_data`` that is no flag.
    """
    outputs: dict[str, bool | None] = {}
    for name, parameters in entries:
        if name in outputs:
            raise Malformed(f"outputs: {name!r} comes twice")
        where = f"outputs: the parameters of {name!r}"
        check_parameters(where, parameters, (BINARY_DATA,), ignored)
        outputs[name] = read_flag(f"{where}: {BINARY_DATA}", parameters.get(BINARY_DATA))
    return outputs
