"""Renders --help from the declared options. scripts/config_docs renders the reference page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from hf_transformer.config.option import PREFIX, Option
from hf_transformer.errors import ConfigError, nearest

USAGE = """\
Usage: hf-transformer [serve] --predictor_host=HOST:PORT [flags]
       hf-transformer COMMAND [flags]

Puts tokenizing and decoding in front of a model that Triton Inference Server runs.

Examples
  hf-transformer demo
  hf-transformer --predictor_host=triton:8000 --model_name=bert --model_id=ORG/BERT
  hf-transformer doctor --predictor_host=triton:8000 --model_name=bert
  hf-transformer bench --url=http://localhost:8080
"""
FURTHER_COMMANDS = {
    "help": "explain a command, flags or a flag: help export, help limits",
    "version": "show the version",
}
RULES = f"""\
Flags may be written with hyphens or underscores, as --flag value or --flag=value; a true/false flag may be
bare. A flag wins over its variable, a variable over the default. Every flag has the variable {PREFIX}<FLAG IN
CAPITALS>; further ones are named below. An empty variable counts as unset. Unknown flags are ignored with a
warning, unless --strict_flags is set.
"""
MOST_USED = {
    "predictor_host": "where Triton listens",
    "predictor_protocol": "REST (v2, the default), gRPC (grpc-v2) or none",
    "model_name": "the model's name, here and at Triton",
    "model_dir": "folder with config.json and the tokenizer",
    "model_id": "model on the Hugging Face hub instead",
    "task": "the model's task (from config.json)",
    "http_port": "port to listen on (8080)",
    "workers": "processes that share the port (1)",
}
"""Flags in the overview, with short descriptions."""


def overview(options: Sequence[Option], commands: Mapping[str, str], width: int) -> str:
    """Renders --help on one screen of ``width`` columns. ``commands`` maps each command to its description."""
    by_name = {option.name: option for option in options}
    used = {f"--{name} {by_name[name].convert.metavar}": text for name, text in MOST_USED.items()}
    groups = {}
    for title, members in groups_of(options).items():
        names = ", ".join(option.name for option in members if option.name not in MOST_USED)
        groups[group_key(title)] = f"{title}: {names}"
    groups["all"] = "All flags"
    parts = [
        USAGE,
        "Commands",
        *entries({**commands, **FURTHER_COMMANDS}, width),
        "",
        "Flags most used",
        *entries(used, width),
        "",
        "More flags: hf-transformer --help=GROUP",
        *entries(groups, width),
        "",
        f"One flag: --help=FLAG. Each has a variable, such as {PREFIX}WORKERS.",
    ]
    return "\n".join(parts) + "\n"


def entries(texts: Mapping[str, str], width: int) -> list[str]:
    """Renders a line for each name and text. Truncates a long list of names after a complete name, and adds dots."""
    column = max(map(len, texts)) + 2
    lines = []
    for name, text in texts.items():
        room = width - column - 2
        if len(text) > room:
            text = f"{text[: room - 4].rpartition(', ')[0]}, ..."
        lines.append(f"  {name:<{column}}{text}")
    return lines


def groups_of(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Groups the options by section title, in order."""
    return {title: list(members) for title, members in groupby(options, attrgetter("group"))}


def group_key(title: str) -> str:
    """Returns the word that selects a group in --help=WORD."""
    return title.lower().split()[-1 if title.startswith("Text ") else 0]


def help_about(topic: str, options: Sequence[Option], width: int, commands: Iterable[str] = ()) -> str:
    """Renders --help=TOPIC: all flags, a group or a flag. For an unknown topic, raises ConfigError with known
    topics, and the most similar one of these and ``commands``."""
    groups = groups_of(options)
    word = topic.lower().lstrip("-").replace("-", "_")
    by_name = {name: option for option in options for name in (option.name, *option.aliases)}
    if word in by_name:
        return option_help(by_name[word], width) + "\n"
    wanted = {
        title: members
        for title, members in groups.items()
        if word == "all" or word.replace("_", " ") == title.lower() or word in title.lower().split()
    }
    if not wanted:
        known = [*map(group_key, groups), "all"]
        topics = {name: name for name in (*by_name, *known, *commands)}
        raise ConfigError(f"--help={topic}: expected a flag or one of {', '.join(known)}{nearest(word, topics)}")
    parts = [textwrap.fill(" ".join(RULES.split()), width), ""] if word == "all" else []
    for title, members in wanted.items():
        parts += [title, *(option_help(option, width) for option in members), ""]
    return "\n".join(parts[:-1]) + "\n"


def named_option(message: str, options: Sequence[Option]) -> Option | None:
    """Finds the option whose flag or variable an error message mentions first."""
    known = {name: option for option in options for name in (option.name, *option.aliases)}
    known |= {variable.name: option for option in options for variable in option.all_variables}
    words = (word.removeprefix("--").replace("-", "_") for word in re.findall(r"--[\w-]+|\b[A-Z][A-Z_]+\b", message))
    return next((known[word] for word in words if word in known), None)


def option_help(option: Option, width: int) -> str:
    """Renders a flag with its value, followed by its indented help, default and variables."""
    value = f"[={option.convert.metavar}]" if option.boolean else f" {option.convert.metavar}"
    facts = [f"default: {option.shown_default}"] if option.shown_default else []
    facts.append("variable: " + ", ".join(variable.name for variable in option.all_variables))
    if option.aliases:
        facts.append("old name: " + ", ".join(f"--{alias}" for alias in option.aliases))
    margin = " " * 6
    indent = textwrap.TextWrapper(width, margin, margin, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join([f"  {option.flag}{value}", indent(option.help), indent(f"[{'; '.join(facts)}]")])
