"""Rules between options: each rule checks or completes a draft, in order. Raises ConfigError for a contradiction."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hf_transformer.config.option import Setting
from hf_transformer.errors import ConfigError

ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/?#@\[\]]+)(:(?P<port>[0-9]{1,5}))?")

DEFAULT_NAME = "model"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS = ("0.0.0.0", "::", "0")  # noqa: S104 - compared, not bound


@dataclass
class Draft:
    """An incomplete Config: the user's settings, the values by option name, and warnings to log."""

    settings: Mapping[str, Setting]
    values: dict[str, Any]
    notes: list[str]

    def source(self, name: str) -> str:
        """Returns the flag or variable that sets an option."""
        return self.settings[name].source

    def ignore(self, name: str, why: str) -> None:
        """Adds the warning that the service ignores an option."""
        self.notes.append(f"{self.source(name)} is ignored: {why}")


def mention_ignored(draft: Draft) -> None:
    """Adds a warning for each option without effect."""
    for setting in draft.settings.values():
        if setting.option.no_effect:
            draft.notes.append(f"{setting.source} {setting.option.no_effect}")


def only_one(draft: Draft, pair: tuple[str, str]) -> None:
    """Refuses two options that exclude each other, such as --return_probabilities and --return_raw_logits."""
    if all(draft.values.get(name) for name in pair):
        sources = " and ".join(map(draft.source, pair))
        raise ConfigError(f"{sources} exclude each other: give one of them")


def model_control_has_keys(draft: Draft) -> None:
    """Refuses --enable_model_control without keys: whoever loads a model decides what Triton runs."""
    keys = "model_control_keys_file"
    if draft.values.get("enable_model_control"):
        if draft.values.get(keys) is None:
            raise ConfigError(f"{draft.source('enable_model_control')} requires --{keys}, a file with one key per line")
    elif keys in draft.settings:
        draft.ignore(keys, "--enable_model_control is not given")


def distinct_names(draft: Draft) -> None:
    """Refuses an alias or adapter with another name of the model."""
    options = {draft.values.get("model_name", DEFAULT_NAME): "model_name"}
    for option in ("aliases", "adapters"):
        for name in draft.values.get(option, ()):
            if name in options:
                raise draft.settings[option].error(f"names that differ from --{options[name]}")
        options |= dict.fromkeys(draft.values.get(option, ()), option)


def name_at_predictor(draft: Draft) -> None:
    """Requires another name at the predictor for a name with a slash, which Triton's folders can't have."""
    name = draft.values.get("model_name", DEFAULT_NAME)
    if "/" in name and not draft.values.get("predictor_model") and draft.values.get("predictor_protocol") != "none":
        if not draft.settings.keys() & {"models", "model_repository"}:
            raise draft.settings["model_name"].error("a name without /, or --predictor_model with its name in Triton")


def one_model(draft: Draft) -> None:
    """Prefers --model_id to --model_dir, as KServe does, and the folders of a repository to both. The tokenizer's
    revision defaults to the model's."""
    if "model_repository" in draft.settings:
        for name in [name for name in ("model_id", "model_dir") if name in draft.settings]:
            draft.ignore(name, f"{draft.source('model_repository')} is given")
    elif "model_id" in draft.settings and "model_dir" in draft.settings:
        draft.ignore("model_dir", f"{draft.source('model_id')} is given")
    if draft.values.get("tokenizer_revision") is None and "model_revision" in draft.values:
        draft.values["tokenizer_revision"] = draft.values["model_revision"]


def hidden_token(draft: Draft) -> None:
    """Warns about a token on the command line."""
    if "hf_token" in draft.settings and draft.source("hf_token").startswith("-"):
        draft.notes.append(f"{draft.source('hf_token')} shows in process lists: better set HF_TOKEN")


def predictor_address(draft: Draft) -> None:
    """Separates the scheme from the predictor's host, and adds the port to the host. Of several models, each may name
    the host instead: it is "" then, as for a model without a predictor."""
    if draft.values.get("predictor_protocol") == "none":
        draft.values["predictor_host"] = ""
        if "predictor_host" in draft.settings:
            draft.ignore("predictor_host", f"{draft.source('predictor_protocol')} is none")
        return
    if "predictor_host" not in draft.settings:
        if draft.settings.keys() & {"models", "model_repository"}:
            draft.values["predictor_host"] = ""
            return
        raise ConfigError("--predictor_host is required: where Triton listens, such as --predictor_host=localhost:8000")
    source = draft.source("predictor_host")
    scheme, host, port = split_address(draft.settings["predictor_host"])
    if scheme is not None:
        if draft.values.get("predictor_use_ssl", scheme == "https") != (scheme == "https"):
            draft.ignore("predictor_use_ssl", f"{source} begins with {scheme}://")
        draft.values["predictor_use_ssl"] = scheme == "https"
    separate = draft.values.get("predictor_port")
    if port is not None and separate not in (None, port):
        draft.ignore("predictor_port", f"{source} has the port {port}")
    if port is None:
        port = separate
    draft.values["predictor_port"] = port
    draft.values["predictor_host"] = host if port is None else f"{host}:{port}"


def split_address(setting: Setting) -> tuple[str | None, str, int | None]:
    """Returns scheme, host and port of an address, with brackets around IPv6. Raises ConfigError if invalid."""
    scheme, separator, rest = setting.text.strip().rpartition("://")
    if separator and scheme.lower() not in ("http", "https"):
        raise setting.error("a scheme of http or https, or none")
    rest = rest.removesuffix("/") if separator else rest
    if is_ipv6(rest):
        rest = f"[{rest}]"
    match = ADDRESS.fullmatch(rest)
    if match is None or (match["host"].startswith("[") and not is_ipv6(match["host"][1:-1])):
        raise setting.error("HOST or HOST:PORT without a path, such as localhost:8000")
    port = None if match["port"] is None else int(match["port"])
    if port is not None and not 1 <= port <= 65535:
        raise setting.error("a port from 1 to 65535")
    return scheme.lower() if separator else None, match["host"], port


def is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def predictor_certificates(draft: Draft) -> None:
    """Requires existing certificates for TLS. Without TLS it skips the check, since REQUESTS_CA_BUNDLE may be set for
    other programs. Without a host, the models decide."""
    if not draft.values["predictor_host"]:
        return
    file = draft.values.get("predictor_ca_file")
    if file is not None and Path(file).is_dir():  # REQUESTS_CA_BUNDLE may be a folder
        del draft.values["predictor_ca_file"]
        draft.values.setdefault("predictor_ca_path", file)
        file = None
    if not draft.values.get("predictor_use_ssl"):
        for name in ("predictor_cert_file", "predictor_key_file"):
            if name in draft.settings:
                draft.ignore(name, "the connection to the predictor has no TLS")
        return
    if file is not None and not Path(file).is_file():
        raise draft.settings["predictor_ca_file"].error("a file that exists")
    both_files(draft, ("predictor_cert_file", "predictor_key_file"), "mutual TLS")
    folders = draft.values.get("predictor_ca_path")
    if folders is not None and not any(Path(folder).is_dir() for folder in folders.split(":") if folder):
        raise draft.settings["predictor_ca_path"].error("a folder that exists")


def both_files(draft: Draft, pair: tuple[str, str], purpose: str) -> None:
    """Raises ConfigError if only one option of a pair is set, or if a file does not exist."""
    for name, partner in (pair, pair[::-1]):
        if name not in draft.settings:
            continue
        if partner not in draft.settings:
            raise ConfigError(f"{draft.source(name)} is given without --{partner}: {purpose} needs both")
        if not Path(draft.values[name]).is_file():
            raise draft.settings[name].error("a file that exists")


def grace_of_connections(draft: Draft) -> None:
    """Warns about a grace without an age."""
    name = "grpc_max_connection_age"
    if f"{name}_grace" in draft.settings and not draft.values.get(name):
        draft.ignore(f"{name}_grace", f"--{name} is 0")


def access_log(draft: Draft) -> None:
    """Refuses unknown atoms of the format at startup instead of at the first request."""
    if "access_log_format" in draft.settings:
        from hf_transformer.observability.access_log import check_format  # here, since few services use it

        check_format(draft.values["access_log_format"], draft.source("access_log_format"))


def quiet_requests(draft: Draft) -> None:
    """Prefers --disable_log_requests to --enable_log_requests, to protect the texts of requests."""
    if draft.values.get("disable_log_requests") and draft.values.get("enable_log_requests"):
        draft.ignore("enable_log_requests", f"{draft.source('disable_log_requests')} is given")
        draft.values["enable_log_requests"] = False


def hosts_of_a_playground(draft: Draft) -> None:
    """Restricts the playground to local host names unless --allowed_hosts is set."""
    if "allowed_hosts" in draft.settings or not draft.values.get("enable_playground"):
        return
    host = draft.values.get("host", ANY_ADDRESS[0]).strip("[]")
    more = () if host in ANY_ADDRESS else (host,)
    draft.values["allowed_hosts"] = tuple(dict.fromkeys((*LOCAL_HOSTS, *more)))


RULES: tuple[Callable[[Draft], None], ...] = (
    mention_ignored,
    partial(only_one, pair=("return_probabilities", "return_raw_logits")),
    partial(only_one, pair=("models", "model_repository")),
    model_control_has_keys,
    distinct_names,
    name_at_predictor,
    one_model,
    hidden_token,
    predictor_address,
    predictor_certificates,
    partial(both_files, pair=("ssl_certfile", "ssl_keyfile"), purpose="HTTPS"),
    grace_of_connections,
    access_log,
    quiet_requests,
    hosts_of_a_playground,
)
