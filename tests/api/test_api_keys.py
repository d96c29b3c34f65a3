"""Keys: which are taken, what is refused and how, and that they go no further."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import httpx
import pytest

from hf_transformer.api.auth import ApiKeys
from hf_transformer.api.gateway import GatewaySettings
from hf_transformer.app.wiring import load_parts
from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from tests.api.generating import application
from tests.configuring import config
from tests.integration.api.grpc_model import ScriptedModel, service_of

KEYS = "# a comment\n\n  alpha-key  \nbeta-key\n"
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}

DEMO = Path(__file__).parents[2] / "deploy" / "model_repository" / "bert"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("# only a comment\n", "has no key"),
        ("good\nwith space\n", "line 2"),
        ("schlüssel\n", "line 1"),
        ("a" * 1025, "line 1"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_files_that_hold_no_keys(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=f"^--api_keys_file={path}: .*{says}") as caught:
        ApiKeys(str(path))
    assert "with space" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        ApiKeys(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        (b"authorization", b"Bearer alpha-key", True),
        (b"authorization", b"bearer  beta-key ", True),
        (b"x-api-key", b"alpha-key", True),
        (b"api-key", b"beta-key", True),
        (b"authorization", b"alpha-key", False),
        (b"authorization", b"Basic alpha-key", False),
        (b"authorization", b"Bearer alpha-ke", False),
        (b"authorization", b"Bearer alpha-keyy", False),
        (b"authorization", b"Bearer ", False),
        (b"x-api-key", b"# a comment", False),
        (b"x-api-key", b"", False),
        (b"x-key", b"alpha-key", False),
    ],
)
def test_which_headers_are_accepted(file: Path, name: bytes, value: bytes, accepted: bool) -> None:
    assert ApiKeys(str(file)).accept([(b"host", b"x"), (name, value)]) is accepted


def test_a_renewed_file(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = ApiKeys(str(file))

    def accepts(key: bytes) -> bool:
        return keys.accept([(b"x-api-key", key)])

    def write(text: str) -> None:
        new = file.with_name("new")
        new.write_text(text)
        os.replace(new, file)

    assert not keys.file.renew()
    write("gamma-key\n")
    assert accepts(b"alpha-key")  # nobody has looked yet
    assert keys.file.renew()
    assert accepts(b"gamma-key") and not accepts(b"alpha-key")

    for broken in ("", "two words\n"):
        write(broken)
        assert not keys.file.renew()
        assert not keys.file.renew()
        assert accepts(b"gamma-key")
    file.unlink()
    assert not keys.file.renew()
    assert accepts(b"gamma-key")
    refused = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(refused) == 3  # one line for each broken file
    assert "two words" not in caplog.text and "gamma-key" not in caplog.text

    write("delta-key\n")
    assert keys.file.renew()
    assert accepts(b"delta-key")


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_no_key_reaches_the_model(file: Path, name: str) -> None:
    model = ScriptedModel()
    model.task = load_parts(config(f"--model_dir={DEMO}")).task
    app = application(service_of(model, Metrics(model.name)), GatewaySettings(keys=ApiKeys(str(file))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        key = "Bearer alpha-key" if name == "authorization" else "alpha-key"
        # Whatever else is in these headers may be a key for somebody: it goes no further either.
        others = {"authorization": "Bearer other", "x-api-key": "other", "api-key": "other"}
        headers = others | {name: key, "traceparent": "00-1-2-01"}
        assert (await client.post("/v2/models/bert/infer", json=INFER, headers=headers)).status_code == 200
    [context] = model.contexts
    assert context.headers == {"traceparent": "00-1-2-01", "x-request-id": context.request_id}
