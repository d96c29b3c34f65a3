"""Both transports over TLS: trusted certificates, client certificates and their errors."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.app.settings import predictor_settings
from hf_transformer.config.options import parse_config
from hf_transformer.errors import ConfigError, PredictorUnavailable
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.predictor.tls import root_certificates, ssl_context
from hf_transformer.protocol.pb import open_inference_grpc_pb2 as pb
from tests.predictor.fault_server import CERTIFICATE, HOST, KEY, TLS, Connection, scripted, server_context
from tests.predictor.grpc_server import server_credentials, serving
from tests.support.configuring import error, notes

PROTOCOL = pytest.mark.parametrize("protocol", ["v2", "grpc-v2"], ids=["rest", "grpc"])
CLIENT_CERTIFICATE = {
    "HF_TRANSFORMER_PREDICTOR_CERT_FILE": str(CERTIFICATE),
    "HF_TRANSFORMER_PREDICTOR_KEY_FILE": str(KEY),
}


@asynccontextmanager
async def served(protocol: str, mutual: bool = False) -> AsyncIterator[str]:
    """localhost:port of a ready predictor with TLS."""

    async def answer(connection: Connection) -> None:
        await connection.request()
        await connection.answer("200 OK")

    async def ready(request: bytes, context: Any) -> bytes:
        return pb.ModelReadyResponse(ready=True).SerializeToString()

    rest = scripted(answer, server_context(mutual))
    grpc = serving(credentials=server_credentials(mutual), ModelReady=ready)
    async with rest if protocol == "v2" else grpc as host:
        yield host.replace(HOST, "localhost")


def opened(host: str, protocol: str, environ: dict[str, str]) -> Predictor:
    flags = (f"--predictor_host=https://{host}", f"--predictor_protocol={protocol}")
    return open_predictor(protocol, predictor_settings(parse_config(flags, environ)[0]), Metrics().of("m"))


async def is_ready(host: str, protocol: str, environ: dict[str, str]) -> bool:
    async with opened(host, protocol, environ) as predictor:
        return await predictor.model_ready()


@PROTOCOL
async def test_the_client_certificate_is_sent(protocol: str) -> None:
    trusted = {"REQUESTS_CA_BUNDLE": str(CERTIFICATE)}
    async with served(protocol, mutual=True) as host:
        assert await is_ready(host, protocol, trusted | CLIENT_CERTIFICATE)
        with pytest.raises(PredictorUnavailable):
            await is_ready(host, protocol, trusted)


@PROTOCOL
async def test_trusted_certificates_come_from_flags_and_variables(protocol: str, tmp_path: Path) -> None:
    folder, empty = tmp_path / "some", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    shutil.copy(CERTIFICATE, folder / "ca.crt")
    async with served(protocol) as host:
        for environ in (
            {"REQUESTS_CA_BUNDLE": str(CERTIFICATE)},
            {"REQUESTS_CA_BUNDLE": str(folder)},
            {"SSL_CERT_DIR": str(folder)},
            {"SSL_CERT_DIR": f"{tmp_path / 'none'}:{empty}:{folder}"},
            {"HF_TRANSFORMER_PREDICTOR_CA_FILE": str(CERTIFICATE)},
            {"HF_TRANSFORMER_PREDICTOR_CA_PATH": str(folder)},
        ):
            assert await is_ready(host, protocol, environ), environ
        with pytest.raises(PredictorUnavailable, match=r"(?i)certificate"):
            await is_ready(host, protocol, {})
        with pytest.raises(ConfigError, match="no certificate in"):
            await is_ready(host, protocol, {"SSL_CERT_DIR": str(empty)})


@PROTOCOL
def test_unusable_certificate_files_are_config_errors(protocol: str, tmp_path: Path) -> None:
    nonsense, between, empty = tmp_path / "nonsense", tmp_path / "between", tmp_path / "empty file"
    nonsense.write_text("no PEM")
    between.write_text("-----BEGIN CERTIFICATE-----\nno base64\n-----END CERTIFICATE-----\n")
    empty.touch()
    for environ, message in (
        (CLIENT_CERTIFICATE | {"HF_TRANSFORMER_PREDICTOR_CERT_FILE": str(nonsense)}, "can't be used"),
        (
            CLIENT_CERTIFICATE | {"HF_TRANSFORMER_PREDICTOR_KEY_FILE": str(CERTIFICATE)},
            f"--predictor_key_file={CERTIFICATE}",
        ),
        ({"REQUESTS_CA_BUNDLE": str(nonsense)}, "no certificate in"),
        ({"REQUESTS_CA_BUNDLE": str(empty)}, f"no certificate in {empty}"),
        # Valid files do not make up for invalid ones.
        ({"REQUESTS_CA_BUNDLE": str(nonsense), "SSL_CERT_DIR": str(TLS)}, "no certificate in"),
        ({"REQUESTS_CA_BUNDLE": str(between)}, "can't be used"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            opened("localhost:1", protocol, environ)
    none = str(tmp_path / "none")
    for missing in (PredictorSettings("m", "h", ca_file=none), PredictorSettings("m", "h", ca_path=none)):
        with pytest.raises(ConfigError, match="can't be read"):
            root_certificates(missing)


def test_a_client_certificate_needs_its_key() -> None:
    tls = "--predictor_use_ssl=true"
    assert "--predictor_key_file" in error(tls, f"--predictor_cert_file={CERTIFICATE}")
    assert "--predictor_cert_file" in error(tls, f"--predictor_key_file={KEY}")
    assert "file that exists" in error(tls, "--predictor_cert_file=/none", f"--predictor_key_file={KEY}")
    assert "--predictor_cert_file is ignored" in notes(f"--predictor_cert_file={CERTIFICATE}")[0]


def test_certificates_of_a_file_and_a_folder_are_joined(tmp_path: Path) -> None:
    pem = CERTIFICATE.read_text()
    (tmp_path / "unhashed name").write_text(pem)
    (tmp_path / "README").write_text("no certificate")
    (tmp_path / "folder").mkdir()
    file, folder = str(CERTIFICATE), str(tmp_path)
    for ca_file, ca_path, count in ((None, None, 0), (file, None, 1), (None, folder, 1), (file, folder, 2)):
        settings = PredictorSettings("m", "triton", True, ca_file=ca_file, ca_path=ca_path)
        roots = root_certificates(settings)
        assert (roots or "").count("BEGIN CERTIFICATE") == count
        if count == 1:
            assert roots == pem
            (trusted,) = ssl_context(settings).get_ca_certs()
            assert trusted["subject"] == ((("commonName", "hf-transformer tests"),),)


@PROTOCOL
async def test_plain_text_to_a_tls_server_is_unavailable(protocol: str) -> None:
    async with served(protocol) as host:
        async with open_predictor(protocol, PredictorSettings("m", host), Metrics().of("m")) as predictor:
            with pytest.raises(PredictorUnavailable):
                await asyncio.wait_for(predictor.model_ready(), 30)


@PROTOCOL
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["closes", "answers"])
async def test_tls_to_a_plain_text_server_names_the_flags(protocol: str, answer: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read(10)
        if answer:
            await connection.send(answer)

    async with (
        scripted(script) as host,
        open_predictor(protocol, PredictorSettings("m", host, use_ssl=True), Metrics().of("m")) as predictor,
    ):
        flags = r"\(--predictor_use_ssl or https:// in --predictor_host ask for TLS\)$"
        with pytest.raises(PredictorUnavailable, match=flags):
            await predictor.model_ready()
