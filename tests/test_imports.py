"""Imports point down only, folder by folder, as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hf_transformer

ROOT = Path(hf_transformer.__file__).parent

BASE = {"types", "errors", "credentials", "extras"}
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


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if "pb" not in path.parts)


def top_level(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


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
    """Folders and root modules of this package that a file imports, its own left out."""
    names = {name.split(".")[1] for name in imports(module) if name.startswith("hf_transformer.")}
    found = {name for name in names if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()}
    return found - {top_level(module)}


@pytest.mark.parametrize("module", [one for one in modules() if top_level(one) != "__init__"], ids=str)
def test_imports_point_down(module: Path) -> None:
    folder = top_level(module)
    assert folder in MAY_IMPORT, f"hf_transformer/{folder} is new: add it here and to docs/architecture.md"
    wrong = own_imports(module) - MAY_IMPORT[folder] - BASE
    assert not wrong, f"{module} imports {', '.join(sorted(wrong))}"


API_FAMILIES = ("openai", "dialects", "grpc")
"""Folders of api/ that do not know each other. api/ itself has what they share, and what knows them all."""
ABOVE_FAMILIES = ("document", "table.py", "hints.py", "health.py", "info.py", "openapi.py")


@pytest.mark.parametrize("module", [one for one in modules() if one.parts[0] == "api"], ids=str)
def test_families_of_apis_do_not_know_each_other(module: Path) -> None:
    own = module.parts[1]
    families = {name.split(".")[2] for name in imports(module) if name.startswith("hf_transformer.api.")}
    known = families & {*API_FAMILIES} - {own}
    if own not in ABOVE_FAMILIES:
        assert not known, f"{module} imports {', '.join(sorted(known))}: what they share stands in api/"


@pytest.mark.parametrize("module", modules(), ids=str)
def test_folders_keep_to_themselves(module: Path) -> None:
    found = {name.split(".")[0] for name in imports(module)}
    assert found.isdisjoint(FORBIDDEN.get(top_level(module), ())), f"{module}: {found}"


def test_no_import_circles() -> None:
    """Between folders, and between files, imports for type checks included."""
    folders: dict[str, set[str]] = {}
    names = {".".join(("hf_transformer", *module.with_suffix("").parts)): module for module in modules()}
    for module in modules():
        folders.setdefault(top_level(module), set()).update(own_imports(module))
    assert list(TopologicalSorter(folders).static_order())
    files = {name: {imported for imported in imports(module) if imported in names} for name, module in names.items()}
    assert list(TopologicalSorter(files).static_order())


def test_only_cli_reads_the_process_arguments_and_environment() -> None:
    readers = [
        str(module)
        for module in modules()
        for node in ast.walk(ast.parse((ROOT / module).read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in {("sys", "argv"), ("os", "environ"), ("os", "getenv")}
    ]
    assert set(readers) == {"commands/cli.py"}


def test_nothing_but_the_export_imports_torch() -> None:
    served = [module for module in modules() if module.parts[:2] != ("commands", "export")]
    assert not [module for module in served if "torch" in {name.split(".")[0] for name in imports(module)}]
