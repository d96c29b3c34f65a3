"""Flags of the commands other than serve. Names allow underscores or hyphens. config/option.py converts values."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from hf_transformer.config.option import Converter
from hf_transformer.errors import ConfigError, nearest


class FlagParser(argparse.ArgumentParser):
    """Parses the flags of ``hf-transformer <command>``. Exits with code 2 and a message for an invalid flag."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"hf-transformer {command}", description=description, allow_abbrev=False)
        self._names: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Exits with a line that refers to --help and suggests a flag, without argparse's long usage."""
        _, unknown, words = message.partition("unrecognized arguments: --")
        if unknown:
            message += nearest(re.split(r"[=\s]", words)[0].replace("-", "_"), self._names)
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def add(self, flag: str, convert: Converter | None = None, **more: Any) -> None:
        """Adds a flag, named with underscores. ``more`` contains arguments of argparse's ``add_argument``."""
        if convert is not None:

            def read(text: str) -> Any:
                try:
                    return convert.read(text)
                except ConfigError as error:
                    raise argparse.ArgumentTypeError(str(error)) from None
                except ValueError:
                    raise argparse.ArgumentTypeError(f"expected {convert.expects}, got {text!r}") from None

            more = {"type": read, "metavar": convert.metavar, **more}
        self._names[flag] = f"--{flag}"
        self.add_argument(*dict.fromkeys([f"--{flag}", f"--{flag.replace('_', '-')}"]), dest=flag, **more)
