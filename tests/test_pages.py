"""Every page of the repository: links, names of files and of code, the length of lines, and the site."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_transformer.config.options import all_options

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", ".github/*.md", "docs/**/*.md", "deploy/**/*.md", "examples/*.md", "benchmarks/**/*.md")
PAGES = sorted(path.relative_to(ROOT) for pattern in PATTERNS for path in ROOT.glob(pattern))
COLUMNS = 100
NOT_WRAPPED = ("docs/configuration.md", "benchmarks/results/", "CHANGELOG.md")
"""Generated pages, and the sections of older versions."""
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^ *```(sh|shell|bash|console|json)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?:\]\(|(?:src|href)=\"|^\[[^]]+\]: )([^)\s\"]+)(?:[)\"]|$)", re.MULTILINE)
NAMED = re.compile(
    r"`((?:\.github|deploy|docs|examples|scripts|benchmarks|tests|protos|hf_transformer)/[\w./-]+)`(?! of Triton)"
)
FOREIGN = re.compile(r"[a-z]+:")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of the page's headings, as GitHub and mkdocs make them."""
    counts: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        counts[slug] = counts.get(slug, -1) + 1
    repeated = {f"{slug}{mark}{n}" for slug, most in counts.items() for n in range(1, most + 1) for mark in "-_"}
    return counts.keys() | repeated


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files of the repository that the page links to, each with the anchor, which may be empty."""
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if not FOREIGN.match(path):
            yield (ROOT / page.parent / path if path else ROOT / page).resolve(), anchor


def site() -> dict[str, Any]:
    """The settings of mkdocs."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return settings


def in_navigation(entry: Any) -> Iterator[str]:
    """The pages in an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from in_navigation(inner)


def test_patterns_find_links_files_and_blocks() -> None:
    """The tests below are about what these find, and a page may have none."""
    pages = "\n".join(prose(page) for page in PAGES)
    assert LINK.search(pages) and NAMED.search(pages)
    assert any(BLOCK.search((ROOT / page).read_text(encoding="utf-8")) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in links(page):
        assert target.exists() and target.is_relative_to(ROOT), target
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.relative_to(ROOT)), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_named_files_exist(page: Path) -> None:
    for path in NAMED.findall(prose(page)):
        assert "NAME" in path or (ROOT / path).exists(), path


@pytest.mark.parametrize("page", [page for page in PAGES if not str(page).startswith(NOT_WRAPPED)], ids=str)
def test_lines_have_at_most_100_columns(page: Path) -> None:
    """Rows of tables, headings and long links may be longer."""
    for line in prose(page).splitlines():
        breakable = not re.match(r" *(\||#|!\[|<|\[[^]]+\]: )", line) and " " in line[:COLUMNS].strip()
        assert len(line) <= COLUMNS or not breakable, line


@pytest.mark.parametrize("page", [page for page in PAGES if not str(page).startswith(NOT_WRAPPED)], ids=str)
def test_commands_and_json_have_at_most_100_columns(page: Path) -> None:
    """The output of a command may be longer."""
    for language, block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        for line in block.splitlines():
            assert len(line) <= COLUMNS or (language == "console" and not line.startswith("$ ")), line


PACKAGE = ROOT / "hf_transformer"
ABOUT_CODE = re.compile(
    r"(CONTRIBUTING|docs/(architecture|by_hand|dependencies|glossary|stability|decisions/\d.*))\.md"
)
"""Pages for contributors. Names in other pages may be those of libraries."""
DATA_FILE = re.compile(r"\.(json|js|md|pbtxt|sh|toml|ya?ml)$")
FILE_AND_NAMES = re.compile(
    r"`(?:hf_transformer/)?([\w/]+\.py)`((?:[\s,:|]+(?:(?:and|or|then|has) )?`\w+(?:\.\w+)?`)+)"
)
"""A file of the package, and names that follow it as in "`core/queue.py`, `Queue` and `Entry`" or as cells of a row."""
OF_OTHERS = {"CrossEncoder.rank"}  # a class of sentence-transformers, and also one here


@cache
def defined() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """The names that each file of the package defines, and the members of each class, inherited ones included."""
    files: dict[str, set[str]] = {}
    members: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    classes: list[tuple[str, str]] = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = str(path.relative_to(PACKAGE))
        files[file] = set(names_in(tree.body))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                members[node.name].update(names_in(node.body), attributes_in(node))
                bases[node.name].update(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
                classes.append((file, node.name))
    for _ in range(4):  # the deepest tree of classes
        for name, parents in bases.items():
            members[name].update(*(members[parent] for parent in parents if parent in bases))
    for file, name in classes:
        files[file] |= members[name]
    return files, {name: members[name] for name in bases}


def names_in(body: list[ast.stmt]) -> Iterator[str]:
    """The names that statements define: functions, classes, variables."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def attributes_in(node: ast.ClassDef) -> Iterator[str]:
    """The attributes that the methods of a class set."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self":
            yield inner.attr


def is_importable(name: str) -> bool:
    """Whether an installed library, or a folder of the repository, has this module or this member of a module."""
    owner, _, member = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(owner), member) or bool(importlib.import_module(name))
    except ImportError:
        return (ROOT / f"{name.replace('.', '/')}.py").is_file()


def missing_names(text: str, about_code: bool) -> Iterator[str]:
    """The names in backticks that the package does not define.

    On every page: files in folders of the package, names after a file, and members of classes. On pages about the code
    also other dotted names, which modules and libraries define, private names, and names in the form of a class's.
    """
    files, members = defined()
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        folder, is_bare = PACKAGE / path.partition("/")[0], "/" not in path
        if "NAME" not in path and (about_code if is_bare else folder.is_dir()):
            if not any(file == path or (is_bare and file.endswith(f"/{path}")) for file in files):
                yield path
    for path, names in FILE_AND_NAMES.findall(text):
        for name in re.findall(r"`([\w.]+)`", names):
            if path in files and not name.endswith(".py") and name.rpartition(".")[2] not in files[path]:
                yield f"{path}: {name}"
    for name in set(re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", text)) - OF_OTHERS:
        owner, dot, member = name.rpartition(".")
        holder = owner.rpartition(".")[2]
        if DATA_FILE.search(name) or name.endswith(".py"):
            continue
        if holder in members:
            known = member in members[holder]
        elif not about_code:
            continue
        elif dot:
            modules = [names for file, names in files.items() if f"/{file}".endswith(f"/{owner.replace('.', '/')}.py")]
            known = any(member in names for names in modules) or is_importable(name)
        elif name.startswith("_") or re.fullmatch(r"[A-Z]+[a-z]\w*", name):
            known = any(name in names for names in files.values())
        else:
            continue
        if not known:
            yield name


@pytest.mark.parametrize(
    "page", [page for page in PAGES if ABOUT_CODE.match(str(page)) or "docs" in page.parts], ids=str
)
def test_named_classes_and_functions_exist(page: Path) -> None:
    text = " ".join(prose(page).split())
    assert not list(missing_names(text, ABOUT_CODE.match(str(page)) is not None))


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`Scheduler.run` of `core/none.py`", {"Scheduler.run", "core/none.py"}),
        ("`core/queue.py`, `Queue.add` and `gone`", {"core/queue.py: gone"}),
        ("`_gone` or `Gone`, `queue.Queue` or `queue.gone`", {"_gone", "Gone", "queue.gone"}),
    ],
    ids=["members and files", "after a file", "private, classes, modules"],
)
def test_missing_names_are_found(text: str, missing: set[str]) -> None:
    assert set(missing_names(text, about_code=True)) == missing


def test_the_site_shows_every_page_of_docs() -> None:
    shown = set(in_navigation(site()["nav"]))
    pages = {page.name for page in ROOT.glob("docs/*.md")}
    assert pages and pages <= shown
    for name in shown - {"index.md", "reference/routes.md"}:
        assert (ROOT / "docs" / name).exists() or (ROOT / name).exists(), name


OWN_ADDRESS = re.compile(
    r"(?:github\.com|githubusercontent\.com|readthedocs\.\w+)/[\w-]+/hf[-_]transformer|hf[-_]transformer\.github\.io"
    r"|(?:ghcr\.io|docker\.io|quay\.io)/[\w/-]*hf[-_]transformer|pypi\.org/project/hf[-_]transformer"
)


def test_no_file_but_pyproject_has_an_address_of_the_project() -> None:
    """Pages are linked by their path in the repository, and the packages by [project.urls]."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tests/test_pages.py" in listed.splitlines()
    for path in listed.splitlines():
        if (ROOT / path).is_file() and path not in ("tests/test_pages.py", "pyproject.toml"):
            text = (ROOT / path).read_bytes().decode("utf-8", "replace")
            assert not (found := OWN_ADDRESS.search(text)), f"{path}: {found and found[0]}"


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.stem)
def test_workflows_are_read_only_bounded_and_pinned(path: Path) -> None:
    """Permissions start at read, jobs have timeouts, actions are pinned, and make targets exist."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 120
        for step in job["steps"]:
            assert "uses" not in step or re.search(r"@[0-9a-f]{40}$", step["uses"]), step
            named = re.match(r"make ([\w-]+)$", step.get("run", ""))
            assert named is None or named[1] in targets, named
        assert set(job.get("strategy", {}).get("matrix", {}).get("suite", ())) <= targets


def test_ci_tests_the_versions_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    assert project["requires-python"] == f">={declared[0]}"


SUPPORTED = re.compile(r"Python[\s]+(3\.\d+)(?: to (3\.\d+)| or newer|\+)?")


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/index.md", "docs/first_model.md", "docs/install.md"]
)
def test_pages_name_the_versions_of_python_that_the_package_declares(page: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = [name.rpartition(" ")[2] for name in project["classifiers"] if re.search(r":: 3\.\d+$", name)]
    found = SUPPORTED.search((ROOT / page).read_text(encoding="utf-8"))
    assert found is not None and found.groups() == (declared[0], declared[-1])


@pytest.mark.parametrize(
    "page",
    ["SECURITY.md", "deploy/README.md"]
    + [f"docs/{name}.md" for name in ("architecture", "coming_from_kserve", "coming_from_tei", "glossary")]
    + [f"docs/{name}.md" for name in ("metrics", "operations", "scaling", "tokenizer_plane")],
)
def test_flags_of_the_pages_about_running_it_exist(page: str) -> None:
    known = {name for option in all_options() for name in (option.name, *option.aliases)}
    # Other programs have flags of one word, too, and write hyphens instead of underscores.
    named = set(re.findall(r"--([a-z]+(?:_[a-z]+)+)\b", (ROOT / page).read_text()))
    assert named and named <= known


@pytest.mark.parametrize("page", ["glossary", "operations", "scaling"])
def test_metrics_that_pages_name_are_listed(page: str) -> None:
    listed = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    named = set(re.findall(r"`(hf_transformer_\w+)[`{]", (ROOT / "docs" / f"{page}.md").read_text()))
    assert named and named <= listed
