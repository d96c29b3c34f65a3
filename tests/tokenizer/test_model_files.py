"""Files are found in local folders, in a hub's cache without any request, and are downloaded else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import find_model_files, has_tokenizer, read_json
from hf_transformer.tokenizer.tokenizer import load_tokenizer
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


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Every attempt to connect fails, and is seen."""
    attempts: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        attempts.append(arguments)
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield attempts


def start(home: Path, endpoint: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """find_model_files and load_tokenizer in a process of their own, which reads HF_HOME and so on afresh."""
    code = (
        "import sys, json\n"
        "from hf_transformer.tokenizer.files import find_model_files\n"
        "from hf_transformer.tokenizer.tokenizer import load_tokenizer\n"
        "from hf_transformer.errors import LoadError\n"
        "options = json.loads(sys.argv[1])\n"
        "try:\n"
        "    found = find_model_files(options.pop('model_id'), '/nowhere', **options)\n"
        "    t = load_tokenizer(found.tokenizer_folder, found.config)\n"
        "except LoadError as exc:\n"
        "    sys.exit(f'LoadError: {exc}')\n"
        "print(found.tokenizer_folder.name, t.max_length, t.encode(['paris'])[0].ids)\n"
        "print('huggingface_hub.file_download' in sys.modules)\n"
    )
    base = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin", **base, **environment},
        check=False,
        timeout=60,
    )


def options(**given: Any) -> str:
    return json.dumps({"model_id": REPO, **given})


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed start says."""
    assert done.returncode == 1, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("LoadError: ")
    return line


def test_local_folder(folder: Path) -> None:
    for found in (find_model_files(None, str(folder)), find_model_files(str(folder), "/nowhere")):
        assert (found.model_folder, found.tokenizer_folder, found.config) == (folder, folder, CONFIG)


def test_local_folder_without_config(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert find_model_files(None, str(tmp_path)).config == {}


def test_model_repository_layout(folder: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "bert" / "1").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "bert" / name).write_bytes(content)
    found = find_model_files(None, str(tmp_path), model_name="bert")
    assert found.tokenizer_folder == tmp_path / "bert"
    assert found.config == CONFIG
    with pytest.raises(LoadError, match=r"no tokenizer files in .*it holds bert/\."):
        find_model_files(None, str(tmp_path), model_name="other")


@pytest.mark.parametrize("inside", ["config.pbtxt", "1/model.onnx", "bert/config.pbtxt", "bert/1/model.onnx"])
def test_a_folder_of_triton_without_a_tokenizer(tmp_path: Path, inside: str) -> None:
    (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / inside).touch()
    with pytest.raises(LoadError) as caught:
        find_model_files(None, str(tmp_path), model_name="bert")
    assert f"{tmp_path}, which looks like Triton's model repository: expected the folder with" in str(caught.value)
    assert f"it holds {inside.partition('/')[0]}{'/' * ('/' in inside)}. Set --model_dir" in str(caught.value)


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


def test_a_model_name_leads_out_of_no_folder(tmp_path: Path, files: dict[str, bytes]) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(LoadError, match="no tokenizer files"):
        find_model_files(None, str(inner), model_name="..")


def test_local_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=f"{tmp_path}/gone does not exist"):
        find_model_files(None, str(tmp_path / "gone"))
    with pytest.raises(LoadError, match=f"--model_id={tmp_path}/gone: there is no such folder"):
        find_model_files(str(tmp_path / "gone"), str(tmp_path))


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(LoadError, match=r"vocab\.txt.*it holds config\.json, model\.onnx\.") as caught:
        find_model_files(None, str(tmp_path))
    assert "\n" not in str(caught.value)


def test_broken_json_names_the_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text('{"model_type": ')
    with pytest.raises(LoadError, match=r"config\.json is not valid JSON"):
        find_model_files(None, str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(LoadError, match=r"config\.json must hold a JSON object, but holds a list"):
        find_model_files(None, str(tmp_path))
    with pytest.raises(LoadError, match=r"gone\.json is missing"):
        read_json(tmp_path / "gone.json", required=True)


@pytest.mark.parametrize(
    ("settings", "has"),
    [({"tokenizer_class": "ByT5Tokenizer"}, True), ({"auto_map": {}}, True), ({"tokenizer_class": "X"}, False)],
    ids=["byt5", "own-code", "no-vocabulary"],
)
def test_tokenizers_without_vocabulary_files(tmp_path: Path, settings: dict[str, Any], has: bool) -> None:
    save(tmp_path, None, settings=settings)
    assert has_tokenizer(tmp_path) is has


@pytest.mark.parametrize("revision", [None, "main", "refs/pr/1", COMMIT], ids=["default", "branch", "pr", "commit"])
def test_cache_needs_no_network(
    revision: str | None, tmp_path: Path, files: dict[str, bytes], no_network: list[Any]
) -> None:
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main", "refs/pr/1"], files)
    found = find_model_files(REPO, "/nowhere", model_revision=revision, token=TOKEN, cache_dir=tmp_path)
    assert (found.model_folder, found.tokenizer_folder, found.config) == (snapshot, snapshot, CONFIG)
    assert load_tokenizer(found.tokenizer_folder, found.config).max_length == 64
    assert no_network == []


def test_tokenizer_revision_from_cache(tmp_path: Path, files: dict[str, bytes], no_network: list[Any]) -> None:
    model = lay_out_cache(tmp_path, REPO, COMMIT, ["main"], {"config.json": files["config.json"]})
    tokenizer = lay_out_cache(tmp_path, REPO, OLDER, ["v1"], files)
    found = find_model_files(REPO, "/nowhere", tokenizer_revision="v1", cache_dir=tmp_path)
    assert (found.model_folder, found.tokenizer_folder) == (model, tokenizer)
    assert no_network == []


def test_partial_cache_is_not_taken_for_a_whole_one(
    tmp_path: Path, files: dict[str, bytes], no_network: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    part = {name: content for name, content in files.items() if name != "tokenizer_config.json"}
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main"], part)
    tree = snapshot.parents[1] / "trees" / f"{COMMIT}.json"
    tree.parent.mkdir()
    listing = {name: {"size": len(content), "blob_id": "0" * 40} for name, content in files.items()}
    tree.write_text(json.dumps({"format_version": 1, "files": listing}))
    found = find_model_files(REPO, "/nowhere", cache_dir=tmp_path)
    assert no_network, "the missing file was asked for"
    assert found.tokenizer_folder == snapshot
    assert "using the files in" in caplog.text


def test_not_in_cache_and_no_network(tmp_path: Path, no_network: list[Any]) -> None:
    with pytest.raises(LoadError) as caught:
        find_model_files(REPO, "/nowhere", token=TOKEN, cache_dir=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"--model_id={REPO} revision main is not in the hub's cache and the hub can't be reached")
    assert "--model_dir" in message and "\n" not in message and TOKEN not in message
    assert no_network


def test_id_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="neither a folder here nor an id of the form"):
        find_model_files("a/b/c", "/nowhere", cache_dir=tmp_path)


def test_download_then_start_without_a_request(tmp_path: Path, files: dict[str, bytes]) -> None:
    more = {"model.safetensors": b"w" * 100, "onnx/model.onnx": b"w", "pytorch_model.bin": b"w", "modeling.py": b"1"}
    hub = Hub(REPO, {"main": COMMIT, "v1": OLDER}, {**files, **more, "1_Pooling/config.json": b"{}"}, token=TOKEN)
    with serve(hub):
        first = start(tmp_path, hub.endpoint, options(model_revision="v1", token=TOKEN))
        assert first.stdout.splitlines()[0].startswith(f"{OLDER} 64 ["), first.stderr
        assert {sent for _, path, sent in hub.requests if REPO in path} == {f"Bearer {TOKEN}"}
        fetched = {path.split(f"{OLDER}/")[1] for _, path, _ in hub.requests if "/resolve/" in path}
        assert fetched == {*files, "1_Pooling/config.json"}
        hub.requests.clear()
        second = start(tmp_path, hub.endpoint, options(model_revision="v1", token=TOKEN))
        assert second.stdout.splitlines() == [first.stdout.splitlines()[0], "False"]
        assert hub.requests == []


def test_token_of_the_environment(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, files, token=TOKEN)) as hub:
        done = start(tmp_path, hub.endpoint, options(), HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr


def test_python_files_come_with_remote_code_only(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, {**files, "own.py": b"1"})) as hub:
        assert start(tmp_path, hub.endpoint, options(trust_remote_code=True)).returncode == 0
        assert any(path.endswith("/own.py") for _, path, _ in hub.requests)


def test_cache_places_of_the_environment(tmp_path: Path, files: dict[str, bytes]) -> None:
    lay_out_cache(tmp_path / "home" / "hub", REPO, COMMIT, ["main"], files)
    lay_out_cache(tmp_path / "other", REPO, OLDER, ["main"], files)
    nowhere = closed_port()
    home = start(tmp_path / "home", nowhere, options())
    other = start(tmp_path / "home", nowhere, options(), HF_HUB_CACHE=str(tmp_path / "other"))
    assert home.stdout.startswith(COMMIT), home.stderr
    assert other.stdout.startswith(OLDER), other.stderr


def test_unknown_repository(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub("another/one", {"main": COMMIT}, files)) as hub:
        assert "the hub has no such model" in failure(start(tmp_path, hub.endpoint, options()))
        assert "set HF_TOKEN" in failure(start(tmp_path, hub.endpoint, options()))


def test_gated_repository(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, files, token="another", gated=True)) as hub:
        assert f"--model_id={REPO} is gated: set HF_TOKEN" in failure(start(tmp_path, hub.endpoint, options()))
        assert "ask for access" in failure(start(tmp_path, hub.endpoint, options(token=TOKEN)))


def test_unknown_revision(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, files)) as hub:
        done = start(tmp_path, hub.endpoint, options(model_revision="v9"))
        assert f"--model_id={REPO} has no revision v9 (--model_revision" in failure(done)


def test_offline_mode(tmp_path: Path) -> None:
    done = start(tmp_path, closed_port(), options(token=TOKEN), HF_HUB_OFFLINE="1")
    assert "is not in the hub's cache and the hub can't be reached (OfflineModeIsEnabled" in failure(done)


def test_repository_without_tokenizer(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, {"config.json": b"{}", "model.onnx": b""})) as hub:
        line = failure(start(tmp_path, hub.endpoint, options()))
        assert f"no tokenizer files in {REPO} (revision main)" in line and "it holds config.json." in line
