"""The wheel's contents, and the package without extras."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hf_transformer
from hf_transformer.api.pages import PLAYGROUND
from hf_transformer.commands.demo import demos
from hf_transformer.extras import install_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "deploy" / "model_repository"
MAX_BYTES = 5_000_000


def build(source: Path, target: Path, kind: str = "wheel") -> Path:
    """Builds a package of the sources and returns its file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (file,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_carries_the_package_and_the_demo_models(wheel: Path) -> None:
    assert wheel.name == f"hf_transformer-{hf_transformer.RELEASE}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    assert wheel.stat().st_size < MAX_BYTES
    files = {path.relative_to(MODELS) for path in MODELS.rglob("*") if path.is_file()}
    files = {path for path in files if "__pycache__" not in path.parts}
    for model in {example.model for example in demos().values()}:
        for name in ("1/model.onnx", "1/model.py", "config.pbtxt", "configs/python.pbtxt", "tokenizer.json"):
            assert Path(model, name) in files
    assert {f"hf_transformer/_model_repository/{path}" for path in files} <= names
    playground = {f"hf_transformer/api/ui/playground/{path.name}" for path in PLAYGROUND.folder.iterdir()}
    assert len(playground) > 10 and playground <= names
    assert {"hf_transformer/commands/cli.py", "hf_transformer/api/document/build.py"} <= names
    page = ("index.html", "start.js", "swagger-ui-bundle.js.gz", "swagger-ui.css.gz", "LICENSE", "NOTICE")
    assert {f"hf_transformer/api/ui/{name}" for name in page} <= names
    information = wheel.name.replace("-py3-none-any.whl", ".dist-info")
    assert {name.split("/")[0] for name in names} == {"hf_transformer", information}


def test_the_sdist_holds_no_environment_and_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(source) as opened:
        opened.extractall(tmp_path, filter="data")
    unpacked = tmp_path / source.name.removesuffix(".tar.gz")
    assert not [path.name for path in unpacked.glob(".*") if path.is_dir()]
    with zipfile.ZipFile(build(unpacked, tmp_path / "wheel")) as second, zipfile.ZipFile(wheel) as first:
        assert sorted(second.namelist()) == sorted(first.namelist())


ADDRESS = "https://code.example/team/service"


def readme(wheel: Path) -> str:
    """The description that a package index shows."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return opened.read(name).decode().partition("\n\n")[2]


def targets(markdown: str) -> list[tuple[str, str]]:
    """Targets of links and pictures, except in code."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)]+)\)|^\[[^]]+\]: (\S+)", prose, re.MULTILINE)


@pytest.mark.parametrize("address", [ADDRESS, None], ids=["an address", "no address"])
def test_links_of_the_readme_lead_to_the_declared_address(address: str | None, tmp_path: Path) -> None:
    """They are relative in the repository, and the address stands in [project.urls] alone."""
    for name in ("hatch_build.py", "README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "hf_transformer", tmp_path / "hf_transformer", ignore=shutil.ignore_patterns("__pycache__"))
    project = re.sub(r"^\[project\.urls\]\n[^\[]*", "", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    urls = f'\n[project.urls]\nRepository = "{address}"\n' if address else ""
    (tmp_path / "pyproject.toml").write_text(project + urls)
    text = readme(build(tmp_path, tmp_path / "dist"))
    source = (ROOT / "README.md").read_text()
    assert source.startswith(text.splitlines()[0])
    files = {inline or named for inline, named in targets(source)}
    links = {inline or named for inline, named in targets(text)}
    assert len(files) > 5 and not any(file.startswith(("http", "/")) for file in files)
    version = f"v{hf_transformer.RELEASE}"
    kinds = {file: "raw" if file.endswith(".webp") else "blob" for file in files}
    assert links == ({f"{address}/{kind}/{version}/{file}" for file, kind in kinds.items()} if address else set())
    assert "![" in source and ("![" in text) == (address is not None)
    assert not re.search(r"\]\[|^\[[^]]+\]: ", text, re.MULTILINE), "definitions of links"


LOAD = """
import sys
sys.modules["transformers"] = None
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.tokenizer import load_tokenizer
try:
    print(len(load_tokenizer(sys.argv[1], {}).encode(["paris"])[0].ids))
except LoadError as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (MODELS / "bert").glob("*.json"):
        shutil.copy(file, tmp_path)
    return tmp_path


def load(folder: Path) -> str:
    return subprocess.run([sys.executable, "-c", LOAD, folder], capture_output=True, text=True, cwd=ROOT).stdout


def test_a_tokenizer_json_needs_no_transformers(folder: Path) -> None:
    assert load(folder).strip() == "3"


def test_without_tokenizer_json_the_error_names_the_extra(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert install_command("transformers") in load(folder)
