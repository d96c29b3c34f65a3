"""The command that installs an extra, as messages advise it."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

NAME: Final = "hf-transformer"
PACKAGE: Final = Path(__file__).parent


def install_command(extra: str) -> str:
    """Returns pip's command for an extra.

    It names the package as this installation got it: an index, a checkout, a wheel or a repository of git, since an
    index need not have the package. It names the libraries if the checkout or wheel is gone.
    """
    try:
        distribution = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH
        return _pip(_folder(PACKAGE.parent, extra))
    text = distribution.read_text("direct_url.json")
    if text is None:
        return _pip(f"{NAME}[{extra}]")
    source: dict[str, Any] = json.loads(text)  # https://packaging.python.org/en/latest/specifications/direct-url/
    url, path = source["url"], Path(unquote(urlsplit(source["url"]).path))
    if url.startswith("file:") and not path.exists():
        wanted = re.compile(rf"(.+?) *; *extra == ['\"]{re.escape(extra)}['\"]")
        return _pip(*(found[1] for one in distribution.requires or () if (found := wanted.fullmatch(one))))
    if "dir_info" in source:
        editable = ["--editable"] if source["dir_info"].get("editable") else []
        return _pip(*editable, _folder(path, extra))
    if "vcs_info" in source:
        url = f"{source['vcs_info']['vcs']}+{url}@{source['vcs_info']['commit_id']}"
    return _pip(f"{NAME}[{extra}] @ {url}")


def _folder(folder: Path, extra: str) -> str:
    return f".[{extra}]" if folder == Path.cwd() else f"{folder}[{extra}]"


def _pip(*arguments: str) -> str:
    return shlex.join(["pip", "install", *arguments])
