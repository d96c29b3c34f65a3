"""What the image is made of, and every name of it in manifests: locks, steps, labels, tags, pull policies.

scripts/test_image installs the locks; it needs the index of packages.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hf_transformer
from tests.deploy.manifests import DEPLOY

ROOT = DEPLOY.parent
IMAGE = DEPLOY / "image"
VERSION = hf_transformer.RELEASE
LOCKS = {"full": ("transformers", "structured", "otel"), "slim": ("otel",)}
"""The extras in each form of the image."""

PLATFORMS = [
    {"python_version": python, "python_full_version": f"{python}.1", "platform_machine": machine, "extra": ""}
    for python in ("3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]


@cache
def lock(name: str) -> tuple[tuple[Requirement, int], ...]:
    """Each requirement of a lock file with the number of its hashes."""
    text = (IMAGE / f"{name}.txt").read_text()
    entries = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    parts = [entry.split(" --hash=sha256:") for entry in entries if entry and not entry.lstrip().startswith("#")]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, *digests in parts for digest in digests)
    return tuple((Requirement(first), len(digests)) for first, *digests in parts)


def versions(name: str, platform: dict[str, str]) -> dict[str, str]:
    """The versions that a lock gives to a platform, by canonical name."""
    pinned: dict[str, str] = {}
    for requirement, _ in lock(name):
        if requirement.marker is None or requirement.marker.evaluate(platform):
            (specifier,) = requirement.specifier
            assert specifier.operator == "==" and not specifier.version.endswith("*")
            key = canonicalize_name(requirement.name)
            assert key not in pinned, f"{key} twice"
            pinned[key] = specifier.version
    return pinned


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", [*LOCKS, "build"])
def test_every_package_of_a_lock_has_a_version_and_hashes(name: str) -> None:
    assert len(lock(name)) > 20
    assert all(hashes for _, hashes in lock(name))


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda one: f"{one['python_version']}-{one['platform_machine']}")
@pytest.mark.parametrize("name", LOCKS)
def test_locks_satisfy_pyproject(project: Any, name: str, platform: dict[str, str]) -> None:
    wanted = list(project["project"]["dependencies"])
    for extra in LOCKS[name]:
        wanted += project["project"]["optional-dependencies"][extra]
    locked = versions(name, platform)
    for requirement in map(Requirement, wanted):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None and requirement.specifier.contains(version), f"{requirement}: run scripts/lock"
    assert "torch" not in locked


@pytest.mark.parametrize("platform", PLATFORMS, ids=lambda one: f"{one['python_version']}-{one['platform_machine']}")
def test_the_slim_image_has_the_same_versions(platform: dict[str, str]) -> None:
    full, slim = versions("full", platform), versions("slim", platform)
    assert slim.items() < full.items()
    assert {"transformers", "llguidance", "jsonschema"} <= full.keys() - slim.keys()


def test_build_lock_satisfies_its_source_and_pyproject(project: Any) -> None:
    lines = (IMAGE / "build.in").read_text().splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")] + project["build-system"]["requires"]
    locked = versions("build", PLATFORMS[0])
    assert wanted
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), f"{requirement}"


def test_script_locks_these_forms() -> None:
    text = (ROOT / "scripts" / "lock").read_text()
    for name, extras in LOCKS.items():
        (line,) = (line for line in text.splitlines() if line.startswith(f"lock {name} "))
        assert tuple(re.findall(r"--extra (\w+)", line)) == extras
    assert {path.name for path in IMAGE.iterdir()} == {"full.txt", "slim.txt", "build.txt", "build.in", "install"}


def test_what_is_installed_is_locked() -> None:
    script = IMAGE / "install"
    assert script.stat().st_mode & 0o111, "the builder starts it"
    subprocess.run(["sh", "-n", script], check=True)
    text = re.sub(r"\s*\\\n\s*", " ", script.read_text())
    lines = [line.strip() for line in text.splitlines()]
    function = next(line for line in lines if " -m pip " in line and " install " in line)
    assert {"--only-binary=:all:", "--no-deps", "--no-compile"} <= set(function.split())
    calls = [line for line in lines if line.startswith("install ")]
    assert len(calls) == 3
    assert all("--require-hashes" in call or "--no-index" in call for call in calls)


# Names of the image.


def files() -> Iterator[Path]:
    """Files under deploy/ and examples/ that are text, and the pages that show manifests."""
    for folder in (DEPLOY, ROOT / "examples", ROOT / "docs"):
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".yaml", ".yml", ".md", ".py", ".json", ".sh", ".txt", ".tpl", ""} and path.is_file():
                if "model_repository" not in path.parts:
                    yield path


def test_every_tag_is_the_version() -> None:
    tags = [
        (path.relative_to(ROOT), tag)
        for path in files()
        for tag in re.findall(r"(?<![\w.-])hf-transformer:(?!8080\b)(\w[\w.-]*)", path.read_text(errors="ignore"))
    ]
    assert {path.parts[0] for path, _ in tags} >= {"deploy", "docs"}
    wrong = [f"{path}: {tag}" for path, tag in tags if tag.removesuffix("-slim") != VERSION]
    assert wrong == [], f"the package is {VERSION}"


def mappings(node: Any) -> Iterator[dict[str, Any]]:
    """All mappings in a document, itself among them."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from mappings(child)


def containers() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The mappings in YAML files whose image is ours. The chart's templates are no YAML before they are rendered."""
    for path in files():
        if path.suffix in {".yaml", ".yml"} and "templates" not in path.parts:
            for document in yaml.safe_load_all(path.read_text()):
                for one in mappings(document):
                    image = one.get("image")
                    if isinstance(image, str) and re.fullmatch(r"(.*/)?hf-transformer([:@].*)?", image):
                        yield path.relative_to(ROOT), one


def test_containers_have_a_tag_and_a_policy() -> None:
    found = list(containers())
    assert {path.parts[:2] for path, _ in found} >= {("deploy", "kubernetes"), ("deploy", "kserve")}
    for path, container in found:
        assert container["image"].endswith(f"hf-transformer:{VERSION}"), path
        if not path.name.startswith("compose"):  # which builds it
            assert container.get("imagePullPolicy") == "IfNotPresent", path


def test_kustomization_and_chart_name_the_version() -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())
    tags = {image["name"]: image["newTag"] for image in kustomization.get("images", []) if "newTag" in image}
    assert tags.get("hf-transformer", VERSION) == VERSION
    for chart in DEPLOY.glob("*/Chart.yaml"):
        assert yaml.safe_load(chart.read_text())["appVersion"] == VERSION
