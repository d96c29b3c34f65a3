"""Reads the text of each option from the command line and the environment.

Flags accept underscores or hyphens, as ``--flag value`` or ``--flag=value``. A flag's last value takes precedence, and
flags override variables. Manifests for KServe and vLLM contain other flags, so unknown flags only cause warnings.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from hf_transformer.config.option import PREFIX, Option, Setting, deprecation
from hf_transformer.errors import ConfigError, nearest

MAX_QUOTED_WORDS = 3
"""Maximum number of words without a flag that a warning quotes."""
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
"""Start of the values that Kubernetes sets in <SERVICE>_PORT, for every service of the namespace."""
SERVICE_LINK_NAME = re.compile(r"(^|_)(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_[0-9]+_.*)$")
"""End of the names of Kubernetes' other service variables."""
OTHER_VARIABLES = frozenset({f"{PREFIX}TRITON_ENVIRONMENT", f"{PREFIX}BENCH_API_KEY"})
"""Variables of other commands, accepted without a warning."""


def collect(
    options: Sequence[Option], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[dict[str, Setting], list[str]]:
    """Returns the settings by option name, and warnings. Raises ConfigError for a flag without a value and, with
    --strict_flags, for an unknown flag, variable or argument."""
    from_flags, flag_notes = read_flags(options, argv)
    from_variables, variable_notes = read_variables(options, environ)
    settings, notes = from_variables | from_flags, flag_notes + variable_notes
    unknown = [note for note in notes if isinstance(note, UnknownNote)]
    if unknown and "strict_flags" in settings and settings["strict_flags"].value():
        raise ConfigError("; ".join(note.refusal for note in unknown))
    return settings, notes


class UnknownNote(str):
    """A warning about an unknown flag, variable or argument. --strict_flags converts it to an error."""

    __slots__ = ()

    @property
    def refusal(self) -> str:
        """The error message that replaces the warning."""
        return re.sub(r" (is|are) ignored", r" \1 refused (--strict_flags)", self, count=1)


def read_flags(options: Iterable[Option], argv: Sequence[str]) -> tuple[dict[str, Setting], list[str]]:
    """Reads settings by option name, and warnings, from a command line. Raises ConfigError for a missing value."""
    known = {name: option for option in options for name in (option.name, *option.aliases)}
    words = deque(argv)
    settings: dict[str, Setting] = {}
    notes: list[str] = []
    leftovers: list[str] = []
    while words:
        word = words.popleft()
        if word == "--":
            leftovers.extend(words)
            break
        if not is_flag(word):
            leftovers.append(word)
            continue
        spelled, equals, text = word.partition("=")
        name = spelled.removeprefix("--").replace("-", "_")
        option = known.get(name) if spelled.startswith("--") else None
        if option is None:
            notes.append(UnknownNote(unknown_flag_note(spelled, known)))
            if not equals:
                following_values(words)
            continue
        if name != option.name:
            notes.append(deprecation(spelled, option.flag))
        if not equals:
            text = following_text(option, spelled, words)
        settings[option.name] = Setting(option, text, spelled)
    if leftovers:
        quoted = ", ".join(repr(word[:40]) for word in leftovers[:MAX_QUOTED_WORDS])
        more = f" and {len(leftovers) - MAX_QUOTED_WORDS} more" if len(leftovers) > MAX_QUOTED_WORDS else ""
        notes.append(UnknownNote(f"arguments that belong to no flag are ignored: {quoted}{more}"))
    return settings, list(dict.fromkeys(notes))


def is_flag(word: str) -> bool:
    """Whether a command-line word is a flag. A negative number is a value."""
    return re.match(r"--?[A-Za-z]", word) is not None


def following_values(words: deque[str], most: int | None = None) -> list[str]:
    """Removes and returns the words before the next flag, at most ``most``."""
    values: list[str] = []
    while words and words[0] != "--" and not is_flag(words[0]) and len(values) != most:
        values.append(words.popleft())
    return values


def following_text(option: Option, spelled: str, words: deque[str]) -> str:
    """Removes and returns a flag's value, true for a bare boolean. Raises ConfigError for a missing value."""
    values = following_values(words, None if option.many else 1)
    if option.boolean and not values:
        return "true"
    text = ",".join(values)
    if not text and not (values and option.may_be_empty):
        raise ConfigError(f"{spelled}: the value is missing; expected {option.convert.expects}")
    return text


def read_variables(options: Iterable[Option], environ: Mapping[str, str]) -> tuple[dict[str, Setting], list[str]]:
    """Reads settings by option name, and warnings, from the environment. Empty variables count as unset."""
    settings: dict[str, Setting] = {}
    notes: list[str] = []
    known: dict[str, str] = {}
    for option in options:
        for variable in option.all_variables:
            known[variable.name] = variable.name
            text = environ.get(variable.name)
            if text is None or (not text.strip() and not option.may_be_empty):
                continue
            if variable.name.endswith("_PORT") and SERVICE_LINK.match(text):
                notes.append(f"{variable.name} is ignored: it is a service link of Kubernetes, not a port")
                continue
            converted = variable.read(text)
            if converted is not None and option.name not in settings:
                settings[option.name] = Setting(option, converted, variable.name)
    for name in sorted(environ.keys() - known.keys() - OTHER_VARIABLES):
        link = SERVICE_LINK_NAME.search(name.removeprefix(PREFIX)) or SERVICE_LINK.match(environ[name])
        if name.startswith(PREFIX) and not link:
            notes.append(UnknownNote(f"unknown variable {name} is ignored{nearest(name, known)}"))
    return settings, notes


def unknown_flag_note(spelled: str, known: Mapping[str, Option]) -> str:
    """Returns a warning that names the flag without its value, which may be a secret."""
    flag, space, _ = spelled.partition(" ")
    name = flag.lstrip("-").replace("-", "_")
    if space and name in known:
        return f"{flag} is ignored: write the flag and its value as two arguments, or with = between them"
    return f"unknown flag {flag} is ignored{nearest(name, {name: known[name].flag for name in known})}"
