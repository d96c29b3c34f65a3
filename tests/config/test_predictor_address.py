from __future__ import annotations

import pytest

from hf_transformer.config.options import Config, parse_config
from hf_transformer.errors import ConfigError


def address(*argv: str, **environ: str) -> tuple[str, bool]:
    parsed, _ = parse_config(argv, environ)
    return parsed.predictor_host, parsed.predictor_use_ssl


@pytest.mark.parametrize(
    ("text", "host", "tls"),
    [
        ("triton", "triton", False),
        ("bert-predictor.default", "bert-predictor.default", False),
        ("triton:8000", "triton:8000", False),
        ("10.0.0.1:80", "10.0.0.1:80", False),
        ("::1", "[::1]", False),
        ("[::1]", "[::1]", False),
        ("[fe80::1]:8001", "[fe80::1]:8001", False),
        ("http://triton:8000", "triton:8000", False),
        ("HTTPS://triton", "triton", True),
        ("https://triton:8443/", "triton:8443", True),
    ],
)
def test_forms(text: str, host: str, tls: bool) -> None:
    assert address(f"--predictor_host={text}") == (host, tls)
    assert address(PREDICTOR_HOST=text) == (host, tls)


NO_HOSTS = (
    *("http://triton/v2", "triton/", "user@triton", "triton:http", "two words", "http://"),
    *("[::1", "[::g]:80", "[1.2.3.4]", "triton:"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "HOST or HOST:PORT without a path") for text in NO_HOSTS),
        ("triton:0", "a port from 1 to 65535"),
        ("triton:65536", "a port from 1 to 65535"),
        ("grpc://triton", "a scheme of http or https"),
    ],
)
def test_refused_forms(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address("--predictor_host", text)
    assert str(caught.value).startswith(f"--predictor_host: expected {expected}")
    assert str(caught.value).endswith(f"got {text!r}")


def test_the_port_is_appended_where_there_is_none() -> None:
    parsed, notes = parse_config([], {"PREDICTOR_HOST": "triton", "PREDICTOR_PORT": "8443"})
    assert (parsed.predictor_host, parsed.predictor_port, notes) == ("triton:8443", 8443, [])
    assert address("--predictor_host=::1", "--predictor_port=90") == ("[::1]:90", False)
    parsed, notes = parse_config(["--predictor_host=triton:8000"], {"PREDICTOR_PORT": "8443"})
    assert (parsed.predictor_host, parsed.predictor_port) == ("triton:8000", 8000)
    assert notes == ["PREDICTOR_PORT is ignored: --predictor_host has the port 8000"]
    assert parse_config(["--predictor_host=triton:8000"], {"PREDICTOR_PORT": "8000"})[1] == []
    openshift = {"PREDICTOR_HOST": "bert-predictor", "PREDICTOR_PORT": "8443", "PREDICTOR_PROTOCOL": "https"}
    expected = Config(predictor_host="bert-predictor:8443", predictor_port=8443, predictor_use_ssl=True)
    assert parse_config([], openshift) == (expected, [])
    for text in ("0", "65536", "http"):
        says = rf"^PREDICTOR_PORT: expected an integer from 1 to 65535, got '{text}'$"
        with pytest.raises(ConfigError, match=says):
            address("--predictor_host=triton", PREDICTOR_PORT=text)
    with pytest.raises(ConfigError, match=r"^--predictor_host is required: .* --predictor_host=localhost:8000$"):
        parse_config([], {"PREDICTOR_HOST": ""})


def test_the_scheme_decides_about_tls() -> None:
    parsed, notes = parse_config(["--predictor_host=http://triton", "--predictor_use_ssl=true"], {})
    assert not parsed.predictor_use_ssl
    assert notes == ["--predictor_use_ssl is ignored: --predictor_host begins with http://"]
    assert parse_config(["--predictor_host=https://triton", "--predictor_use_ssl"], {})[1] == []
