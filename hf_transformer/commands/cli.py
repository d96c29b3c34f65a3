"""The command line: the only module that reads sys.argv and os.environ."""

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

from hf_transformer.errors import ConfigError, LoadError, TransformerError, nearest
from hf_transformer.server.signals import handle_signals

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve", "serve a model that Triton runs (the default)"),
    "doctor": ("doctor.command", "check that flags, model files and Triton fit together"),
    "export": ("export.command", "export a Hugging Face model for Triton"),
    "bench": ("bench.command", "measure a running service, and find its best settings"),
    "demo": ("demo", "start Triton with a tiny model, and the service in front of it"),
}
"""The module and description of each subcommand. A module defines ``run(argv, environ) -> exit code``."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a subcommand and returns the exit code.

    Exit codes: 2 for an invalid flag or variable, 1 for other known errors, 130 for Ctrl-C, 141 for a closed output
    pipe. An error prints a single line on stderr, which ends with a reference to the help.
    """
    open_streams()
    # By default gRPC's core logs to stderr, for example each failed TLS handshake with the predictor.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # The tokenizers library would encode in a thread pool of its own, where a short text waits for all texts of other
    # calls. The tokenizer splits its calls among threads itself.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    words = sys.argv[1:] if argv is None else list(argv)
    code: int | None = None
    try:
        try:
            code = run(words, os.environ)
        except SystemExit as exc:  # from a signal handler
            code = exc.code if isinstance(exc.code, int) else 1
            raise
        except TransformerError as exc:
            from hf_transformer.commands.terminal import Terminal  # lazy import: errors are rare

            message = " ".join(str(exc).split())
            error = Terminal(os.environ, sys.stderr).styled("error:", "bold", "red")
            code = 2 if isinstance(exc, ConfigError) else 1
            print(f"hf-transformer: {error} {message}{where_to_look(exc, message, command_of(words))}", file=sys.stderr)
        finally:
            print(end="", flush=True)  # Python's own flush at exit can't handle errors
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        discard_output()
        return 128 + signal.SIGPIPE
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        if code is None or command_of(words) != "serve":  # serve prints only its log
            with suppress(OSError):
                print(f"hf-transformer: error: can't write the output: {exc.strerror}", file=sys.stderr, flush=True)
            code = code or 1
        discard_output()
    return code or 0


def open_streams() -> None:
    """Opens /dev/null for closed standard streams. Otherwise files or sockets would reuse their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # returns the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))


def discard_output() -> None:
    """Redirects stdout and stderr to /dev/null, because Python's flush at exit would fail again."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def command_of(argv: Sequence[str]) -> str:
    """The subcommand in ``argv``, by default ``serve``."""
    return argv[0] if argv and not argv[0].startswith("-") else "serve"


def run(argv: list[str], environ: Mapping[str, str]) -> int:
    """Runs a subcommand and returns the exit code. Raises errors instead of printing them."""
    name = command_of(argv)
    if argv and argv[0] == name:
        argv = argv[1:]
    if name == "help":  # alone, or before a command or a help topic of serve
        subject = argv[0] if argv else ""
        name = subject if subject in COMMANDS else "serve"
        argv = [f"--help={subject}" if subject and subject != name else "--help"]
    if name == "version" or (name in COMMANDS and "--version" in argv):
        from hf_transformer import __version__

        print(f"hf-transformer {__version__}")
        return 0
    if name not in COMMANDS:
        known = [*COMMANDS, "help", "version"]
        suggestion = nearest(name, dict(zip(known, known, strict=True)))
        raise ConfigError(f"unknown subcommand {name!r}, expected one of {', '.join(known)}{suggestion}")
    if name == "serve":
        topic = help_topic(argv)
        if topic and topic in COMMANDS and topic != "serve":  # which prints its own help
            return run(["help", topic], environ)
        if topic is not None:
            print_help(topic, environ)
            return 0
        handle_signals()  # before the slow imports
    with unwinding_signals() if name != "serve" else nullcontext():
        code: int = import_module(f"hf_transformer.commands.{COMMANDS[name][0]}").run(argv, environ)
    return code


@contextmanager
def unwinding_signals() -> Iterator[None]:
    """Converts SIGTERM and SIGHUP to SystemExit (128 + number), so that ``finally`` blocks end child processes."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    # nohup ignores SIGHUP, and commands must continue to ignore it.
    numbers = [sig for sig in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(sig) is not signal.SIG_IGN]
    former = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def help_topic(argv: Sequence[str]) -> str | None:
    """The topic of --help (a flag, a group of flags, "all", or "" for the overview), or None without --help."""
    for word in argv:
        flag, equals, topic = word.partition("=")
        if flag in ("-h", "--help"):
            return topic if equals else ""
    return None


def print_help(topic: str, environ: Mapping[str, str]) -> None:
    """Prints the help on a topic, or the overview for "". Raises ConfigError for an unknown topic."""
    from hf_transformer.commands.terminal import Terminal  # lazy imports: --version and demo don't need these modules
    from hf_transformer.config.manual import help_about, overview
    from hf_transformer.config.options import all_options

    terminal = Terminal(environ)
    if topic:
        text = help_about(topic, all_options(), terminal.columns, COMMANDS)
    else:
        text = overview(all_options(), {name: does for name, (_, does) in COMMANDS.items()}, terminal.columns)
    for line in text.splitlines():
        # Headings are short and not indented.
        heading = line[:1].isalpha() and not line.endswith(".") and len(line) < 40
        print(terminal.styled(line, "bold") if heading else line)


def where_to_look(error: TransformerError, message: str, command: str) -> str:
    """The hint at the end of an error message: the help for a flag, or a command that finds the cause."""
    if command not in COMMANDS:
        return " (see hf-transformer help)"
    if command not in ("serve", "doctor"):
        return f" (see hf-transformer {command} --help)"
    if isinstance(error, LoadError):
        return " (run hf-transformer doctor with the same flags to find the cause)"
    from hf_transformer.config.manual import named_option  # lazy import: errors are rare
    from hf_transformer.config.options import all_options

    named = named_option(message, all_options())
    return f" (see hf-transformer --help={named.name})" if named else " (see hf-transformer --help)"
