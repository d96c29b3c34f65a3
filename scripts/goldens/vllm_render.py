"""Asks vLLM's render servers for the answers to the requests in tests/goldens/vllm_render.json, and writes them there.

vLLM is no dependency: its server, here of the demo model gpt2, needs neither weights nor a GPU.

    vllm launch render deploy/model_repository/gpt2 --served-model-name gpt2 --port 8001 \\
        --enable-auto-tool-choice --tool-call-parser hermes

``framed`` is the same model with special tokens around each text: ``python -m scripts.goldens.vllm_render
--framed FOLDER`` makes its folder. Then ``python -m scripts.goldens.vllm_render VERSION URL_OF_GPT2
URL_OF_FRAMED``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "tests" / "goldens" / "vllm_render.json"
PLAIN: Final = ROOT / "deploy" / "model_repository" / "gpt2"
FIRST, LAST = ("<|endoftext|>", 0), ("<|im_end|>", 2)
"""The special tokens around a text of the framed model."""


def make_framed(folder: Path) -> Path:
    """Copies the demo model gpt2 with a tokenizer that adds special tokens before and after a text."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in PLAIN.glob("*.json"):
        shutil.copy(path, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    first, last = ({"SpecialToken": {"id": token, "type_id": 0}} for token, _ in (FIRST, LAST))
    tokenizer["post_processor"] |= {
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}, last],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (FIRST, LAST)},
    }
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def ask(url: str, path: str, body: Any) -> tuple[int, Any]:
    """Posts a body. Returns the status, and the answer, None for an error."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None


def write(version: str, urls: Sequence[str]) -> None:
    """Asks the servers at both URLs, that of gpt2 first, and writes their answers. Of the same version, it asks only
    for those that the file lacks."""
    goldens = json.loads(FILE.read_text(encoding="utf-8"))
    for case in goldens["cases"]:
        if goldens["vllm"] != version or "answers" not in case:
            case["answers"] = [ask(url, case["path"], case["body"]) for url in urls]
    rows = ",\n".join("  " + json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in goldens["cases"])
    FILE.write_text(f'{{\n"vllm": "{version}",\n"cases": [\n{rows}\n]\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the answers of vLLM's render servers.")
    parser.add_argument("--framed", type=Path, metavar="FOLDER", help="only make the folder of the framed model")
    parser.add_argument("version", nargs="?", metavar="VERSION", help="version of vLLM")
    parser.add_argument("urls", nargs="*", metavar="URL", help="URL of gpt2, and URL of the framed model")
    arguments = parser.parse_args()
    if arguments.framed:
        make_framed(arguments.framed)
    elif len(arguments.urls) == 2:
        write(arguments.version, arguments.urls)
    else:
        parser.error("expected --framed FOLDER, or VERSION and two URLs")


if __name__ == "__main__":
    main()
