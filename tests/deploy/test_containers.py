"""The Dockerfile, parsed as text: the tests have no container engine."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import hf_transformer
from tests.deploy.manifests import DEPLOY

ROOT = DEPLOY.parent


@dataclass
class Stage:
    """One FROM: its base, alias, and (instruction, value) pairs."""

    base: str
    alias: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def values(self, name: str) -> list[str]:
        return [value for instruction, value in self.instructions if instruction == name]


def stages() -> list[Stage]:
    """The stages in order, with defaults of global ARGs in their bases."""
    lines = [line.strip() for line in (DEPLOY / "Dockerfile").read_text().splitlines()]
    text = "\n".join(line for line in lines if line and not line.startswith("#"))  # also between continuation lines
    defaults: dict[str, str] = {}
    stages: list[Stage] = []
    for line in re.sub(r"\s*\\\n", " ", text).splitlines():
        name, _, value = line.partition(" ")
        if name == "FROM":
            base, _, alias = value.partition(" AS ")
            stages.append(Stage(re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base), alias))
        elif stages:
            stages[-1].instructions.append((name.upper(), value))
        else:
            assert name == "ARG", f"{name} before the first FROM"
            argument, _, default = value.partition("=")
            defaults[argument] = default
    return stages


@pytest.fixture
def builder() -> Stage:
    return stages()[0]


@pytest.fixture
def image() -> Stage:
    return stages()[-1]


def test_two_stages_of_the_same_slim_python(builder: Stage, image: Stage) -> None:
    # A virtual environment links to the interpreter it was made with.
    assert len(stages()) == 2
    assert builder.base == image.base
    assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image.base), "a digest, so that it stays"


def test_builder_installs_a_lock(builder: Stage) -> None:
    """And knows the commit, since the context has no git (tests/stable/test_release.py)."""
    assert builder.values("ARG") == ["LOCK=full", "REVISION="]
    install = 'SOURCE_REVISION="${REVISION}" ./deploy/image/install /opt/venv "${LOCK}"'
    assert builder.values("RUN") == [install]  # tests/deploy/test_image.py


def test_final_stage_installs_nothing(image: Stage) -> None:
    for run in image.values("RUN"):
        assert not re.search(r"\b(apt|apt-get|dpkg|apk|pip|conda|uv|curl|wget|gcc|make)\b", run), run
    assert image.values("ADD") == []
    assert image.values("COPY") == ["--from=builder /opt/venv /opt/venv"]


def test_final_stage_runs_as_user_1000(image: Stage) -> None:
    users = image.values("USER")
    assert users == ["1000:1000"]
    position = image.instructions.index(("USER", users[0]))
    assert "useradd --uid 1000 " in image.values("RUN")[0]
    after = [value for name, value in image.instructions[position:] if name == "RUN"]
    tried = 'hf-transformer --help > /dev/null && python -c "import hf_transformer.app.application"'
    assert after == [tried], "as the user that it will run as"


def test_labels(image: Stage) -> None:
    (labels,) = image.values("LABEL")
    pairs = dict(pair.split("=", 1) for pair in shlex.split(labels))
    prefix = "org.opencontainers.image."
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {name.removeprefix(prefix): value for name, value in pairs.items()} == {
        "title": "hf-transformer",
        "description": project["description"],
        "version": hf_transformer.RELEASE,
        "licenses": project["license"],
        "source": "${SOURCE}",
        "documentation": "${SOURCE}",
        "revision": "${REVISION}",
    }
    assert image.values("ARG") == ["SOURCE=", "REVISION="], "by build argument"


def test_entrypoint_takes_the_arguments_that_kserve_gives(image: Stage) -> None:
    (entrypoint,) = image.values("ENTRYPOINT")
    assert json.loads(entrypoint) == ["hf-transformer"], "the exec form, so that SIGTERM arrives"
    assert image.values("CMD") == []
    assert image.values("EXPOSE") == ["8080 8081"]


def test_environment_of_the_image(image: Stage) -> None:
    environment = dict(pair.split("=", 1) for value in image.values("ENV") for pair in value.split())
    assert environment["PATH"].split(":")[0] == "/opt/venv/bin"
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert environment["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert Path(environment["HF_HOME"]).is_relative_to("/tmp")


def test_context_holds_what_the_builder_copies_and_no_more(builder: Stage) -> None:
    copied = {name.removeprefix("./") for value in builder.values("COPY") for name in value.split()[:-1]}
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*", "everything is left out unless it is named"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    for name in copied:
        assert (ROOT / name).exists(), name
