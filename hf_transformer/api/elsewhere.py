"""What is said of a POST that belongs elsewhere: to another route of this service, or to another server.

OpenAI's clients are often given a base_url without the prefix, or without /v1; they show a message in OpenAI's form
alone, so these get it wherever they ask. KServe's explanations are an explainer's business; its own server answers them
with 501 where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hf_transformer.api.base import RenderError, error_json
from hf_transformer.api.openai.bodies import TASKS, render_error
from hf_transformer.api.openai.routes import root_of


class Hint(NamedTuple):
    """An answer: its status, what it says of the path, and the form of its body."""

    status: int
    said: str
    render: RenderError


Hints = Callable[[str, int], Hint | None]
"""What is said of a path that takes no POST, and of the status that it would be answered with; None where nothing is
known of it."""

_EXPLAIN = re.compile(r"/v1/models/[^/]+:explain|/v2/models/[^/]+(/versions/[^/]+)?/explain")
_OTHERS = ("/v1/models/", "/v2/")
"""Models may be called as OpenAI's routes are."""
_EXPLAINS = "no explanations are given here, only predictions; an InferenceService has them of its explainer"


def hints(prefix: str) -> Hints:
    """For a service with this prefix of the OpenAI API."""
    base = f"{root_of(prefix)}/v1"
    # A path that ends with chat/completions ends with completions, too.
    routes = sorted(TASKS, key=len, reverse=True)

    def hint(path: str, status: int) -> Hint | None:
        if _EXPLAIN.fullmatch(path):
            return Hint(501, _EXPLAINS, error_json)
        if status != 404 or path.startswith(_OTHERS):
            return None
        bare = path.rstrip("/")
        for route in routes:
            if bare.endswith(f"/{route}"):
                where = f"{base}/{route}: the base_url of an OpenAI client is http://HOST:PORT{base}"
                return Hint(404, f"Not Found, expected {where}", render_error)
        if bare.endswith("/score"):
            said = f"Not Found; {base}/rerank gives the scores of documents for a query"
            return Hint(404, said, render_error)
        return None

    return hint
