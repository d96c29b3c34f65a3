"""hf_transformer: text in front of a Triton Inference Server."""

from __future__ import annotations

__version__ = "0.16.0"
