"""The table of all dialects' routes."""

from __future__ import annotations

from hf_transformer.api.dialects import cohere, jina, nim, openai, tei, vllm, voyage
from hf_transformer.api.dialects.routes import Table, by_path

ROUTES: Table = by_path(
    (*openai.ROUTES, *tei.ROUTES, *cohere.ROUTES, *jina.ROUTES, *voyage.ROUTES, *vllm.ROUTES, *nim.ROUTES)
)
"""Each path with its dialects. Errors of a body that can't be read have the form of the first."""
