"""Writes tests/goldens/responses.json: the messages of transformers' executor and of vLLM's parsers for the answers of
tests/goldens/response_texts.py.

Each runs in an environment of its own, and writes its part:

    .venv/bin/python -m scripts.goldens.generate_responses transformers [--check]
    PATH_OF_AN_ENVIRONMENT_WITH_VLLM/bin/python -m scripts.goldens.generate_responses vllm

vLLM's parsers need neither weights nor a GPU. The second environment needs vLLM 0.33, cohere-melody, and what vLLM
imports; ``pip install torch --extra-index-url INDEX_WITH_CPU_BUILDS`` and ``pip install --no-deps vllm`` keep it small.
The tokenizer is that of the demo model gpt2 with the delimiters of all families as special tokens.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hf_transformer.generation.responses.families import CALLS, REASONING, compose
from tests.goldens.response_texts import FAMILIES, TOOLS, Family, cases

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "tests" / "goldens" / "responses.json"
TOKENIZER: Final = ROOT / "deploy" / "model_repository" / "gpt2"
_SPECIAL: Final = re.compile(r"</?[\w:｜|▁\"-]+>|\[/?[A-Z_]{4,}\]")
Answer = Mapping[str, Any]


def transformers_answers() -> tuple[str, Callable[[Family, str, str], Answer]]:
    """transformers' version, and the message of its executor with the template of our table."""
    import transformers
    from transformers.utils.chat_parsing import parse_response

    def answer(family: Family, case: str, text: str) -> Answer:
        try:
            return {"message": parse_response(text, compose(*family.parts), prefix=family.prompt, tools=[*TOOLS])}
        except (ValueError, KeyError, TypeError) as exc:
            return {"error": type(exc).__name__}

    return transformers.__version__, answer


def special_tokens() -> list[str]:
    """Delimiters of all families."""
    texts = [text for family in FAMILIES.values() for _, text in cases(family)]
    marked = [part.markers for part in CALLS.values()] + [part.markers for part in REASONING.values()]
    texts += [marker for markers in marked for group in markers for marker in group]
    texts += ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "<|python_tag|>", "<seed:think>", "</seed:think>"]
    return sorted({match[0] for text in texts for match in _SPECIAL.finditer(text)} - {"<b>", "</b>"})


def make_tokenizer(has_arguments: bool) -> Any:
    """A tokenizer with the special tokens; Mistral's older ones have no token [ARGS]."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokens = [token for token in special_tokens() if has_arguments or token != "[ARGS]"]
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    return tokenizer


def vllm_answers() -> tuple[str, Callable[[Family, str, str], Answer]]:
    """vLLM's version, and the message of its parsers of a family, as its server asks them for a whole answer.

    Its parsers of reasoning take a text without an opening tag for reasoning, since most chat templates write the tag.
    They are asked about the answers with reasoning only.
    """
    import vllm
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
    from vllm.parser.parser_manager import ParserManager

    tokenizers = {has_arguments: make_tokenizer(has_arguments) for has_arguments in (False, True)}
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}], tools=TOOLS)

    def answer(family: Family, case: str, text: str) -> Answer:
        calls, reasoning = family.vllm
        if not calls:
            return {"error": "vLLM has no parser"}
        tokenizer = tokenizers[family.parts[0] != "mistral"]
        is_harmony = calls == "openai"
        ids = get_encoding().encode(text, allowed_special="all") if is_harmony else tokenizer.encode(text)
        try:
            parser_class = ParserManager.get_parser(
                tool_parser_name=calls,
                reasoning_parser_name=reasoning if "reasoning" in case or is_harmony else None,
                enable_auto_tools=True,
                is_harmony=is_harmony,
            )
            parser = parser_class(tokenizer, request.tools)
            thought, content, called = parser.parse(text, request, enable_auto_tools=True, model_output_token_ids=ids)
        except Exception as exc:
            return {"error": type(exc).__name__}
        found = [{"name": call.name, "arguments": call.arguments} for call in called or []]
        return {"message": {"reasoning": thought, "content": content, "calls": found}}

    return vllm.__version__, answer


def compute(column: str) -> str:
    """Returns the file with one column computed, and the other one kept."""
    version, answer = {"transformers": transformers_answers, "vllm": vllm_answers}[column]()
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {"cases": []}
    kept = {(case["family"], case["case"]): case for case in stored["cases"]}
    lines = []
    for name, family in FAMILIES.items():
        for case, text in cases(family):
            before = kept.get((name, case), {})
            row: dict[str, Any] = {"family": name, "case": case, "text": text}
            for key in ("transformers", "vllm"):
                value = answer(family, case, text) if key == column else before.get(key)
                if value is not None:
                    row[key] = value
            lines.append(json.dumps(row, ensure_ascii=False))
    versions = {key: stored.get(key) for key in ("transformers", "vllm")} | {column: version}
    head = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in versions.items())
    return "{\n" + head + '"cases": [\n' + ",\n".join(lines) + "\n]\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the answers of transformers' executor or of vLLM's parsers.")
    parser.add_argument("column", choices=("transformers", "vllm"), nargs="?", default="transformers")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if an answer is out of date")
    flags = parser.parse_args()
    text = compute(flags.column)
    if not flags.check:
        FILE.write_text(text, encoding="utf-8")
    elif json.loads(text)["cases"] != json.loads(FILE.read_text(encoding="utf-8"))["cases"]:
        raise SystemExit(f"{FILE} is out of date")


if __name__ == "__main__":
    main()
