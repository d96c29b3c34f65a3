"""Imports point down only, as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hf_transformer

ROOT = Path(hf_transformer.__file__).parent

LAYERS = {
    "cli": ("cli", "__main__"),
    "commands": ("commands", "local_triton", "export"),
    "serving": ("serving",),
    "app": ("app", "model_wiring", "model_parts", "generation_wiring", "generation_parts", "diagnosis"),
    "config": ("config", "options", "logs"),
    "model": ("served_model", "bound_model", "pipeline_users", "canary", "sightings", "failure_log"),
    "apis": ("apis",),
    "pipeline": ("pipeline",),
    "parts": (
        "scheduler",
        "refusals",
        "in_flight",
        "places",
        "deadlines",
        "waiting",
        "batch_costs",
        "batches",
        "contract",
        "binding",
        "tokenizer",
        "engines",
        "loading",
        "tasks",
        "worklist",
        "generation",
        "numerics",
    ),
    "predictors": ("predictors",),
    "wire": ("wire",),
    "base": (
        "admission",
        "whole_response",
        "short_way",
        "eager",
        "following",
        "by_identity",
        "types",
        "errors",
        "metrics",
        "access_format",
        "counters",
        "histograms",
        "generation_metrics",
        "latency_log",
        "milliseconds",
        "endings",
        "json_log",
        "tracing",
        "worker_metrics",
        "renewal",
        "key_pair",
        "key_file",
        "workers",
        "signals",
        "__init__",
    ),
}
"""Which layer a top-level module belongs to."""

MAY_IMPORT = {
    "cli": {"commands", "config", "base"},
    "commands": {"app", "serving", "config", "parts", "base"},
    "serving": {"base"},
    "app": {"config", "model", "apis", "pipeline", "parts", "predictors", "base"},
    "config": {"base"},
    "model": {"pipeline", "parts", "predictors", "base"},
    "apis": {"parts", "wire", "base"},
    "pipeline": {"parts", "base"},
    "parts": {"predictors", "base"},
    "predictors": {"wire", "base"},
    "wire": {"base"},
    "base": set(),
}
"""What a layer may import beside itself."""

FORBIDDEN = {
    "tasks": ("predictors", "aiohttp", "grpc", "starlette", "scheduler", "pipeline"),
    "apis": ("predictors", "aiohttp", "config"),
    "predictors": ("tasks", "starlette", "config"),
    "wire": ("aiohttp", "grpc", "starlette", "asyncio"),
}
"""Rules on single folders that the layers alone would not keep. wire/pb is generated and holds grpc stubs."""


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if "pb" not in path.parts)


def top_level(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def layer_of(name: str) -> str:
    for layer, names in LAYERS.items():
        if name in names:
            return layer
    raise AssertionError(f"hf_transformer/{name} is in no layer: add it to LAYERS and to docs/architecture.md")


def imports(module: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(module: Path) -> set[str]:
    """Top-level modules of this package that a file imports."""
    names = {name.split(".")[1] for name in imports(module) if name.startswith("hf_transformer.")}
    return {name for name in names if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()}


@pytest.mark.parametrize("module", modules(), ids=str)
def test_imports_point_down(module: Path) -> None:
    layer = layer_of(top_level(module))
    for name in own_imports(module):
        other = layer_of(name)
        assert other == layer or other in MAY_IMPORT[layer], f"{module} imports {name}"


@pytest.mark.parametrize("module", modules(), ids=str)
def test_folders_keep_to_themselves(module: Path) -> None:
    found = own_imports(module) | {name.split(".")[0] for name in imports(module)}
    assert found.isdisjoint(FORBIDDEN.get(top_level(module), ())), f"{module}: {found}"


def test_only_cli_reads_the_process_arguments_and_environment() -> None:
    readers = [
        str(module)
        for module in modules()
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("sys", "argv"), ("os", "environ"), ("os", "getenv")}
    ]
    assert set(readers) == {"cli.py"}


def test_nothing_but_the_export_imports_torch() -> None:
    served = [module for module in modules() if top_level(module) != "export"]
    assert not [module for module in served if "torch" in {name.split(".")[0] for name in imports(module)}]
    assert [module for module in served if "export" in own_imports(module)] == [Path("commands/export.py")]
