"""Inference requests and responses of a server, common to REST and gRPC: shapes, names, parameters, limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hf_transformer.errors import Path, describe
from hf_transformer.protocol.rest import BINARY_DATA_SIZE
from hf_transformer.protocol.tensors import Malformed, check_extent, decode_raw, raw_elements
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Tensor, Texts


@dataclass(slots=True)  # creating a frozen one takes three times as long
class InferRequest:
    """A client's request; immutable by convention.

    Attributes:
        inputs: the tensors by name.
        outputs: the requested outputs by name, empty for all. The value says whether the output is raw; None for the
            default in ``binary``.
        parameters: the request's parameters, without ``binary_data_output``.
        id: the id in the body, or empty.
        binary: whether outputs are raw by default (``binary_data_output``).
        model_name, model_version: the model in the body, or empty.
        ignored: names of unknown keys and parameters, see ``note_ignored``.
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
        binary = self.outputs.get(output)
        return self.binary if binary is None else binary


@dataclass(slots=True)
class InferResponse:
    """The response to a request; ``id`` is the request's, or empty."""

    model_name: str
    model_version: str
    outputs: Sequence[Tensor]
    id: str = ""


BINARY_DATA, BINARY_DATA_OUTPUT = "binary_data", "binary_data_output"
BINARY_DATA_PATH, BINARY_DATA_OUTPUT_PATH = ("parameters", BINARY_DATA), ("parameters", BINARY_DATA_OUTPUT)
CONTENT_TYPE, TEXT = "content_type", "str"
"""The parameter by which clients of MLServer and Seldon declare a BYTES input's content, and the only supported value,
UTF-8 text."""

UNSUPPORTED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "classification")
"""Parameters of Triton's extensions that move a tensor's data or change its meaning. The service refuses them, because
ignoring them would produce a wrong answer."""
MAX_IGNORED_NAMES, MAX_IGNORED_CHARACTERS = 10, 40
"""Limits of the header with ignored names: their number, and the length of each."""
_NON_TOKEN = re.compile(r"[^!#$%&'*+.^_`|~0-9A-Za-z-]")
"""Characters that an HTTP token (RFC 9110, 5.6.2) and gRPC metadata can't contain."""
MAX_TENSORS = 16
"""The maximum number of inputs, or outputs, of a request: more than any task has."""


def check_tensor_count(path: Path | str, count: int) -> None:
    """Raises Malformed for more than MAX_TENSORS tensors."""
    if count > MAX_TENSORS:
        raise Malformed(path, f"at most {MAX_TENSORS} tensors", str(count))


def note_ignored(name: str, ignored: list[str]) -> None:
    """Adds the name of an unknown parameter to ``ignored``, in a form that is valid in a header."""
    if len(ignored) < MAX_IGNORED_NAMES:
        token = _NON_TOKEN.sub("_", name[:MAX_IGNORED_CHARACTERS]) or "_"
        if token not in ignored:
            ignored.append(token)


def note_unknown(names: Iterable[str], known: Collection[str], ignored: list[str]) -> None:
    """Adds all unknown names to ``ignored``."""
    for name in names:
        if name not in known:
            note_ignored(name, ignored)


def _check_parameters(parameters: Mapping[str, Json], known: Sequence[str], ignored: list[str]) -> None:
    """Notes the unknown parameters of an input or output. Raises Malformed for a parameter of UNSUPPORTED."""
    for name in parameters:
        if name in UNSUPPORTED:
            raise Malformed("parameters", " or ".join(known), repr(name), "this extension of Triton is not supported")
    note_unknown(parameters, known, ignored)


def read_flag(path: Path | str, value: Json) -> bool | None:
    """True, false, or None for null. Raises Malformed for any other value."""
    if value is not None and not isinstance(value, bool):
        raise Malformed(path, "true or false", describe(value))
    return value


def check_input_parameters(parameters: Mapping[str, Json], ignored: list[str]) -> None:
    """Checks an input's parameters. Raises Malformed for a parameter of UNSUPPORTED and for content other than text."""
    _check_parameters(parameters, (BINARY_DATA_SIZE, CONTENT_TYPE), ignored)
    if parameters.get(CONTENT_TYPE, TEXT) != TEXT:
        content = describe(parameters[CONTENT_TYPE], quote=True)
        raise Malformed(("parameters", CONTENT_TYPE), repr(TEXT), content)


def read_texts(name: str, shape: tuple[int, ...], elements: Sequence[bytes]) -> Texts:
    """The BYTES tensor with these elements. Raises Malformed if their number contradicts the shape or they are not
    UTF-8."""
    texts = []
    for index, element in enumerate(elements):
        try:
            texts.append(element.decode())
        except UnicodeDecodeError:
            raise Malformed(("data", index), "text in UTF-8") from None
    return Texts(name, shape, texts)


def read_raw(name: str, datatype: str, shape: tuple[int, ...], raw: memoryview, max_elements: int) -> Tensor | Texts:
    """The input with these raw elements. Raises Malformed and TooLarge like the decoders of requests."""
    if datatype != "BYTES":
        return Tensor(name, datatype, decode_raw(datatype, shape, raw))
    check_extent(shape, len(raw) // 4, max_elements)  # each element's length takes four bytes
    return read_texts(name, shape, raw_elements(shape, raw))


def requested_outputs(entries: Iterable[tuple[str, Mapping[str, Json]]], ignored: list[str]) -> dict[str, bool | None]:
    """The outputs of a request in InferRequest's form, from their checked names and their parameters.

    Raises Malformed for a repeated name, a parameter of UNSUPPORTED, and a ``binary_data`` that is not a boolean.
    """
    outputs: dict[str, bool | None] = {}
    try:
        for name, parameters in entries:
            if name in outputs:
                raise Malformed("name", "a name of its own", repr(name))
            _check_parameters(parameters, (BINARY_DATA,), ignored)
            outputs[name] = read_flag(BINARY_DATA_PATH, parameters.get(BINARY_DATA))
    except Malformed as error:
        raise error.within(("outputs", len(outputs))) from error
    return outputs
