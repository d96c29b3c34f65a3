"""The command line: the only place that reads sys.argv and os.environ."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from hf_transformer.errors import ConfigError, TransformerError
from hf_transformer.server.signals import handle_signals

WIDTHS = (60, 120)
"""Columns of --help, at least and at most."""


@dataclass(frozen=True)
class Command:
    """A subcommand; its module has ``run(argv, environ) -> exit code`` and is imported only when called."""

    module: str
    does: str


COMMANDS: Mapping[str, Command] = {
    "serve": Command("hf_transformer.commands.serve", "serve a model in front of Triton (the default)"),
    "doctor": Command(
        "hf_transformer.commands.doctor.command", "check tokenizer, flags and Triton's model against each other"
    ),
    "export": Command("hf_transformer.commands.export.command", "write a model's weights as a folder for Triton"),
    "demo": Command("hf_transformer.commands.demo", "start Triton with a tiny BERT, and the service in front"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and gives the exit code.

    That is 2 for a bad flag or variable and 1 for anything else that the service knows to be wrong, each with
    one line on stderr; 130 after Ctrl-C.
    """
    # gRPC's core would write lines of its own to stderr, such as one for each failed TLS handshake with the predictor.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return run(sys.argv[1:] if argv is None else list(argv), os.environ)
    except TransformerError as exc:
        print(f"hf-transformer: error: {' '.join(str(exc).split())}", file=sys.stderr)
        return 2 if isinstance(exc, ConfigError) else 1
    except KeyboardInterrupt:
        return 130


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Like main, but errors are raised."""
    name = "serve"
    if argv and not argv[0].startswith("-"):
        name, argv = argv[0], argv[1:]
    if name not in COMMANDS:
        raise ConfigError(f"unknown subcommand {name!r}, expected one of {', '.join(COMMANDS)}")
    if name == "serve" and ("-h" in argv or "--help" in argv):  # other commands print their own
        print_help()
        return 0
    if "--version" in argv:
        from hf_transformer import __version__

        print(f"hf-transformer {__version__}")
        return 0
    if name == "serve":
        handle_signals()  # before the imports, which may take a second
    code: int = import_module(COMMANDS[name].module).run(argv, environ)
    return code


def print_help() -> None:
    from hf_transformer.config.manual import help_text
    from hf_transformer.config.options import all_options  # here, because --version and demo do not need it

    least, most = WIDTHS
    columns = min(most, max(least, shutil.get_terminal_size().columns))
    print(help_text(all_options(), {name: command.does for name, command in COMMANDS.items()}, columns), end="")
