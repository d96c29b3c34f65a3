"""Writes documents.json.xz: /openapi.json of several services, to compare later versions with.

The committed file has the documents of 0.16.0, which came from the hand-written openapi.yaml. It can go, with this
folder, as soon as a release has the generated document.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from hf_transformer.app.application import build_app
from hf_transformer.config.entries import ModelEntries
from tests.api.test_openapi import MODELS, build, described, document_of
from tests.support.configuring import config
from tests.support.triton_repository import task_model_folder

FILE = Path(__file__).with_name("documents.json.xz")
SETTINGS = {
    "keys and no prefix": ("--openai_route_prefix=", "--api_keys_file={keys}"),
    "no predictor": ("--predictor_protocol=none",),
}
"""Flags of further services for fill_mask."""
KEY = "a-key-of-this-test-0123456789"


def documents() -> dict[str, Any]:
    """The document of a service for each task, for all tasks, and for other settings."""
    made = {task: described(task)[1] for task in MODELS}
    with keys_file() as keys:
        for name, flags in SETTINGS.items():
            app = build("fill_mask", *[flag.format(keys=keys) for flag in flags])
            made[name] = asyncio.run(document_of(app, x_api_key=KEY))
    return made | {"all": asyncio.run(document_of_all())}


@contextmanager
def keys_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_text(f"{KEY}\n")
        yield file


async def document_of_all() -> Any:
    """The document of a service with a model for each task, whose names are those of the tasks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "models.json"
        entries = [
            {"model_name": task, "model_dir": str(task_model_folder(model)), "task": task}
            for task, model in MODELS.items()
        ]
        file.write_text(json.dumps(entries))
        flags = [f"--models={file}", "--predictor_host=127.0.0.1:1", "--enable_grpc=false"]
        app = build_app(config(*flags), entries=ModelEntries(flags, {}))
        assert isinstance(app.inner, Starlette)
        async with asyncio.timeout(120), app.inner.router.lifespan_context(app.inner):
            while (document := await document_of(app))["info"]["title"].count(",") < len(MODELS) - 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            return document


if __name__ == "__main__":
    target = Path(sys.argv[1]) if sys.argv[1:] else FILE
    target.write_bytes(lzma.compress(json.dumps(documents()).encode()))
