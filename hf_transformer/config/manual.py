"""Renders the declared options: --help for a terminal and the reference page in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from hf_transformer.config.option import PREFIX, Option

USAGE = """\
Usage: hf-transformer [serve] --predictor_host=HOST:PORT [flags]
{others}

Puts tokenizing and decoding in front of a model that Triton Inference Server runs.
"""
RULES = f"""\
Flags may be written with hyphens or underscores, as --flag value or --flag=value; a true/false flag may be
bare. A flag wins over its variable, a variable over the default. Every flag has the variable {PREFIX}<FLAG IN
CAPITALS>; further ones are named below. An empty variable counts as unset. Unknown flags are ignored with a
warning.
"""
PAGE = f"""\
# Configuration

This page is generated from the declarations in `hf_transformer/config/options.py` by
`scripts/config_docs`.

- Flags may be written with underscores or hyphens, as `--flag value` or `--flag=value`. If a flag is
  repeated, the last one counts.
- A true/false flag takes `true` or `false` (or 1/0, yes/no, on/off); bare, it is true.
- A flag wins over its variable, a variable over the default. Of several variables the first one
  listed wins. An empty variable counts as unset, except `KSERVE_OPENAI_ROUTE_PREFIX`.
- Unknown flags, and unknown variables that begin with `{PREFIX}`, are ignored. A warning
  names the most similar known one.
- After a bad value the service exits with one line on stderr and exit code 2.
"""


def help_text(options: Sequence[Option], commands: Mapping[str, str], width: int) -> str:
    """The text of --help.

    Args:
        options: all of them.
        commands: what each subcommand does, by name.
        width: columns of the terminal.
    """
    others = "\n".join(f"       hf-transformer {name} [flags]" for name in commands if name != "serve")
    commands_width = max(map(len, commands), default=0) + 2
    parts = [USAGE.format(others=others), "Subcommands"]
    parts += [f"  {name:<{commands_width}}{does}" for name, does in commands.items()]
    parts += ["", textwrap.fill(" ".join(RULES.split()), width), ""]
    parts += ["  -h, --help  show this text and exit", "  --version   show the version and exit"]
    for group, members in groupby(options, attrgetter("group")):
        parts += ["", group]
        for option in members:
            parts.append(option_help(option, width))
    return "\n".join(parts) + "\n"


def option_help(option: Option, width: int) -> str:
    """A flag with its value, then indented its use, its default and its variables."""
    value = f"[={option.convert.metavar}]" if option.boolean else f" {option.convert.metavar}"
    text = described(option)
    facts = [f"default: {option.shown_default}"] if option.shown_default else []
    facts.append("variable: " + ", ".join(variable.name for variable in option.all_variables))
    if option.aliases:
        facts.append("old name: " + ", ".join(f"--{alias}" for alias in option.aliases))
    margin = " " * 6
    indent = textwrap.TextWrapper(width, margin, margin, break_long_words=False, break_on_hyphens=False).fill
    return "\n".join([f"  {option.flag}{value}", indent(text), indent(f"[{'; '.join(facts)}]")])


def described(option: Option) -> str:
    """What an option is for."""
    return option.help + (f" It {option.no_effect}." if option.no_effect else "")


def reference_page(options: Sequence[Option]) -> str:
    """The reference page in Markdown: one table per group."""
    parts = [PAGE]
    for group, members in groupby(options, attrgetter("group")):
        parts.append(f"## {group}\n")
        parts.append("| flag | value | default | variables | |\n|---|---|---|---|---|")
        parts += [table_row(option) for option in members]
        parts.append("")
    return "\n".join(parts)


def table_row(option: Option) -> str:
    flag = f"`{option.flag}`"
    if option.aliases:
        flag += " (old name: " + ", ".join(f"`--{alias}`" for alias in option.aliases) + ")"
    variables = ", ".join(f"`{variable.name}`" for variable in option.all_variables)
    default = option.shown_default
    if default and not option.default_text:
        default = f"`{default}`"
    cells = (flag, f"`{option.convert.metavar}`", default, variables, described(option))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
