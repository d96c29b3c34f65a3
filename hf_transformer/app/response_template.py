"""A model's response template: --response_template and vLLM's flags, the checkpoint's own, or one of the table.

flags                                           template
--response_template=auto                        the checkpoint's own, else parts that the chat template's markers choose
--tool_call_parser, --reasoning_parser          these parts of the table; a part without a flag is that of the markers
--response_template=NAME                        this part of the table, and the other part that the markers choose
--response_template=FILE                        the JSON in the file
--response_template=none                        none: answers stay as the model writes them
"""

from __future__ import annotations

import logging
from pathlib import Path

from hf_transformer.config.options import Config
from hf_transformer.errors import ConfigError, LoadError, nearest
from hf_transformer.generation.responses.families import CALLS, REASONING, compose, detect, find_calls, find_reasoning
from hf_transformer.generation.responses.model import ModelResponses
from hf_transformer.generation.responses.template import ROLES, Program, TemplateError, compile_template
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Json

logger = logging.getLogger(__name__)

OWN = "hf"
"""vLLM's name of the checkpoint's own template, as a parser."""
DEFAULT_CALLS = "hermes"
"""The part for calls of a chat template without known markers, as in earlier versions."""


def load_responses(config: Config, folder: Path, chat_template: str, tokenizer: Tokenizer) -> ModelResponses | None:
    """Loads what reads a model's answers; see load_response_template for the arguments and errors."""
    program = load_response_template(config, folder, chat_template)
    if program is None:
        return None
    return ModelResponses(program, tokenizer.skipped_tokens(), reads_calls=config.enable_auto_tool_choice)


def load_response_template(config: Config, folder: Path, chat_template: str) -> Program | None:
    """Loads the response template of a model with the tokenizer in ``folder``; None for none.

    Raises:
        ConfigError: a flag names no part of the table.
        LoadError: the file or template that a flag asks for is invalid.
    """
    choice, parsers = config.response_template, (config.tool_call_parser, config.reasoning_parser)
    if choice == "none":
        return None
    if choice != "auto" and not _is_part(choice):
        return _from_file(Path(choice))
    checkpoint = read_json(folder / "tokenizer_config.json", required=False).get("response_template")
    source = f"response_template in {folder / 'tokenizer_config.json'}"
    if OWN in parsers:
        if checkpoint is None:
            raise LoadError(f"{source} is missing; --tool_call_parser={OWN} and --reasoning_parser={OWN} need it")
        return _compiled(checkpoint, source)
    if choice == "auto" and checkpoint is not None and parsers == (None, None):
        try:
            return _compiled(checkpoint, source)
        except LoadError as exc:
            logger.warning("%s; the table of families serves instead", exc)
    calls, reasoning = detect(chat_template)
    calls = calls or DEFAULT_CALLS
    if choice != "auto":
        calls, reasoning = find_calls(choice, chat_template) or calls, find_reasoning(choice) or reasoning
    if parsers[0] is not None:
        calls = _named("tool_call_parser", parsers[0], find_calls(parsers[0], chat_template), list(CALLS))
    if parsers[1] is not None:
        reasoning = _named("reasoning_parser", parsers[1], find_reasoning(parsers[1]), list(REASONING))
    if CALLS[calls].reasoning and reasoning is None:
        reasoning = CALLS[calls].reasoning
    return _compiled(compose(calls, reasoning), " and ".join(filter(None, (calls, reasoning))))


def _is_part(name: str) -> bool:
    return find_calls(name) is not None or find_reasoning(name) is not None


def _named(flag: str, name: str, part: str | None, known: list[str]) -> str:
    """The part of a name. Raises ConfigError without any."""
    if part is None:
        hint = nearest(name, {other: other for other in known})
        raise ConfigError(f"--{flag}={name}: expected vLLM's name of a parser, or one of {', '.join(known)}{hint}")
    return part


def _from_file(path: Path) -> Program:
    """Compiles the template in a file: itself, or the member response_template. Raises LoadError and ConfigError."""
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        is_file = False
    if not is_file:
        names = ", ".join(dict.fromkeys((*CALLS, *REASONING)))
        raise ConfigError(f"--response_template={path}: expected auto, none, a file with JSON, or one of {names}")
    value = read_json(path, required=True)
    return _compiled(value.get("response_template", value), str(path))


def _compiled(template: Json, source: str) -> Program:
    """Compiles a template whose fields an answer of the APIs has. Raises LoadError."""
    try:
        if isinstance(template, dict) and isinstance(fields := template.get("fields"), dict):
            for name in fields:
                if name not in ROLES:
                    raise TemplateError(f"fields.{name}: expected one of {', '.join(ROLES)}, got an unknown field")
            if "content" not in fields and all(_is_explicit(field) for field in fields.values()):
                # Text outside of all regions would be lost.
                template = {**template, "fields": {**fields, "content": {}}}
        return compile_template(template, source)
    except TemplateError as exc:
        raise LoadError(f"{source}: {exc}") from exc


def _is_explicit(field: Json) -> bool:
    return isinstance(field, dict) and not field.keys().isdisjoint(("open", "open_pattern"))
