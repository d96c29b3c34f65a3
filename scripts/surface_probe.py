"""Prints what a version of the package declares as one JSON object: options, the help of commands, documents, errors.

    cd CHECKOUT && PYTHONPATH=CHECKOUT python THIS_FILE

It runs in a process of its own, because it imports the package of another checkout. It reads versions back to 0.16.0.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from hf_transformer import errors
from hf_transformer.app.application import build_app
from hf_transformer.commands.export import repository
from hf_transformer.commands.export.config_pbtxt import FILES
from hf_transformer.config.options import all_options, parse_config

COMMANDS = ("doctor", "export", "bench", "demo")
FLAGS = ("--predictor_host=127.0.0.1:1", "--enable_grpc=false", "--model_name=m", "--enable_docs_url")
KEY = "a-key-of-this-probe-0123456789"


def main() -> None:
    json.dump(
        {
            "options": options(),
            "helps": helps(),
            "documents": documents(),
            "errors": request_errors(),
            "exported": exported(),
            "examples": examples(),
        },
        sys.stdout,
    )


def options() -> list[dict[str, Any]]:
    """All flags of ``serve``, with what the reference shows of them."""
    return [
        {
            "flag": option.flag,
            "metavar": option.convert.metavar,
            # Not a description of one that is computed: it is a text, and may be written better.
            "default": "" if option.default_text else option.shown_default,
            "aliases": option.aliases,
            "variables": [variable.name for variable in option.all_variables],
        }
        for option in all_options()
    ]


def helps() -> dict[str, str]:
    """The text of --help of the other commands."""
    return {name: printed(name, "--help") for name in COMMANDS}


def printed(*words: str) -> str:
    command = [sys.executable, "-m", "hf_transformer", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def documents() -> dict[str, Any]:
    """/openapi.json of a service for each of the demo's models, by its name; with keys, for the 401."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        keys.write_text(f"{KEY}\n")
        for config in sorted(Path("deploy/model_repository").glob("*/config.json")):
            flags = [*FLAGS, f"--model_dir={config.parent.resolve()}", f"--api_keys_file={keys}"]
            found[config.parent.name] = asyncio.run(document(build_app(parse_config(flags, {})[0])))
    return found


async def document(app: Any) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", verify=False) as client:
        answer = await client.get("/openapi.json", headers={"x-api-key": KEY})
    return answer.raise_for_status().json()


def request_errors() -> list[str]:
    """Statuses with their gRPC codes, and the words of error bodies in the forms of each API."""
    kinds, known = [errors.RequestError], set()
    while kinds:
        kind = kinds.pop()
        known.add(f"{kind.status} {kind.grpc_code}")
        kinds += kind.__subclasses__()
        known |= {f"{api} {word}" for api, form in forms() for word in error_words(form, kind)}
    return sorted(known)


def forms() -> Iterator[tuple[str, Callable[..., bytes]]]:
    """The functions that write an error in an API's form. 0.16.0 has OpenAI's, with another signature."""
    with suppress(ImportError):
        from hf_transformer.api.openai.fields import render_error

        yield "openai", lambda error, status: render_error(str(error), status)
    with suppress(ImportError):
        from hf_transformer.api import error_forms
        from hf_transformer.api.dialects import tei_form

        yield "openai", error_forms.render_error
        yield "detail", error_forms.render_detail
        yield "anthropic", error_forms.render_anthropic
        yield "tei", tei_form.render_error


def error_words(form: Callable[..., bytes], kind: type[Any]) -> Iterator[str]:
    """The code and the types that a form gives an error; 405 is an answer without an error of its own."""
    error = Exception.__new__(kind)
    error.path, error.expected, error.got, error.hint = (), "", "", ""
    error.limit, error.counted = 1, True
    for status in {kind.status, 405}:
        with suppress(AttributeError):
            found = json.loads(form(error, status))
            inner = found["error"] if isinstance(found.get("error"), dict) else found
            yield from (f"{key} {inner[key]}" for key in ("code", "type", "error_type") if inner.get(key) is not None)


def examples() -> dict[str, str]:
    """A text for each flag that the service takes, as its own tests have it; the path of a file is {file}."""
    try:
        configuring: Any = importlib.import_module("tests.support.configuring")
    except ModuleNotFoundError:
        configuring = importlib.import_module("tests.configuring")
    texts = {option.flag: str(configuring.example(option)[0]) for option in all_options()}
    return {flag: "{file}" if text == configuring.__file__ else text for flag, text in texts.items()}


def exported() -> list[str]:
    """Patterns of the files that ``export`` writes."""
    copied = vars(repository)["SMALL_FILES" if "SMALL_FILES" in vars(repository) else "COPIED"]
    return [*dict.fromkeys(("config.pbtxt", *(f"1/{name}" for name in FILES.values()), "1/model.py", *copied))]


if __name__ == "__main__":
    main()
