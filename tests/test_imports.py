"""Imports point down only, folder by folder, as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hf_transformer

ROOT = Path(hf_transformer.__file__).parent

BASE = {"types", "errors", "credentials", "cpus", "extras"}
"""What everybody may import."""

MAY_IMPORT = {
    "__main__": {"commands"},
    "commands": {"app", "server", "api", "core", "generation", "tasks", "tokenizer", "predictor", "config"}
    | {"observability"},
    "app": {"server", "api", "core", "generation", "tasks", "tokenizer", "predictor", "config", "observability"},
    "server": set(),
    "api": {"core", "generation", "tasks", "tokenizer", "protocol", "observability"},
    "core": {"tasks", "tokenizer", "predictor", "observability"},
    "generation": {"core", "tasks", "tokenizer", "predictor", "protocol", "observability"},
    "tasks": set(),
    "tokenizer": {"tasks", "protocol"},
    "predictor": {"protocol", "observability"},
    "protocol": set(),
    "config": {"observability", "tokenizer"},
    "observability": set(),
    **{name: set() for name in BASE},
}
"""What a folder, or a module at the root, may import beside itself and BASE."""

FORBIDDEN = {
    "tasks": ("asyncio", "grpc", "starlette"),
    "protocol": ("grpc", "starlette", "asyncio"),
}
"""Libraries that a folder does without; protocol/pb is generated and holds gRPC stubs."""


@cache
def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if "pb" not in path.parts)


def top_level(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


@cache
def nodes(module: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / module).read_text())))


@cache
def imports(module: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.update((node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)))
    return names


def own_imports(module: Path) -> set[str]:
    """Folders and root modules of this package that a file imports, its own left out."""
    names = {name.split(".")[1] for name in imports(module) if name.startswith("hf_transformer.")}
    found = {name for name in names if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()}
    return found - {top_level(module)}


def test_all_folders_have_a_place_in_the_order() -> None:
    folders = {top_level(module) for module in modules()} - {"__init__"}
    assert folders == MAY_IMPORT.keys(), "a new folder: add it here and to docs/architecture.md"


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_point_down(folder: str) -> None:
    own = [module for module in modules() if top_level(module) == folder]
    upward = {str(module): own_imports(module) - MAY_IMPORT[folder] - BASE for module in own}
    assert own and not {module: names for module, names in upward.items() if names}


API_FAMILIES = ("openai", "anthropic", "dialects", "grpc")
"""Folders of api/ that do not know each other. api/ itself has what they share, and what knows them all."""
ABOVE_FAMILIES = ("document", "table.py", "hints.py", "health.py", "info.py", "openapi.py")


@pytest.mark.parametrize("family", API_FAMILIES)
def test_families_of_apis_are_known_to_few(family: str) -> None:
    elsewhere = [module for module in modules() if module.parts[0] == "api" and module.parts[1] != family]
    prefix = f"hf_transformer.api.{family}"
    knowing = {
        str(module) for module in elsewhere if any(f"{name}.".startswith(f"{prefix}.") for name in imports(module))
    }
    wrong = {module for module in knowing if Path(module).parts[1] not in ABOVE_FAMILIES}
    assert elsewhere and not wrong, f"what {family} and they share stands in api/"


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_keep_to_themselves(folder: str) -> None:
    own = [module for module in modules() if top_level(module) == folder]
    wrong = {str(module): {name.split(".")[0] for name in imports(module)} & {*FORBIDDEN[folder]} for module in own}
    assert own and not {module: names for module, names in wrong.items() if names}


def test_no_import_circles() -> None:
    """Between folders, and between files, imports for type checks included."""
    folders: dict[str, set[str]] = {}
    names = {".".join(("hf_transformer", *module.with_suffix("").parts)): module for module in modules()}
    for module in modules():
        folders.setdefault(top_level(module), set()).update(own_imports(module))
    assert list(TopologicalSorter(folders).static_order())
    files = {name: {imported for imported in imports(module) if imported in names} for name, module in names.items()}
    assert list(TopologicalSorter(files).static_order())


def test_names_of_classes_are_unique() -> None:
    files: dict[str, list[str]] = {}
    for module in modules():
        for node in nodes(module):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(str(module))
    assert files and not {name: places for name, places in files.items() if len(places) > 1}


def test_only_cli_reads_the_process_arguments_and_environment() -> None:
    readers = [
        str(module)
        for module in modules()
        for node in nodes(module)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("sys", "argv"), ("os", "environ"), ("os", "getenv")}
    ]
    assert set(readers) == {"commands/cli.py"}


def test_nothing_but_the_export_imports_torch() -> None:
    served = [module for module in modules() if module.parts[:2] != ("commands", "export")]
    assert not [module for module in served if "torch" in {name.split(".")[0] for name in imports(module)}]
