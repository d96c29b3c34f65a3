"""Opening a predictor, addresses, forwarded headers and verified outputs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hf_transformer import predictor
from hf_transformer.errors import ConfigError, PredictorError, PredictorTimeout
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor import open_predictor
from hf_transformer.predictor.base import Address, ModelCall, PredictorSettings, forwarded, parse_address
from hf_transformer.predictor.failures import verified
from hf_transformer.types.tensors import Tensor
from tests.predictor.scripted import ScriptedTransport
from tests.support.scripted_predictor import SPEC


def settings(host: str = "triton", use_ssl: bool = False) -> PredictorSettings:
    return PredictorSettings("m", host, use_ssl)


@pytest.mark.parametrize("shared", [0, 2**16], ids=["inline", "shared memory"])
async def test_every_layer_passes_calls_to_the_transport(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: int
) -> None:
    transport = ScriptedTransport(tmp_path)
    transport.streams_json = True
    monkeypatch.setattr(predictor, "open_transport", lambda protocol, settings: transport)
    sizes = replace(settings("triton:8000"), timeout=0.2, shared_memory_bytes=shared, shared_memory_min_bytes=2**10)
    async with open_predictor("v2", sizes, Metrics().of("m"), retries=3, circuit_failures=1) as opened:
        assert (await opened.model_spec(), await opened.model_ready()) == (SPEC, False)
        assert opened.streams_json and not opened.shares(1024)
        ids = Tensor("input_ids", "INT64", np.array([5]))
        reply = await opened.infer(ModelCall([ids], ["logits"], {}, {"logits": 4}, cancellable=True))
        assert transport.calls[-1].given.cancellable
        assert reply.tensors["logits"].data.tolist() == [5]
        reply.release()
        transport.gate(5)
        with pytest.raises(PredictorTimeout, match=r"predictor at triton:8000 gave no answer in 0\.2 s"):
            await opened.infer(ModelCall([ids], ["logits"], {}))
    assert transport.events == ["open", "released", "close"] and len(transport.calls) == 2


@pytest.mark.slow
def test_grpc_is_imported_only_for_the_grpc_transport() -> None:
    program = (
        "import sys; from hf_transformer.predictor import open_transport as f\n"
        "from hf_transformer.predictor.base import PredictorSettings as S\n"
        "f('v2', S('m', 'h')); assert 'grpc' not in sys.modules, 'REST needs no gRPC'\n"
        "f('grpc-v2', S('m', 'h')); assert 'grpc' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("host", "use_ssl", "expected", "text", "authority"),
    [
        ("triton", False, ("triton", 80), "triton:80", "triton"),
        ("triton", True, ("triton", 443), "triton:443", "triton"),
        ("triton:80", True, ("triton", 80), "triton:80", "triton:80"),
        ("10.0.0.1:8001", False, ("10.0.0.1", 8001), "10.0.0.1:8001", "10.0.0.1:8001"),
        ("[::1]:8000", False, ("::1", 8000), "[::1]:8000", "[::1]:8000"),
        ("[fe80::1%eth0]", True, ("fe80::1%eth0", 443), "[fe80::1%eth0]:443", "[fe80::1]"),
        ("b\u00fccher:1", False, ("b\u00fccher", 1), "b\u00fccher:1", "xn--bcher-kva:1"),
    ],
)
def test_addresses_have_default_ports_and_an_authority(
    host: str, use_ssl: bool, expected: tuple[str, int], text: str, authority: str
) -> None:
    address = parse_address(settings(host, use_ssl))
    assert (address, str(address), address.authority) == (Address(*expected, use_ssl), text, authority)


@pytest.mark.parametrize(
    "host",
    [
        *("", ":80", "http://triton", "triton:0", "triton:65536", "triton:http", "triton:\u0661", "triton/v2"),
        *("triton?x", "a b", " triton", "u@h", "::1", "[::1", "[h]:80", "[::1]80", "a" * 64, "..", "a..b"),
    ],
    ids=repr,
)
def test_bad_addresses_are_config_errors(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^predictor_host is "):
        parse_address(settings(host))
    for protocol in ("v2", "grpc-v2"):
        with pytest.raises(ConfigError, match=r"^predictor_host is "):
            open_predictor(protocol, settings(host), Metrics().of("m"))


def test_headers_of_the_connection_and_invalid_headers_are_not_forwarded() -> None:
    usual = {"x-request-id": "7", "traceparent": "00-ab-cd-01", "authorization": "Bearer x", "x-user": "Ren\xc3\x89e"}
    unusual = {
        "host": "a",
        "content-length": "1",
        "te": "x",
        "proxy-connection": "keep-alive",
        "http2-settings": "AAMAAABk",
        "a b": "x",
        "": "x",
        "newline": "a\r\nb: c",
        "null": "\0",
        "x-snow": "\u2603",
        "x-long": "b" * 20_000,
    }
    assert forwarded({**unusual, **usual}) == [f"{name}: {value}\r\n" for name, value in usual.items()]
    assert forwarded({"a": "x" * 5000, "b": "x" * 5000, "c": "x"}) == [f"a: {'x' * 5000}\r\n", "c: x\r\n"]


@pytest.mark.parametrize(
    ("requested", "received", "message"),
    [
        ("ba", "ab", None),
        ("", "ab", None),
        ("ab", "a", "answered without the output 'b'$"),
        ("abc", "a", "answered without the output 'b', 'c'$"),
        ("a", "ab", "answered with 'b', which was not asked for$"),
        ("a", "b", "without the output 'a' and with 'b', which was not asked for$"),
    ],
)
def test_outputs_are_verified_against_the_request(requested: str, received: str, message: str | None) -> None:
    outputs = {name: Tensor(name, "FP32", np.zeros(1, np.float32)) for name in received}
    if message is None:
        assert verified(list(requested), outputs) is outputs
    else:
        with pytest.raises(PredictorError, match=message):
            verified(list(requested), outputs)
