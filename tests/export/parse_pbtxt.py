"""Parses files of config.pbtxt as Triton's own ModelConfig and prints them as JSON, or what is wrong with each.

A program, because tritonclient's copy of the protocol can't share a process with the service's.

python parse_pbtxt.py FILE...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2


def parse(path: str) -> object:
    try:
        config = text_format.Parse(Path(path).read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        return f"{path}: {exc}"
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


if __name__ == "__main__":
    json.dump([parse(path) for path in sys.argv[1:]], sys.stdout)
