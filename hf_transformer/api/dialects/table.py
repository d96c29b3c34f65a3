"""The table of all dialects' routes."""

from __future__ import annotations

from hf_transformer.api.dialects import openai, tei
from hf_transformer.api.dialects.routes import Table, by_path

ROUTES: Table = by_path((*openai.ROUTES, *tei.ROUTES))
"""Each path with its dialects. Errors of a body that can't be read have the form of the first."""
