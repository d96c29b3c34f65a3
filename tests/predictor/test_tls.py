"""Both transports over TLS, with a certificate that only tests trust: whom they trust, and what they show."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.app.wiring import predictor_settings
from hf_transformer.config.options import Config, parse_config
from hf_transformer.errors import ConfigError, PredictorUnavailable
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.tls import root_certificates, ssl_context
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.configuring import error
from tests.predictor.fault_server import CERTIFICATE, KEY, TLS, Connection, scripted, server_context
from tests.predictor.grpc_server import serving

PROTOCOL = pytest.mark.parametrize("protocol", ["v2", "grpc-v2"], ids=["rest", "grpc"])
OWN = {"HF_TRANSFORMER_PREDICTOR_CERT_FILE": str(CERTIFICATE), "HF_TRANSFORMER_PREDICTOR_KEY_FILE": str(KEY)}


@asynccontextmanager
async def rest_server(mutual: bool) -> AsyncIterator[int]:
    async def script(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")

    context = server_context()
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(CERTIFICATE)
    async with scripted(script, context) as host:
        yield int(host.rpartition(":")[2])


@asynccontextmanager
async def grpc_server(mutual: bool) -> AsyncIterator[int]:
    async def ready(request: bytes, context: Any) -> bytes:
        return pb.ModelReadyResponse(ready=True).SerializeToString()

    pair = [(KEY.read_bytes(), CERTIFICATE.read_bytes())]
    roots = CERTIFICATE.read_bytes() if mutual else None
    credentials = grpc.ssl_server_credentials(pair, roots, mutual)
    async with serving(credentials=credentials, ModelReady=ready) as host:
        yield int(host.rpartition(":")[2])


SERVERS = {"v2": rest_server, "grpc-v2": grpc_server}


def configured(port: int, protocol: str, environ: dict[str, str]) -> Config:
    flags = (f"--predictor_host=https://localhost:{port}", f"--predictor_protocol={protocol}")
    return parse_config(flags, environ)[0]


async def is_ready(port: int, protocol: str, environ: dict[str, str]) -> bool:
    settings = predictor_settings(configured(port, protocol, environ))
    async with open_predictor(protocol, settings, 0) as predictor:
        return await predictor.model_ready()


@PROTOCOL
async def test_our_certificate_is_shown(protocol: str) -> None:
    trusted = {"REQUESTS_CA_BUNDLE": str(CERTIFICATE)}
    async with SERVERS[protocol](True) as port:
        assert await is_ready(port, protocol, trusted | OWN)
        with pytest.raises(PredictorUnavailable):
            await is_ready(port, protocol, trusted)


@PROTOCOL
async def test_where_trusted_certificates_come_from(protocol: str, tmp_path: Path) -> None:
    folder, empty = tmp_path / "some", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    shutil.copy(CERTIFICATE, folder / "ca.crt")
    async with SERVERS[protocol](False) as port:
        for environ in (
            {"REQUESTS_CA_BUNDLE": str(CERTIFICATE)},
            {"REQUESTS_CA_BUNDLE": str(folder)},
            {"SSL_CERT_DIR": str(folder)},
            {"SSL_CERT_DIR": f"{tmp_path / 'none'}:{empty}:{folder}"},
            {"HF_TRANSFORMER_PREDICTOR_CA_FILE": str(CERTIFICATE)},
            {"HF_TRANSFORMER_PREDICTOR_CA_PATH": str(folder)},
        ):
            assert await is_ready(port, protocol, environ), environ
        with pytest.raises(PredictorUnavailable, match=r"(?i)certificate"):
            await is_ready(port, protocol, {})
        with pytest.raises(ConfigError, match="no certificate in"):
            await is_ready(port, protocol, {"SSL_CERT_DIR": str(empty)})


@PROTOCOL
def test_files_that_can_not_be_used(protocol: str, tmp_path: Path) -> None:
    nonsense, between = tmp_path / "nonsense", tmp_path / "between"
    nonsense.write_text("no PEM")
    between.write_text("-----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n")

    def message(**environ: str) -> str:
        given = configured(1, protocol, environ)
        with pytest.raises(ConfigError) as caught:
            open_predictor(protocol, predictor_settings(given), 0)
        return str(caught.value)

    assert "can't be used" in message(**OWN | {"HF_TRANSFORMER_PREDICTOR_CERT_FILE": str(nonsense)})
    assert f"--predictor_key_file={CERTIFICATE}" in message(
        **OWN | {"HF_TRANSFORMER_PREDICTOR_KEY_FILE": str(CERTIFICATE)}
    )
    assert "no certificate in" in message(REQUESTS_CA_BUNDLE=str(nonsense))
    # Not saved by others that can be used.
    assert "no certificate in" in message(REQUESTS_CA_BUNDLE=str(nonsense), SSL_CERT_DIR=str(TLS))
    assert "can't be used" in message(REQUESTS_CA_BUNDLE=str(between))


def test_certificate_and_key_come_together() -> None:
    tls = "--predictor_use_ssl=true"
    assert "--predictor_key_file" in error(tls, f"--predictor_cert_file={CERTIFICATE}")
    assert "--predictor_cert_file" in error(tls, f"--predictor_key_file={KEY}")
    assert "file that exists" in error(tls, "--predictor_cert_file=/none", f"--predictor_key_file={KEY}")
    notes = parse_config(("--predictor_host=triton", f"--predictor_cert_file={CERTIFICATE}"), {})[1]
    assert any("--predictor_cert_file is ignored" in note for note in notes)


def certificates(file: Path | None = None, folder: Path | None = None) -> PredictorSettings:
    ca_file, ca_path = (None if path is None else str(path) for path in (file, folder))
    return PredictorSettings("m", "triton", True, ca_file=ca_file, ca_path=ca_path)


def test_certificates_of_a_file_and_a_folder(tmp_path: Path) -> None:
    pem = CERTIFICATE.read_text()
    (tmp_path / "unhashed name").write_text(pem)
    (tmp_path / "README").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    assert root_certificates(certificates()) is None
    for chosen in (certificates(CERTIFICATE), certificates(folder=tmp_path)):
        assert root_certificates(chosen) == pem
        (trusted,) = ssl_context(chosen).get_ca_certs()
        assert trusted["subject"] == ((("commonName", "hf-transformer tests"),),)
    both = root_certificates(certificates(CERTIFICATE, tmp_path))
    assert both is not None and both.count("BEGIN CERTIFICATE") == 2


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    missing, file = tmp_path / "missing", tmp_path / "empty file"
    file.touch()
    for chosen in (certificates(missing), certificates(folder=missing)):
        with pytest.raises(ConfigError, match="can't be read"):
            root_certificates(chosen)
    with pytest.raises(ConfigError, match=f"no certificate in {file}"):
        root_certificates(certificates(file))


@PROTOCOL
async def test_plain_text_where_tls_is_spoken(protocol: str) -> None:
    async with SERVERS[protocol](False) as port:
        async with open_predictor(protocol, PredictorSettings("m", f"localhost:{port}"), 0) as predictor:
            with pytest.raises(PredictorUnavailable):
                await asyncio.wait_for(predictor.model_ready(), 30)


@PROTOCOL
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["closes", "answers"])
async def test_tls_where_plain_text_is_spoken(protocol: str, said: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read(10)
        if said:
            await connection.send(said)

    async with (
        scripted(script) as host,
        open_predictor(protocol, PredictorSettings("m", host, use_ssl=True), 0) as predictor,
    ):
        flags = r"\(--predictor_use_ssl or https:// in --predictor_host ask for TLS\)$"
        with pytest.raises(PredictorUnavailable, match=flags):
            await predictor.model_ready()
