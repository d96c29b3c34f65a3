"""The command line: the only place that reads sys.argv and os.environ."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from types import FrameType
from typing import NoReturn

from hf_transformer.errors import ConfigError, LoadError, TransformerError
from hf_transformer.server.signals import handle_signals

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve", "serve a model in front of Triton (the default)"),
    "doctor": ("doctor.command", "check tokenizer, flags and Triton's model against each other"),
    "export": ("export.command", "write a model's weights as a folder for Triton"),
    "bench": ("bench.command", "measure a running service, and find its best settings"),
    "demo": ("demo", "start Triton with a tiny BERT, and the service in front"),
}
"""The module of each subcommand, with ``run(argv, environ) -> exit code``, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and gives the exit code.

    That is 2 for a bad flag or variable and 1 for anything else that the service knows to be wrong, each with
    one line on stderr that ends with where to look; 130 after Ctrl-C; 141 where nobody reads the output any more.
    """
    open_streams()
    # gRPC's core would write lines of its own to stderr, such as one for each failed TLS handshake with the predictor.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    words = sys.argv[1:] if argv is None else list(argv)
    code: int | None = None
    try:
        try:
            code = run(words, os.environ)
        except SystemExit as exc:  # after a signal
            code = exc.code if isinstance(exc.code, int) else 1
            raise
        except TransformerError as exc:
            from hf_transformer.commands.terminal import Terminal  # here, because few starts fail

            message = " ".join(str(exc).split())
            error = Terminal(os.environ, sys.stderr).styled("error:", "bold", "red")
            code = 2 if isinstance(exc, ConfigError) else 1
            print(f"hf-transformer: {error} {message}{where_to_look(exc, message, command_of(words))}", file=sys.stderr)
        finally:
            print(end="", flush=True)  # at the process's end it would be too late to handle the error
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has left, as head does
        discard_output()
        return 128 + signal.SIGPIPE
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if code is None or command_of(words) != "serve":  # the service itself writes its log alone
            with suppress(OSError):
                print(
                    f"hf-transformer: error: the output can't be written: {exc.strerror}", file=sys.stderr, flush=True
                )
            code = code or 1
        discard_output()
    return code or 0


def open_streams() -> None:
    """Open /dev/null for closed standard streams: otherwise the first files and sockets would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def discard_output() -> None:
    """Point stdout and stderr at /dev/null, since Python's flush at exit would fail again."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def command_of(argv: Sequence[str]) -> str:
    """The subcommand that is called; without one it is serve."""
    return argv[0] if argv and not argv[0].startswith("-") else "serve"


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Like main, but errors are raised."""
    name = command_of(argv)
    if argv and argv[0] == name:
        argv = argv[1:]
    if name == "help":  # alone, with a command, or with a topic of serve
        topic = argv[0] if argv else ""
        name = topic if topic in COMMANDS else "serve"
        argv = [f"--help={topic}" if topic and topic != name else "--help"]
    if name == "version" or (name in COMMANDS and "--version" in argv):
        from hf_transformer import __version__

        print(f"hf-transformer {__version__}")
        return 0
    if name not in COMMANDS:
        raise ConfigError(f"unknown subcommand {name!r}, expected one of {', '.join(COMMANDS)}, help, version")
    if name == "serve":
        asked = help_topic(argv)
        if asked is not None:  # other commands print their own
            print_help(asked, environ)
            return 0
        handle_signals()  # before the imports, which may take a second
    with unwinding_signals() if name != "serve" else nullcontext():
        code: int = import_module(f"hf_transformer.commands.{COMMANDS[name][0]}").run(argv, environ)
    return code


@contextmanager
def unwinding_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the program with the usual code, as Ctrl-C does, so that nothing it started stays."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    # Under nohup SIGHUP is ignored, and stays so.
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    former = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def help_topic(argv: Sequence[str]) -> str | None:
    """What --help is asked about: a group of flags, a flag, "all", or "" for the overview; None without --help."""
    for word in argv:
        flag, equals, topic = word.partition("=")
        if flag in ("-h", "--help"):
            return topic if equals else ""
    return None


def print_help(topic: str, environ: Mapping[str, str]) -> None:
    """Raises ConfigError for a topic that there is not."""
    from hf_transformer.commands.terminal import Terminal  # here, because --version and demo do not need them
    from hf_transformer.config.manual import help_about, overview
    from hf_transformer.config.options import all_options

    terminal = Terminal(environ)
    if topic:
        text = help_about(topic, all_options(), terminal.columns)
    else:
        text = overview(all_options(), {name: does for name, (_, does) in COMMANDS.items()}, terminal.columns)
    for line in text.splitlines():
        # Headings stand at the margin, in one or two words.
        heading = line[:1].isalpha() and not line.endswith(".") and len(line) < 40
        print(terminal.styled(line, "bold") if heading else line)


def where_to_look(error: TransformerError, message: str, command: str) -> str:
    """The end of an error message: the help on the flag that it names, or the command that finds the cause."""
    if command not in COMMANDS:
        return " (see hf-transformer help)"
    if command not in ("serve", "doctor"):
        return f" (see hf-transformer {command} --help)"
    if isinstance(error, LoadError):
        return " (hf-transformer doctor, with the same flags, checks all that the service needs)"
    from hf_transformer.config.manual import named_option  # here, because few starts fail
    from hf_transformer.config.options import all_options

    named = named_option(message, all_options())
    return f" (see hf-transformer --help={named.name})" if named else " (see hf-transformer --help)"
