"""Who takes part: the subjects of one model, as far as this machine has what they need."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.speed.analyzer import Inbound
from benchmarks.speed.bare import Direct, PerfAnalyzer, PythonClient
from benchmarks.speed.cases import REAL_MODELS, Model
from benchmarks.speed.measuring import Say
from benchmarks.speed.options import ROOT, UNBATCHED, Options
from benchmarks.speed.subjects import Ensemble, Ground, KServeTransformer, Service, Subject

WRK: Final = "Triton alone, wrk"
PERF_ANALYZER: Final = "Triton alone, perf_analyzer"
PYTHON_CLIENT: Final = "Triton alone, tritonclient"
ASYNCIO: Final = "Triton alone, asyncio"
KSERVE: Final = "KServe SDK transformer"
ENSEMBLE: Final = "ensemble in Triton"
IN_MEMORY: Final = ", shared memory"
_APIS: Final = {"REST": "http", "gRPC": "grpc"}


def variables() -> dict[str, str]:
    """For every process that is started: this checkout's code, and no network."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
    }


def subjects_of(model: Model, ground: Ground, options: Options, flags: Mapping[str, tuple[str, ...]]) -> list[Subject]:
    """All that can be measured for a model, with the forms of the service that ``flags`` has."""
    found: list[Subject] = [
        Service(name, ground, model, options.python, given, only_many=UNBATCHED in name)
        for name, given in flags.items()
        if not (options.quick and UNBATCHED in name and model not in REAL_MODELS)
    ]
    if model not in REAL_MODELS:
        found += _inbound(model, ground, options)
        found += _peers(model, ground)
        found += _bare(model, ground, options)
    names = [one for one in options.only if any(one in subject.name for subject in found)]
    return [subject for subject in found if not names or any(one in subject.name for one in names)]


def _inbound(model: Model, ground: Ground, options: Options) -> list[Subject]:
    """The service as it is by default, asked by perf_analyzer."""
    analyzer = analyzer_of(options)
    if analyzer is None:
        return []
    return [
        Inbound(f"service asked over {label} (V2)", ground, model, options.python, (), analyzer, protocol)
        for label, protocol in _APIS.items()
    ]


def analyzer_of(options: Options) -> list[str] | None:
    """The command of perf_analyzer, with the libraries that it needs."""
    if options.perf_analyzer is None:
        return None
    folders = sorted(options.bench_environment.glob("lib/python*/site-packages/nvidia/*/lib"))
    return ["env", f"LD_LIBRARY_PATH={os.pathsep.join(map(str, folders))}", str(options.perf_analyzer)]


def _peers(model: Model, ground: Ground) -> list[Subject]:
    found: list[Subject] = [Ensemble(ENSEMBLE, ground, model)]
    if importlib.util.find_spec("kserve") is not None:
        found.append(KServeTransformer(KSERVE, ground, model, Path(sys.executable)))
    return found


def _bare(model: Model, ground: Ground, options: Options) -> list[Subject]:
    found: list[Subject] = [Direct(f"{WRK}{more}", ground, model, bool(more)) for more in ("", IN_MEMORY)]
    client = [sys.executable, str(Path(__file__).with_name("bare_client.py"))]
    analyzer = analyzer_of(options)
    least = [str(options.python), str(Path(__file__).with_name("asyncio_client.py"))]
    found += [
        PythonClient(f"{ASYNCIO}, REST{more}", ground, model, least, "http", bool(more)) for more in ("", IN_MEMORY)
    ]
    for label, protocol in _APIS.items():
        if options.quick and protocol == "grpc":
            continue
        for more in ("", IN_MEMORY):
            ending = f", {label}{more}"
            if analyzer is not None:
                found.append(PerfAnalyzer(PERF_ANALYZER + ending, ground, model, analyzer, protocol, bool(more)))
            found.append(PythonClient(PYTHON_CLIENT + ending, ground, model, client, protocol, bool(more)))
    return found


def missing(options: Options, say: Say) -> None:
    """Tells what this machine lacks."""
    if options.perf_analyzer is None:
        say("left out: perf_analyzer, which scripts/bench did not find in a form that runs here")
    if importlib.util.find_spec("kserve") is None:
        say("left out: the KServe SDK's transformer; the package kserve is not installed")
    if not options.minilm.is_dir():
        say(f"left out: the real MiniLM; there is no {options.minilm.name}, see scripts/export_minilm")


def service_flags(options: Options, say: Say) -> dict[str, tuple[str, ...]]:
    """The forms of the service that its version here has, each with the flags that it knows."""
    command = [str(options.python), "-m", "hf_transformer", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, env=variables(), check=True).stdout
    found = {}
    for name, flags in options.services().items():
        unknown = [flag for flag in flags if flag.partition("=")[0] not in text]
        if needed := [flag for flag in unknown if not flag.endswith("=off")]:
            say(f"left out: {name}; this service does not know {', '.join(needed)}")
            continue
        found[name] = tuple(flag for flag in flags if flag not in unknown)
    return found
