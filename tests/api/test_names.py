"""Names of models with slashes beside the words of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from hf_transformer.api.call import path_pattern
from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.app.application import gateway, starlette_app
from hf_transformer.config.options import MODEL_NAME
from tests.api.generating import ServedModel
from tests.support.configuring import config


async def test_a_name_can_not_have_the_path_of_another_route(made: ServedModel) -> None:
    """Fails for a new route of a model whose words names may have."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield

    inner = starlette_app(config(), made.service, lifespan)
    router = gateway(config(), made.service, inner, GatewaySettings()).router
    paths = [route.path for route in inner.routes if isinstance(route, Route)] + router.templates
    ends = {path.partition("{model}")[2].replace("{version}", "1") for path in paths if "{model}" in path} - {""}
    assert {"/info", "/ready", "/infer", "/versions/1", "/versions/1/generate_stream", "/load", ":predict"} <= ends
    for end in ends:
        with pytest.raises(ValueError, match="a/b"):
            MODEL_NAME.read(f"a/b{end}")
    assert MODEL_NAME.read("a/b") == "a/b"


@pytest.mark.parametrize("end", ["", "\n", "\r", "/", "\0"], ids=["path", "line", "return", "slash", "nul"])
def test_a_path_ends_with_its_template(end: str) -> None:
    """A proxy in front may compare the whole path."""
    match = path_pattern("/v2/repository/models/{model}/load").match(f"/v2/repository/models/a/b/load{end}")
    assert (match is not None) == (not end)
