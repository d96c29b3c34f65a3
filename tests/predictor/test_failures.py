"""The predictor's messages in errors."""

from __future__ import annotations

import pytest

from hf_transformer.predictor.failures import quoted

TRACEBACK = """Failed to process the request(s) for model 'm', message: ValueError: no such file '/srv/my data/a.txt'

At:
  /opt/models/m/1/model.py(42): execute
"""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (TRACEBACK, r"ValueError: no such file 'a.txt'\x0a\x0aAt:\x0a model.py(42): execute"),
        ("failed to open /opt/models/m/1/model.onnx: no such file", "failed to open model.onnx: no such file"),
        *[(text, text) for text in ("[1,2]/[1,3] of (n)/a", "https://example.com/a/b, 3/4")],
        ("  ", "no message"),
    ],
    ids=["traceback", "path", "shapes", "address", "empty"],
)
def test_a_message_of_the_predictor_names_no_folder(message: str, shown: str) -> None:
    assert " ".join(quoted(message).split()).endswith(shown)


def test_a_message_of_the_predictor_is_shortened() -> None:
    assert len(quoted("x" * 9000)) <= 510
