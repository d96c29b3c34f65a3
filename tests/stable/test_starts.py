"""Starts of earlier releases with this version: their manifests' arguments, each flag and variable, files of
``--models`` and values of the chart, stored in this folder (scripts/release)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from hf_transformer.app.application import build_app
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.option import PREFIX
from hf_transformer.config.options import all_options, parse_config
from hf_transformer.config.parser import collect
from scripts.stable_starts import write_starts
from scripts.stable_surface import ROOT, STABLE
from tests.support.chart import render
from tests.support.triton_repository import DEMO_MODEL

RELEASES = sorted(path.parent for path in STABLE.glob("*/starts.json"))
STARTS: Mapping[str, Any] = {folder.name: json.loads((folder / "starts.json").read_text()) for folder in RELEASES}
HOST = "--predictor_host=127.0.0.1:1"
STRICT = "--strict_flags=true"
"""Unknown flags and variables are errors."""
CONTROLLER = "PREDICTOR_HOST"
"""The variable that KServe's controller sets where a manifest leaves the address to it."""


def started_with(kind: str) -> list[tuple[str, str]]:
    """Each release with its containers or flags."""
    assert STARTS
    return [(release, name) for release, starts in STARTS.items() for name in starts[kind]]


@pytest.mark.parametrize(("release", "name"), started_with("containers"))
def test_arguments_and_variables_of_manifests_are_known(release: str, name: str) -> None:
    started = STARTS[release]["containers"][name]
    config, notes = parse_config([*started["args"], STRICT], {CONTROLLER: "triton:8000", **started["env"]})
    assert not [note for note in notes if "deprecated" not in note]
    for argument in started["args"]:
        flag, _, text = argument.removeprefix("--").partition("=")
        known = {option.name: option for option in all_options()}[flag.replace("-", "_")]
        assert known.convert.show(getattr(config, known.name)) == text


def starts_with_the_demo_model() -> list[tuple[str, str]]:
    return [
        (release, name)
        for release, name in started_with("containers")
        if "--model_name=bert" in STARTS[release]["containers"][name]["args"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("release", "name"), starts_with_the_demo_model())
async def test_a_service_starts_with_the_arguments_of_a_manifest(release: str, name: str) -> None:
    started = STARTS[release]["containers"][name]
    arguments = [one for one in started["args"] if not one.startswith(("--model_id", "--model_dir", "--models"))]
    config, _ = parse_config([*arguments, f"--model_dir={DEMO_MODEL}", HOST], started["env"])
    app: Any = build_app(config)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost", verify=False
    ) as client:
        assert (await client.get("/v2/health/live")).status_code == 200


@pytest.mark.parametrize(("release", "flag"), started_with("flags"))
def test_each_flag_takes_what_it_took(release: str, flag: str) -> None:
    text = STARTS[release]["flags"][flag].replace("{file}", __file__)
    settings, notes = collect(all_options(), [HOST, STRICT, f"{flag}={text}"], {})
    assert not [note for note in notes if "deprecated" not in note]
    settings[flag.removeprefix("--")].value()
    variable = f"{PREFIX}{flag.removeprefix('--').upper()}"
    settings, _ = collect(all_options(), [HOST, STRICT], {variable: text})
    settings[flag.removeprefix("--")].value()


@pytest.fixture(scope="module", params=[*STARTS, "this version"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of earlier releases, and those that this version's release will store."""
    if request.param in STARTS:
        return STABLE / str(request.param)
    made = tmp_path_factory.mktemp("starts")
    write_starts(ROOT, {}, made)
    return made


def files(folder: Path, pattern: str) -> list[Path]:
    """Files of a release. 0.16.0 had neither --models nor the chart."""
    found = sorted(folder.glob(pattern))
    assert found or folder.name == "0.16.0"
    return found


def test_files_of_models_are_read(folder: Path) -> None:
    for file in files(folder, "models-*.yaml"):
        entries, _ = ModelEntries([f"--models={file}", HOST], {}).read()
        assert [entry.model_name for entry in entries] == [
            one["model_name"] for one in yaml.safe_load(file.read_text())
        ]


def test_values_of_the_chart_are_accepted(folder: Path) -> None:
    """The chart's schema refuses unknown values."""
    for file in files(folder, "chart-*.yaml"):
        assert render(yaml.safe_load(file.read_text())).service["args"]


def test_this_version_knows_the_arguments_of_its_own_manifests(folder: Path) -> None:
    started = json.loads((folder / "starts.json").read_text())["containers"].values()
    assert started
    for one in started:
        parse_config([*one["args"], STRICT], {CONTROLLER: "triton:8000", **one["env"]})
