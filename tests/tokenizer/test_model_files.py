"""Files are found in local folders, in a hub's cache without any request, and are downloaded else."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.app.wiring import load_parts
from hf_transformer.config.options import parse_config
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import has_tokenizer, read_json
from hf_transformer.tokenizer.load import growth_of
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.sentence_transformers import read_sentence_transformers
from hf_transformer.tokenizer.tokenizer import load_tokenizer
from tests.support.triton_repository import DEMO_MODELS
from tests.tiny_tokenizers.hub import Hub, lay_out_cache, serve
from tests.tiny_tokenizers.trained import save, wordpiece

REPO = "some-org/tiny-bert"
COMMIT, OLDER = "a" * 40, "b" * 40
CONFIG = {"model_type": "bert", "max_position_embeddings": 64}
TOKEN = "hf_secretsecretsecret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"tokenizer_class": "BertTokenizer"}
    return save(tmp_path_factory.mktemp("model"), wordpiece(lowercase=True), settings=settings, config=CONFIG)


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


# Local folders


def replacing(*pairs: tuple[str, str], kind: str = "String") -> dict[str, Any]:
    steps = [{"type": "Replace", "pattern": {kind: before}, "content": after} for before, after in pairs]
    return {"type": "Sequence", "normalizers": steps}


CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + b"trie" + b"a\0" + b"b" * 500 + b"\0").decode()
HTML = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")]
CHAIN = {"type": "Sequence", "normalizers": [*replacing(("a", "b" * 20))["normalizers"]]}
CHAIN["normalizers"] += replacing((".", "x" * 20), kind="Regex")["normalizers"]
GROWTH = {
    "a chain": (replacing(("a", "b" * 10), ("b", "c" * 10), ("c", "d" * 10)), 1000),
    "one step": (replacing(("ab", "x" * 400)), 200),
    "a pattern": (replacing((".", "x" * 200), kind="Regex"), 200),
    "between all characters": (replacing(("", "x" * 200)), 201),
    "a pattern after a text": (CHAIN, 400),
    "prepended": ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 300}]}, 301),
    "escapes": (replacing(*HTML), 0),
    "two spaces": (replacing((" {2,}", "▁"), kind="Regex"), 0),
}
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.mark.parametrize("name", GROWTH)
def test_a_normalizer_that_makes_texts_far_longer_is_refused(
    name: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    """400 characters took 13 GB."""
    normalizer, times = GROWTH[name]
    fill(tmp_path, {**files, "tokenizer_config.json": json.dumps(GENERIC).encode()})
    document = {**json.loads(files["tokenizer.json"]), "normalizer": normalizer}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    if times:
        with pytest.raises(LoadError, match=f"makes a text up to {times} times as long, expected 100 at most: see the"):
            load_tokenizer(tmp_path, CONFIG)
    else:
        load_tokenizer(tmp_path, CONFIG)


def test_a_table_of_characters_that_makes_texts_far_longer_is_refused() -> None:
    assert growth_of({"type": "Precompiled", "precompiled_charsmap": CHARSMAP}) == 500


def test_a_decoder_that_makes_texts_far_longer_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 300}
    fill(tmp_path, {**files, "tokenizer_config.json": json.dumps(GENERIC).encode()})
    document = {**json.loads(files["tokenizer.json"]), "decoder": {"type": "Sequence", "decoders": [step]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(LoadError, match="up to 300 times as long"):
        load_tokenizer(tmp_path, CONFIG)


def test_local_folder(folder: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    for found in (find_model_files(None, str(folder)), find_model_files(str(folder), "/nowhere")):
        assert (found.model_folder, found.tokenizer_folder, found.config) == (folder, folder, CONFIG)
    fill(tmp_path, {"tokenizer.json": files["tokenizer.json"]})
    assert find_model_files(None, str(tmp_path)).config == {}


def test_files_of_a_local_folder(tmp_path: Path, files: dict[str, bytes]) -> None:
    for content, says in (
        (b'{"model_type": ', "is not valid JSON"),
        (b"[]", "must hold a JSON object, but holds a list"),
    ):
        fill(tmp_path, {**files, "config.json": content})
        with pytest.raises(LoadError, match=rf"config\.json {says}"):
            find_model_files(None, str(tmp_path))
    with pytest.raises(LoadError, match=r"gone\.json is missing"):
        read_json(tmp_path / "gone.json", required=True)
    # Without a vocabulary the class says whether there is a tokenizer.
    settings: Any
    for settings, has in (({"tokenizer_class": "ByT5Tokenizer"}, True), ({"auto_map": {}}, True), ({}, False)):
        folder = tmp_path / str(len(settings)) / next(iter(settings), "none")
        folder.mkdir(parents=True)
        assert has_tokenizer(save(folder, None, settings={"tokenizer_class": "X", **settings})) is has


def test_model_repository_layout(tmp_path: Path, files: dict[str, bytes]) -> None:
    (fill(tmp_path / "bert", files) / "1").mkdir()
    found = find_model_files(None, str(tmp_path), model_name="bert")
    assert (found.tokenizer_folder, found.config) == (tmp_path / "bert", CONFIG)
    for folder, name in ((tmp_path, "other"), (tmp_path / "bert" / "1", "..")):
        with pytest.raises(LoadError, match="no tokenizer files in"):
            find_model_files(None, str(folder), model_name=name)


TRITONS = "which looks like Triton's model repository: expected the folder with"


@pytest.mark.parametrize(
    ("made", "asked", "says"),
    [
        (["config.json", "a.onnx"], "", r"no tokenizer files in .*vocab\.txt.*it holds a\.onnx, config\.json\. "),
        (["bert/tokenizer.json"], "", r"no tokenizer files in .*it holds bert/\. Put tokenizer\.json there or set"),
        ([], "gone", "the model folder .*/gone does not exist"),
        (["file"], "file", "the model folder .*/file is not a folder"),
        (["config.pbtxt"], "", rf"{TRITONS}.* it holds config\.pbtxt\. Set --model_dir"),
        (["1/model.onnx"], "", rf"{TRITONS}.* it holds 1/\. Set --model_dir"),
        (["bert/config.pbtxt"], "", rf"{TRITONS}.* it holds bert/\. Set --model_dir"),
        (["bert/1/model.onnx"], "", rf"{TRITONS}.* it holds bert/\. Set --model_dir"),
    ],
)
def test_a_folder_without_a_tokenizer(tmp_path: Path, made: list[str], asked: str, says: str) -> None:
    fill(tmp_path, dict.fromkeys(made, b"{}"))
    with pytest.raises(LoadError, match=says) as caught:
        find_model_files(None, str(tmp_path / asked))
    assert "\n" not in str(caught.value)
    with pytest.raises(LoadError, match=f"--model_id={tmp_path}/gone: there is no such folder"):
        find_model_files(str(tmp_path / "gone"), str(tmp_path))


def test_a_folder_that_may_not_be_read_is_none_of_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lost+found").mkdir()
    listed = Path.iterdir

    def refusing(path: Path) -> Iterator[Path]:
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    with pytest.raises(LoadError, match=r"it holds lost\+found/\. Put tokenizer\.json there or set --model_id$"):
        find_model_files(None, str(tmp_path))


# A hub's cache


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to connect fails, and is seen here."""
    found: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        found.append(arguments)
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return found


@pytest.mark.parametrize("revision", [None, "main", "refs/pr/1", COMMIT], ids=["default", "branch", "pr", "commit"])
def test_cache_needs_no_network(
    revision: str | None, tmp_path: Path, files: dict[str, bytes], attempts: list[Any]
) -> None:
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main", "refs/pr/1"], files)
    found = find_model_files(REPO, "/nowhere", model_revision=revision, token=TOKEN, cache_dir=tmp_path)
    assert (found.model_folder, found.tokenizer_folder, found.config) == (snapshot, snapshot, CONFIG)
    assert load_tokenizer(found.tokenizer_folder, found.config).max_length == 64
    older = lay_out_cache(tmp_path, REPO, OLDER, ["v1"], files)
    found = find_model_files(REPO, "/nowhere", model_revision=revision, tokenizer_revision="v1", cache_dir=tmp_path)
    assert (found.model_folder, found.tokenizer_folder, attempts) == (snapshot, older, [])


def test_partial_cache_is_not_taken_for_a_whole_one(
    tmp_path: Path, files: dict[str, bytes], attempts: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    part = {name: content for name, content in files.items() if name != "tokenizer_config.json"}
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main"], part)
    listing = {name: {"size": len(content), "blob_id": "0" * 40} for name, content in files.items()}
    tree = json.dumps({"format_version": 1, "files": listing}).encode()
    fill(snapshot.parents[1] / "trees", {f"{COMMIT}.json": tree})
    found = find_model_files(REPO, "/nowhere", cache_dir=tmp_path)
    assert attempts, "the missing file was asked for"
    assert found.tokenizer_folder == snapshot
    assert "using the files in" in caplog.text


@pytest.mark.parametrize(
    ("repo", "says"),
    [
        (REPO, f"^--model_id={REPO} revision main is not in the hub's cache and the hub can't be reached.*--model_dir"),
        ("a/b/c", "neither a folder here nor an id of the form"),
    ],
)
def test_not_in_cache_and_no_network(tmp_path: Path, repo: str, says: str, attempts: list[Any]) -> None:
    with pytest.raises(LoadError, match=says) as caught:
        find_model_files(repo, "/nowhere", token=TOKEN, cache_dir=tmp_path)
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    assert bool(attempts) == (repo == REPO)


# Downloads, each in a process of its own that reads HF_HOME and so on afresh

START = """
import sys, json
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.tokenizer import load_tokenizer
try:
    found = find_model_files("some-org/tiny-bert", "/nowhere", **json.loads(sys.argv[1]))
    tokenizer = load_tokenizer(found.tokenizer_folder, found.config)
except LoadError as exc:
    sys.exit(f"LoadError: {exc}")
print(found.tokenizer_folder.name, tokenizer.max_length, tokenizer.encode(["paris"])[0].ids)
print("huggingface_hub.file_download" in sys.modules)
"""


def start(home: Path, hub: Hub | None, options: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """``options`` are those of find_model_files. Without a hub there is none at the address."""
    endpoint = "http://127.0.0.1:9" if hub is None else hub.endpoint
    base = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5"}
    base |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin"}
    command = [sys.executable, "-c", START, json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, env=base | environment, check=False, timeout=60)


@pytest.mark.slow
def test_download_then_start_without_a_request(tmp_path: Path, files: dict[str, bytes]) -> None:
    more = {"model.safetensors": b"w" * 100, "onnx/model.onnx": b"w", "pytorch_model.bin": b"w", "modeling.py": b"1"}
    hub = Hub(REPO, {"main": COMMIT, "v1": OLDER}, {**files, **more, "1_Pooling/config.json": b"{}"}, token=TOKEN)
    given = {"model_revision": "v1", "token": TOKEN}
    with serve(hub):
        first = start(tmp_path, hub, given)
        assert first.stdout.splitlines()[0].startswith(f"{OLDER} 64 ["), first.stderr
        assert {sent for _, path, sent in hub.requests if REPO in path} == {f"Bearer {TOKEN}"}
        fetched = {path.split(f"{OLDER}/")[1] for _, path, _ in hub.requests if "/resolve/" in path}
        assert fetched == {*files, "1_Pooling/config.json"}
        hub.requests.clear()
        second = start(tmp_path, hub, given)
        assert second.stdout.splitlines() == [first.stdout.splitlines()[0], "False"]
        assert hub.requests == []


@pytest.mark.slow
def test_what_the_environment_says(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, {**files, "own.py": b"1"}, token=TOKEN)) as hub:
        done = start(tmp_path, hub, {"trust_remote_code": True}, HF_TOKEN=TOKEN)
        assert done.stdout.startswith(COMMIT), done.stderr
        assert any(path.endswith("/own.py") for _, path, _ in hub.requests), "with remote code only"
    lay_out_cache(tmp_path / "other", REPO, OLDER, ["main"], files)
    other = start(tmp_path, None, {}, HF_HUB_CACHE=str(tmp_path / "other"))
    assert other.stdout.startswith(OLDER), other.stderr


class Echoing(Hub):
    """Repeats the client's token in an error."""

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        return 400, {"X-Error-Message": f"no use for {authorization}"}, b""


MAIN = {"main": COMMIT}
GATED = Hub(REPO, MAIN, {}, token="another", gated=True)
FAILURES: dict[str, tuple[Hub | None, Any, str]] = {
    "unknown repository": (Hub("another/one", MAIN, {}), {}, "the hub has no such model.*set HF_TOKEN"),
    "gated": (GATED, {}, f"--model_id={REPO} is gated: set HF_TOKEN"),
    "gated for a token": (GATED, {"token": TOKEN}, "is gated: ask for access"),
    "unknown revision": (Hub(REPO, MAIN, {}), {"model_revision": "v9"}, r"has no revision v9 \(--model_revision"),
    "no tokenizer": (
        Hub(REPO, MAIN, {"config.json": b"{}", "model.onnx": b""}),
        {},
        rf"no tokenizer files in {REPO} \(revision main\).*it holds config\.json\.",
    ),
    "token repeated": (Echoing(REPO, MAIN, {}), {"token": TOKEN}, r"reached \(.*no use for Bearer \*\*\*"),
    "offline": (None, {"token": TOKEN}, r"not in the hub's cache and .* can't be reached \(OfflineModeIsEnabled"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("hub", "given", "says"), FAILURES.values(), ids=FAILURES)
def test_a_start_that_fails_says_why_in_one_line(tmp_path: Path, hub: Hub | None, given: Any, says: str) -> None:
    if hub is None:
        done = start(tmp_path, None, given, HF_HUB_OFFLINE="1")
    else:
        with serve(hub):
            done = start(tmp_path, hub, given)
    assert done.returncode == 1 and TOKEN not in done.stdout + done.stderr
    assert re.fullmatch(f"LoadError: .*{says}.*", done.stderr.strip()), done.stderr


def test_the_transformer_folder_of_old_sentence_transformers(tmp_path: Path) -> None:
    """Its first versions kept the transformer's files in the folder of the first module."""
    inner = tmp_path / "0_Transformer"
    inner.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(DEMO_MODELS / "minibert_mean" / name, inner / name)
    (inner / "sentence_bert_config.json").write_text('{"max_seq_length": 32}')
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    files = find_model_files(None, str(tmp_path))
    assert (files.model_folder, files.tokenizer_folder) == (tmp_path, inner)
    assert files.config["model_type"] == "bert"
    found = read_sentence_transformers(files.model_folder)
    assert found is not None and found.max_seq_length == 32
    parts = load_parts(parse_config([f"--model_dir={tmp_path}", "--model_name=m", "--predictor_host=x"], {})[0])
    assert (parts.task.name, parts.tokenizer.max_length) == ("text_embedding", 32)
