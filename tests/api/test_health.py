"""vLLM's /health, which its clients ask before they begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.app.application import build_app
from hf_transformer.server.asgi import AsgiApplication
from tests.api.generating import Bench, application
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODEL

BOTH = ("/health", "/openai/health")


async def get(app: AsgiApplication, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        return await client.get(path)


@pytest.mark.parametrize("path", BOTH)
async def test_a_model_that_is_ready(made: Bench, path: str) -> None:
    found = await get(made.app, path)
    assert (found.status_code, found.content) == (200, b"")


@pytest.mark.parametrize("path", BOTH)
async def test_a_model_that_is_not_ready(path: str) -> None:
    found = await get(build_app(config(f"--model_dir={DEMO_MODEL}", "--model_name=bert")), path)
    assert (found.status_code, found.headers["retry-after"]) == (503, "1")
    said: Any = found.json()["error"]
    message = said["message"] if path == "/openai/health" else said
    assert "not ready" in message


@pytest.mark.parametrize(("prefix", "path"), [("", "/health"), ("a/b", "/a/b/health")], ids=["none", "long"])
async def test_another_prefix(made: Bench, prefix: str, path: str) -> None:
    app = application(made.service, None, f"--openai_route_prefix={prefix}")
    assert (await get(app, path)).status_code == 200
    assert (await get(app, "/openai/health")).status_code == 404


@pytest.mark.parametrize("path", BOTH)
async def test_no_key_is_needed(tmp_path: Path, path: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alpha-key\n")
    app = build_app(config(f"--model_dir={DEMO_MODEL}", "--model_name=bert", f"--api_keys_file={keys}"))
    assert (await get(app, path)).status_code == 503
    assert (await get(app, f"{path}/")).status_code == 401
