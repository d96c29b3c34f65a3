"""Renders the declared options: --help for a terminal and the reference page in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from hf_transformer.config.option import PREFIX, Option

USAGE = """\
Usage: hf-transformer [serve] --predictor_host=HOST:PORT [flags]
{others}

Puts tokenizing and decoding in front of a model that Triton Inference Server runs.
"""
RULES = f"""\
Flags may be written with hyphens or underscores, as --flag value or --flag=value; a true/false flag also
bare. A flag wins over its variable, a variable over the default. Every flag has the variable {PREFIX}<FLAG IN
CAPITALS>; further ones are named below. An empty variable counts as unset. Unknown flags are ignored with a
warning.
"""
PAGE = f"""\
# Configuration

This page is generated from the declarations in `hf_transformer/config/options.py` and
`hf_transformer/config/ignored.py` by `scripts/config_docs`.

- Flags may be written with underscores or hyphens, as `--flag value` or `--flag=value`. A repeated flag
  counts as written last.
- A true/false flag takes `true` or `false` (or 1/0, yes/no, on/off); bare, it is true.
- A flag wins over its variable, a variable over the default. Of several variables the first one listed wins.
  An empty variable counts as unset, except `KSERVE_OPENAI_ROUTE_PREFIX`.
- Unknown flags and variables that begin with `{PREFIX}` are ignored, and a warning names the most similar
  known one.
- A bad value ends the start with one line on stderr and exit code 2.
"""


def by_group(options: Sequence[Option]) -> Mapping[str, Sequence[Option]]:
    """Options by group, both in the order of their declarations."""
    groups: dict[str, list[Option]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(option)
    return groups


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
    for group, members in by_group(options).items():
        parts += ["", group]
        for option in members:
            parts.append(option_help(option, width))
    return "\n".join(parts) + "\n"


def option_help(option: Option, width: int) -> str:
    """A flag with its value, then what it is for, its default and its variables, indented."""
    value = f"[={option.convert.metavar}]" if option.boolean else f" {option.convert.metavar}"
    text = option.help
    if option.no_effect:
        text += f" It {option.no_effect}."
    facts = [f"default: {option.shown_default}"] if option.shown_default else []
    facts.append("variable: " + ", ".join(variable.name for variable in option.all_variables))
    if option.aliases:
        facts.append("old name: " + ", ".join(f"--{alias}" for alias in option.aliases))
    lines = [text, f"[{'; '.join(facts)}]"]
    return "\n".join([f"  {option.flag}{value}", *(indented(line, width) for line in lines)])


def indented(text: str, width: int) -> str:
    margin = " " * 6
    return textwrap.fill(
        text,
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def reference_page(options: Sequence[Option]) -> str:
    """The reference page in Markdown: one table per group."""
    parts = [PAGE]
    for group, members in by_group(options).items():
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
    words = option.help + (f" It {option.no_effect}." if option.no_effect else "")
    default = option.shown_default
    if default and not option.default_text:
        default = f"`{default}`"
    cells = (flag, f"`{option.convert.metavar}`", default, variables, words)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
