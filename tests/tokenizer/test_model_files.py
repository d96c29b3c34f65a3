"""Model files in local folders, in a hub's cache, and downloaded from a hub."""

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

from hf_transformer.app.loading import load_model
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
    """Without the limit, 400 characters took 13 GB."""
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


def test_a_local_folder_needs_no_config_json(folder: Path, tmp_path: Path, files: dict[str, bytes]) -> None:
    for model in (find_model_files(None, str(folder)), find_model_files(str(folder), "/nowhere")):
        assert (model.model_folder, model.tokenizer_folder, model.config) == (folder, folder, CONFIG)
    fill(tmp_path, {"tokenizer.json": files["tokenizer.json"]})
    assert find_model_files(None, str(tmp_path)).config == {}


def test_broken_and_missing_files_of_a_local_folder_are_named(tmp_path: Path, files: dict[str, bytes]) -> None:
    for content, message in (
        (b'{"model_type": ', "is not valid JSON"),
        (b"[]", "must hold a JSON object, but holds a list"),
    ):
        fill(tmp_path, {**files, "config.json": content})
        with pytest.raises(LoadError, match=rf"config\.json {message}"):
            find_model_files(None, str(tmp_path))
    with pytest.raises(LoadError, match=r"gone\.json is missing"):
        read_json(tmp_path / "gone.json", required=True)


@pytest.mark.parametrize(
    ("settings", "expected"), [({"tokenizer_class": "ByT5Tokenizer"}, True), ({"auto_map": {}}, True), ({}, False)]
)
def test_the_class_tells_whether_a_folder_without_vocabulary_has_a_tokenizer(
    settings: Any, expected: bool, tmp_path: Path
) -> None:
    assert has_tokenizer(save(tmp_path, None, settings={"tokenizer_class": "X", **settings})) is expected


def test_the_files_may_lie_in_a_subfolder_named_like_the_model(tmp_path: Path, files: dict[str, bytes]) -> None:
    (fill(tmp_path / "bert", files) / "1").mkdir()
    model = find_model_files(None, str(tmp_path), model_name="bert")
    assert (model.tokenizer_folder, model.config) == (tmp_path / "bert", CONFIG)
    for folder, name in ((tmp_path, "other"), (tmp_path / "bert" / "1", "..")):
        with pytest.raises(LoadError, match="no tokenizer files in"):
            find_model_files(None, str(folder), model_name=name)


TRITONS = "which looks like Triton's model repository: expected the folder with"


@pytest.mark.parametrize(
    ("names", "subfolder", "message"),
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
def test_a_folder_without_a_tokenizer_is_refused_with_its_content(
    tmp_path: Path, names: list[str], subfolder: str, message: str
) -> None:
    fill(tmp_path, dict.fromkeys(names, b"{}"))
    with pytest.raises(LoadError, match=message) as caught:
        find_model_files(None, str(tmp_path / subfolder))
    assert "\n" not in str(caught.value)
    with pytest.raises(LoadError, match=f"--model_id={tmp_path}/gone: there is no such folder"):
        find_model_files(str(tmp_path / "gone"), str(tmp_path))


def test_an_unreadable_folder_does_not_count_as_tritons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Records attempts to connect, which all fail."""
    attempts: list[Any] = []

    def refuse(*arguments: Any, **options: Any) -> Any:
        attempts.append(arguments)
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


@pytest.mark.parametrize("revision", [None, "main", "refs/pr/1", COMMIT], ids=["default", "branch", "pr", "commit"])
def test_a_complete_cache_needs_no_network(
    revision: str | None, tmp_path: Path, files: dict[str, bytes], attempts: list[Any]
) -> None:
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main", "refs/pr/1"], files)
    model = find_model_files(REPO, "/nowhere", model_revision=revision, token=TOKEN, cache_dir=tmp_path)
    assert (model.model_folder, model.tokenizer_folder, model.config) == (snapshot, snapshot, CONFIG)
    assert load_tokenizer(model.tokenizer_folder, model.config).max_length == 64
    older = lay_out_cache(tmp_path, REPO, OLDER, ["v1"], files)
    model = find_model_files(REPO, "/nowhere", model_revision=revision, tokenizer_revision="v1", cache_dir=tmp_path)
    assert (model.model_folder, model.tokenizer_folder, attempts) == (snapshot, older, [])


def test_a_partial_cache_is_completed_or_used_with_a_warning(
    tmp_path: Path, files: dict[str, bytes], attempts: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    part = {name: content for name, content in files.items() if name != "tokenizer_config.json"}
    snapshot = lay_out_cache(tmp_path, REPO, COMMIT, ["main"], part)
    listing = {name: {"size": len(content), "blob_id": "0" * 40} for name, content in files.items()}
    tree = json.dumps({"format_version": 1, "files": listing}).encode()
    fill(snapshot.parents[1] / "trees", {f"{COMMIT}.json": tree})
    model = find_model_files(REPO, "/nowhere", cache_dir=tmp_path)
    assert attempts, "the missing file is requested"
    assert model.tokenizer_folder == snapshot
    assert "using the files in" in caplog.text


@pytest.mark.parametrize(
    ("repo", "message"),
    [
        (REPO, f"^--model_id={REPO} revision main is not in the hub's cache and the hub can't be reached.*--model_dir"),
        ("a/b/c", "neither a folder here nor an id of the form"),
    ],
)
def test_without_cache_and_network_the_start_fails(
    tmp_path: Path, repo: str, message: str, attempts: list[Any]
) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        find_model_files(repo, "/nowhere", token=TOKEN, cache_dir=tmp_path)
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
    assert bool(attempts) == (repo == REPO)


# Downloads, each in a new process, since the library reads HF_HOME when it is imported

START = """
import sys, json
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.tokenizer import load_tokenizer
try:
    model = find_model_files("some-org/tiny-bert", "/nowhere", **json.loads(sys.argv[1]))
    tokenizer = load_tokenizer(model.tokenizer_folder, model.config)
except LoadError as exc:
    sys.exit(f"LoadError: {exc}")
print(model.tokenizer_folder.name, tokenizer.max_length, tokenizer.encode(["paris"])[0].ids)
print("huggingface_hub.file_download" in sys.modules)
"""


def start(home: Path, hub: Hub | None, options: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs START with options of find_model_files. Without ``hub``, nothing listens at the hub's address."""
    endpoint = "http://127.0.0.1:9" if hub is None else hub.endpoint
    base = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "5"}
    base |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin"}
    command = [sys.executable, "-c", START, json.dumps(options)]
    return subprocess.run(command, capture_output=True, text=True, env=base | environment, check=False, timeout=60)


@pytest.mark.slow
def test_a_start_after_a_download_makes_no_request(tmp_path: Path, files: dict[str, bytes]) -> None:
    more = {"model.safetensors": b"w" * 100, "onnx/model.onnx": b"w", "pytorch_model.bin": b"w", "modeling.py": b"1"}
    hub = Hub(REPO, {"main": COMMIT, "v1": OLDER}, {**files, **more, "1_Pooling/config.json": b"{}"}, token=TOKEN)
    options = {"model_revision": "v1", "token": TOKEN}
    with serve(hub):
        first = start(tmp_path, hub, options)
        assert first.stdout.splitlines()[0].startswith(f"{OLDER} 64 ["), first.stderr
        assert {authorization for _, path, authorization in hub.requests if REPO in path} == {f"Bearer {TOKEN}"}
        fetched = {path.split(f"{OLDER}/")[1] for _, path, _ in hub.requests if "/resolve/" in path}
        assert fetched == {*files, "1_Pooling/config.json"}
        hub.requests.clear()
        second = start(tmp_path, hub, options)
        assert second.stdout.splitlines() == [first.stdout.splitlines()[0], "False"]
        assert hub.requests == []


@pytest.mark.slow
def test_the_token_and_the_cache_may_come_from_the_environment(tmp_path: Path, files: dict[str, bytes]) -> None:
    with serve(Hub(REPO, {"main": COMMIT}, {**files, "own.py": b"1"}, token=TOKEN)) as hub:
        done = start(tmp_path, hub, {"trust_remote_code": True}, HF_TOKEN=TOKEN)
        assert done.stdout.startswith(COMMIT), done.stderr
        assert any(path.endswith("/own.py") for _, path, _ in hub.requests), "with remote code only"
    lay_out_cache(tmp_path / "other", REPO, OLDER, ["main"], files)
    done = start(tmp_path, None, {}, HF_HUB_CACHE=str(tmp_path / "other"))
    assert done.stdout.startswith(OLDER), done.stderr


class EchoingHub(Hub):
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
    "token repeated": (EchoingHub(REPO, MAIN, {}), {"token": TOKEN}, r"reached \(.*no use for Bearer \*\*\*"),
    "offline": (None, {"token": TOKEN}, r"not in the hub's cache and .* can't be reached \(OfflineModeIsEnabled"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("hub", "options", "message"), FAILURES.values(), ids=FAILURES)
def test_a_start_that_fails_gives_the_reason_in_one_line(
    tmp_path: Path, hub: Hub | None, options: Any, message: str
) -> None:
    if hub is None:
        done = start(tmp_path, None, options, HF_HUB_OFFLINE="1")
    else:
        with serve(hub):
            done = start(tmp_path, hub, options)
    assert done.returncode == 1 and TOKEN not in done.stdout + done.stderr
    assert re.fullmatch(f"LoadError: .*{message}.*", done.stderr.strip()), done.stderr


def test_old_sentence_transformers_keep_the_tokenizer_in_the_first_modules_folder(tmp_path: Path) -> None:
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
    settings = read_sentence_transformers(files.model_folder)
    assert settings is not None and settings.max_seq_length == 32
    model = load_model(parse_config([f"--model_dir={tmp_path}", "--model_name=m", "--predictor_host=x"], {})[0])
    assert (model.task.name, model.tokenizer.max_length) == ("text_embedding", 32)
