"""Several models in one service: the entries of --models, or the folders of --model_repository.

Flags and variables are the defaults of every model. What an entry sets passes the same converters and rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from os.path import isdir
from pathlib import Path
from typing import Any, NamedTuple

from hf_transformer.config.option import MAX_QUOTED, Option, Setting, deprecation
from hf_transformer.config.options import MODEL_NAME, Config, all_options, make_config, parse_config
from hf_transformer.config.parser import collect
from hf_transformer.errors import ConfigError, LoadError, nearest
from hf_transformer.tokenizer.files import has_tokenizer, transformer_folder

MAX_FILE_BYTES = 4 * 2**20
MAX_SETTINGS = 100_000
"""Maximum number of settings in a file of --models, each counted once for each entry that merges it. Each text of a
list counts, and each SETTING_CHARACTERS of a text, once for each alias of YAML."""
SETTING_CHARACTERS = 100
MAX_MODELS = 1000
"""Maximum number of models in a file of --models or a folder of --model_repository. Each is checked every second."""
KNOWN = {name: option for option in all_options() for name in (option.name, *option.aliases)}
INTEGER = re.compile(r"0|-?[1-9][0-9]*")
EXPONENT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+")
"""Numbers of JSON and YAML 1.2 that PyYAML, of YAML 1.1, reads as texts."""
ESCAPED_PAIR = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\.")
"""A character as JSON may escape it, but not YAML; or any other escape, to skip it."""


class EntrySettings(NamedTuple):
    """The settings of one model.

    Attributes:
        label: the file and the entry, for messages.
        settings: the settings by option name; None also removes a default.
        notes: warnings.
    """

    label: str
    settings: dict[str, Setting | None]
    notes: list[str]

    def labelled(self, message: str) -> str:
        return message if self.label in message else f"{self.label}: {message}"


class ModelEntries:
    """The models of a command line and environment. Worker processes get a pickled copy.

    ``path`` is the file or folder to watch for changes of the models, and ``flag`` the flag that has it; None for the
    one model of plain flags. Raises ConfigError as ``parse_config`` does.
    """

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        self._argv, self._environ = tuple(argv), dict(environ)
        service, _ = parse_config(argv, environ)
        self.path = service.models or service.model_repository
        self.flag = None if self.path is None else "--models" if service.models else "--model_repository"

    def read(self, known_models: Collection[str] = ()) -> tuple[list[Config], list[str]]:
        """Returns the configuration of each model, equal to that of a service of this model alone, and warnings in
        addition to those of ``parse_config``. Raises ConfigError with one line.

        ``known_models`` are the models that were read before: in a repository, one whose folder is there but has lost
        files remains a model, which can't be loaded. Its folder may be copied right now.
        """
        service, known = parse_config(self._argv, self._environ)
        if self.path is None:
            return [service], []
        entries, notes = read_file(self.path) if service.models else read_repository(self.path, known_models)
        defaults = collect(all_options(), self._argv, self._environ)[0] | {"models": None, "model_repository": None}
        configs: list[Config] = []
        owners: dict[str, str] = {}
        for entry in entries:
            try:
                settings = {name: setting for name, setting in (defaults | entry.settings).items() if setting}
                config, more = make_config(settings, entry.notes)
            except ConfigError as exc:
                raise ConfigError(entry.labelled(str(exc))) from None
            for name in (config.model_name, *config.aliases, *config.adapters):
                if name in owners:
                    raise ConfigError(f"{entry.label}: the name {name!r} is taken by {owners[name]}")
                owners[name] = entry.label
            configs.append(config)
            notes += [entry.labelled(note) for note in more if note not in known]
        return configs, notes


def read_repository(folder: str, known_models: Collection[str] = ()) -> tuple[list[EntrySettings], list[str]]:
    """Returns an entry for each folder with config.json and a tokenizer, or of a known model, and warnings about the
    other folders."""
    entries, notes = [], []
    try:
        paths = sorted(path for path in Path(folder).iterdir() if isdir(path) and path.name[0] != ".")
    except OSError as exc:
        raise ConfigError(f"{folder} can't be read: {exc.strerror}") from None
    for path in paths:
        try:
            MODEL_NAME.read(path.name)
            inner = transformer_folder(path)
            missing = "config.json" if not (inner / "config.json").is_file() else "tokenizer files"
            problem = f"no {missing}" if missing == "config.json" or not has_tokenizer(inner) else ""
        except (ValueError, LoadError, OSError) as exc:
            problem = f"expected {MODEL_NAME.expects}" if isinstance(exc, ValueError) else str(exc)
        if problem and path.name not in known_models:
            notes.append(f"{path} is not served: {problem}")
        else:
            texts = {"model_name": path.name, "model_dir": str(path)}
            settings = {name: Setting(KNOWN[name], text, str(path)) for name, text in texts.items()}
            entries.append(EntrySettings(str(path), {**settings, "model_id": None}, []))
    if len(entries) > MAX_MODELS:
        raise ConfigError(f"{folder}: expected at most {MAX_MODELS} models, got {len(entries)}")
    return entries, notes


def read_file(path: str) -> tuple[list[EntrySettings], list[str]]:
    """Returns the entries of a file, and no warnings. Raises ConfigError with the file, and the entry and key."""
    import yaml  # imported late: few services have such a file

    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is too large: expected at most {MAX_FILE_BYTES} bytes")
        text = content.decode("utf-8-sig")
        if text.lstrip().startswith(("[", "{")):
            text = ESCAPED_PAIR.sub(lambda match: json.loads(f'"{match[0]}"') if match[0][2:] else match[0], text)
        # libyaml is eight times as fast as the Python parser, but some PyYAML builds lack it.
        return list(entries_of(getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text), path)), []
    except OSError as exc:
        raise ConfigError(f"{path} can't be read: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not YAML: expected text in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{path}: expected mappings that merge each other in at most some hundred steps") from None
    except yaml.MarkedYAMLError as exc:
        where = f"line {exc.problem_mark.line + 1}, column {exc.problem_mark.column + 1}: " if exc.problem_mark else ""
        raise ConfigError(f"{path} is not YAML: {where}{exc.problem}") from None
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is not YAML: {getattr(exc, 'reason', 'unreadable')}") from None


def entries_of(loader: Any, path: str) -> Iterator[EntrySettings]:
    """Yields the entries of a document: a list, or a mapping with the only key ``models`` that holds a list."""
    node = loader.get_single_node()
    if kind(node) == "a mapping" and [key.value for key, _ in node.value] == ["models"]:
        node = node.value[0][1]
    if kind(node) != "a list":
        raise ConfigError(f"{path}: expected a list of models, or only the key models with one, got {kind(node)}")
    for index, item in enumerate(node.value):
        if kind(item) != "a mapping":
            raise ConfigError(f"{path}: models[{index}]: expected flags and their values, got {kind(item)}")
        keys = set()
        for key, _ in item.value:  # YAML would take the last value without a word
            if str(key.value) in keys:
                line = key.start_mark.line + 1
                raise ConfigError(f"{path}: models[{index}]: the key {quoted(key)} is repeated in line {line}")
            keys.add(str(key.value))
    if len(node.value) > MAX_MODELS:
        raise ConfigError(f"{path}: expected at most {MAX_MODELS} models, got {len(node.value)}")
    counts: dict[int, int] = {}
    total = sum(settings_in(item, counts, path) for item in node.value)
    if total > MAX_SETTINGS:
        raise ConfigError(f"{path}: expected at most {MAX_SETTINGS} settings of all models, got {total}")
    for index, item in enumerate(node.value):
        loader.flatten_mapping(item)  # merges the mappings of keys <<
        yield entry_of(item.value, f"{path}: models[{index}]")


def settings_in(node: Any, counts: dict[int, int], path: str) -> int:
    """Counts the settings in a node, with those that it merges or an alias repeats, before they are copied. ``counts``
    has the results by node. Raises ConfigError for a mapping or list that contains itself."""
    if node.id == "scalar":
        return 1 + len(node.value) // SETTING_CHARACTERS
    if id(node) not in counts:
        counts[id(node)] = -1  # while its settings are counted
        values = [value for _, value in node.value] if node.id == "mapping" else node.value
        counts[id(node)] = sum(settings_in(value, counts, path) for value in values)
    if counts[id(node)] < 0:
        raise ConfigError(
            f"{path}: line {node.start_mark.line + 1}: expected {kind(node)} that does not contain itself"
        )
    return counts[id(node)]


def entry_of(pairs: Sequence[tuple[Any, Any]], label: str) -> EntrySettings:
    """Converts keys and values. Raises ConfigError for a wrong key or value, and without model_name."""
    for key, value in pairs:
        if key.value in ("model_name", "model-name") and kind(value) == "a text" and value.value.isprintable():
            label = f"{label} ({value.value[:MAX_QUOTED]})"
            break
    entry = EntrySettings(label, {}, [])
    for key, value in pairs:
        option = KNOWN.get(str(key.value).replace("-", "_"))
        if option is None:
            candidates = {name: option.name for name, option in KNOWN.items() if option.per_model}
            raise ConfigError(f"{label}: unknown key {quoted(key)}{nearest(str(key.value), candidates)}")
        if not option.per_model:
            reason = option.no_effect or "is a flag of the whole service, not of a model"
            raise ConfigError(f"{label}: {key.value} {reason}")
        if key.value.replace("-", "_") != option.name:
            entry.notes.append(deprecation(f"{label}: {key.value}", option.name))
        cleared = option.many and kind(value) == "a list" and not value.value
        entry.settings[option.name] = None if cleared else setting_of(option, f"{label}: {key.value}", value)
    if "model_name" not in entry.settings:
        raise ConfigError(f"{label}: model_name is missing")
    for name, other in (("model_id", "model_dir"), ("model_dir", "model_id")):
        if name in entry.settings:
            entry.settings.setdefault(other, None)  # which a flag may set
    return entry


def setting_of(option: Option, source: str, node: Any) -> Setting:
    """Converts a value, or the list of an option with many values. Raises ConfigError for a value that the option does
    not accept, null, and an unquoted text that YAML reads as something else."""
    parts = node.value if option.many and kind(node) == "a list" else [node]
    for part in parts:
        if kind(part) != "a text":
            raise ConfigError(f"{source}: expected {option.convert.expects}, got {kind(part)}")
    setting = Setting(option, ",".join(part.value for part in parts), source)
    value = setting.value()
    for part in parts:
        changed = EXPONENT.fullmatch(part.value) if part.tag.endswith(":str") else not INTEGER.fullmatch(part.value)
        if changed and not part.style and not isinstance(value, bool | float):
            raise setting.error("quotes around what YAML reads as another value")
        if parts is node.value and part.value not in value:
            raise setting.error(option.convert.expects)  # such as "a, b", which would become two names
    return setting


def kind(node: Any) -> str:
    """Describes a node of YAML for error messages. Numbers and booleans are texts here, as in flags."""
    if node is None or node.tag.endswith(":null"):
        return "nothing" if node is None else "null"
    return str({"sequence": "a list", "mapping": "a mapping"}.get(node.id, "a text"))


def quoted(key: Any) -> str:
    """Returns a key without what follows a colon: the value, where the space is missing."""
    return repr(key.value.partition(":")[0][:MAX_QUOTED]) if kind(key) == "a text" else kind(key)
