"""The HTTP client's errors become ours, every one of them; and which hosts it is told."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from hf_transformer.errors import (
    ConfigError,
    PredictorDenied,
    PredictorError,
    PredictorTimeout,
    PredictorUnavailable,
    RequestError,
)
from hf_transformer.predictor import http1_errors
from hf_transformer.predictor.address import parse_address
from hf_transformer.predictor.base import PredictorSettings
from hf_transformer.predictor.http1_errors import Http1Error
from hf_transformer.predictor.rest import RestPredictor, host_header
from hf_transformer.predictor.rest_errors import mapped, refused

EXPECTED: dict[str, type[RequestError]] = {
    "Http1Error": PredictorError,
    "NotHttp": PredictorError,
    "MalformedAnswer": PredictorError,
    "AnswerTooLarge": PredictorError,
    "ConnectTimeout": PredictorUnavailable,
    "DeadlineExceeded": PredictorTimeout,
    "ConnectDeadline": PredictorTimeout,
    "Disconnected": PredictorUnavailable,
    "NoAnswer": PredictorUnavailable,
}


def family(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


@pytest.mark.parametrize(("status", "kind"), [(401, PredictorDenied), (403, PredictorDenied), (400, PredictorError)])
def test_a_client_that_may_not_ask(status: int, kind: type[RequestError]) -> None:
    error = refused(status, "it answered", memoryview(b'{"error":"no"}'), "identity")
    assert type(error) is kind
    assert str(error) == "it answered: no"


def test_every_error_of_the_client_has_a_place() -> None:
    assert {kind.__name__ for kind in family(Http1Error)} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_errors_of_the_client(name: str) -> None:
    error = mapped(getattr(http1_errors, name)("why"), "here", 1.0)
    assert type(error) is EXPECTED[name]
    assert "predictor at here" in str(error)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), TimeoutError(), OSError("no route"), ssl.SSLError(1, "no cipher")], ids=repr
)
def test_other_errors(error: OSError) -> None:
    assert type(mapped(error, "here", 1.0)) is PredictorUnavailable


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (http1_errors.NotHttp("x"), "does not speak HTTP/1.1; if that is its gRPC port, use --predictor_protocol=grpc"),
        (http1_errors.DeadlineExceeded("x"), r"gave no answer in 2.5 s \(--predictor_request_timeout_seconds\)$"),
        (http1_errors.ConnectTimeout("x"), "^no connection to the predictor at here in time$"),
        (http1_errors.MalformedAnswer("two lengths"), "the call to the predictor at here failed: two lengths"),
        (OSError(111, "Connection refused"), "at here is unavailable: Connection refused$"),
        (
            ConnectionResetError(),
            r"unavailable: it closed the connection in the TLS handshake \(--predictor_use_ssl or https:// in",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), "unavailable: Connection reset by peer$"),
        (ssl.SSLError(1, "no cipher"), r"unavailable: no cipher \(--predictor_use_ssl or https:// in"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_messages(error: OSError | Http1Error, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        raise mapped(error, "here", 2.5)


@pytest.mark.parametrize(
    ("host", "header"),
    [
        ("triton", "triton"),
        ("triton:8000", "triton:8000"),
        ("https://triton:443", "triton"),
        ("https://triton:80", "triton:80"),
        ("[::1]:8000", "[::1]:8000"),
        ("fe80::1%eth0", "[fe80::1]"),
        ("b\u00fccher:1", "xn--bcher-kva:1"),
    ],
)
def test_the_header_host(host: str, header: str) -> None:
    settings = PredictorSettings("m", host)
    assert host_header(settings, parse_address(settings)) == header


def test_a_host_that_is_no_name() -> None:
    with pytest.raises(ConfigError, match=r"^predictor_host is 'a\.\.b': that is no host name"):
        RestPredictor(PredictorSettings("m", "a..b"))
