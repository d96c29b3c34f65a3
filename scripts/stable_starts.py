"""How services of a version are started: the arguments and variables in its manifests, a value for each flag, files of
``--models`` and values of the chart.

``scripts/surface --write`` stores them beside the lists. tests/stable/test_starts.py starts the next version with them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = "{file}"
"""In place of the path of a file, which must exist."""


def write_starts(checkout: Path, examples: Mapping[str, str], folder: Path) -> None:
    """Writes ``starts.json`` with the manifests' containers and ``examples``, a text for each flag. Copies the values
    of the chart and the files of --models."""
    found = {
        "containers": {name: started for name, started in containers(checkout)},
        "flags": dict(sorted(examples.items())),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "starts.json").write_text(f"{json.dumps(found, indent=1)}\n", "utf-8")
    for values in (checkout / "deploy" / "chart").glob("values*.yaml"):
        shutil.copy(values, folder / f"chart-{values.name}")
    for file in manifests(checkout):
        for thing in yaml.safe_load_all(file.read_text("utf-8")):
            if thing and thing["kind"] == "ConfigMap" and "models.yaml" in thing["data"]:
                (folder / f"models-{thing['metadata']['name']}.yaml").write_text(thing["data"]["models.yaml"], "utf-8")


def manifests(checkout: Path) -> list[Path]:
    return [path for name in ("kubernetes", "kserve") for path in sorted((checkout / "deploy" / name).glob("*.yaml"))]


def containers(checkout: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers of the service with their arguments and plain variables, by file and name."""
    for file in manifests(checkout):
        for thing in yaml.safe_load_all(file.read_text("utf-8")):
            for container in containers_in(thing):
                variables = {one["name"]: one["value"] for one in container.get("env", ()) if "value" in one}
                name = f"{file.parent.name}/{file.name} {container['name']}"
                yield name, {"args": container.get("args", []), "env": variables}
    for name, service in yaml.safe_load((checkout / "deploy" / "compose.yaml").read_text("utf-8"))["services"].items():
        if str(service.get("image", "")).startswith("hf-transformer"):
            yield f"compose.yaml {name}", {"args": service["command"], "env": service.get("environment", {})}


def containers_in(thing: Any) -> Iterable[Mapping[str, Any]]:
    """The containers of the service anywhere in an object, by their image."""
    if isinstance(thing, list):
        for item in thing:
            yield from containers_in(item)
    elif isinstance(thing, dict):
        if str(thing.get("image", "")).startswith("hf-transformer"):
            yield thing
        for inner in thing.values():
            yield from containers_in(inner)
