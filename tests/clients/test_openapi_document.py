"""openapi-spec-validator finds no fault with the documents that are served for each task and setting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.api.test_openapi import MODELS, build, document_of
from tests.clients.conftest import clients_environment, output


async def write_documents(folder: Path) -> list[str]:
    """Writes the document of each task, of a service without OpenAI's prefix, and of one with API keys."""
    (folder / "keys").write_text("a-key\n")
    settings: list[tuple[str, str]] = [(task, "--enable_grpc=false") for task in MODELS]
    settings += [("fill_mask", "--openai_route_prefix="), ("text_generation", f"--api_keys_file={folder / 'keys'}")]
    files = []
    for number, (task, flag) in enumerate(settings):
        document = await document_of(build(task, flag), authorization="Bearer a-key")
        file = folder / f"{number}_{task}.json"
        file.write_text(json.dumps(document))
        files.append(str(file))
    return files


def test_the_documents_are_valid(tmp_path: Path) -> None:
    files = asyncio.run(write_documents(tmp_path))
    validator = str(clients_environment() / "bin" / "openapi-spec-validator")
    said = output([validator, "--schema=3.1", "--errors=all", *files], tmp_path)
    assert said.count(": OK") == len(files)
