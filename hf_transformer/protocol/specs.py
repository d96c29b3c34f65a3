"""The names that Triton's configuration has for datatypes."""

from __future__ import annotations

from hf_transformer.protocol.datatypes import DATATYPES, Malformed, shorten
from hf_transformer.types import Json


def config_datatype(name: str, data_type: Json) -> str:
    """The protocol's datatype for a configuration's: TYPE_INT64 is INT64, TYPE_STRING is BYTES.

    Raises:
        Malformed: it is none of Triton's.
    """
    if data_type == "TYPE_STRING":
        return "BYTES"
    if isinstance(data_type, str) and data_type.startswith("TYPE_"):
        datatype = data_type.removeprefix("TYPE_")
        if datatype in DATATYPES and datatype != "BYTES":
            return datatype
    raise Malformed(f"tensor {name!r} has the unknown data_type {shorten(data_type)!r}")


def data_type(datatype: str) -> str:
    """A configuration's name for the protocol's datatype: INT64 is TYPE_INT64, BYTES is TYPE_STRING."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
