"""aiohttp's exceptions become ours, every one of them."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp.http_exceptions import HttpProcessingError

from hf_transformer.errors import PredictorError, PredictorTimeout, PredictorUnavailable
from hf_transformer.predictors.rest import map_errors

UNAVAILABLE = {
    "ClientConnectionError",
    "ClientConnectionResetError",
    "ClientConnectorCertificateError",
    "ClientConnectorDNSError",
    "ClientConnectorError",
    "ClientConnectorSSLError",
    "ClientOSError",
    "ClientPayloadError",
    "ClientProxyConnectionError",
    "ClientSSLError",
    "ConnectionTimeoutError",
    "ServerConnectionError",
    "ServerDisconnectedError",
    "ServerFingerprintMismatch",
    "UnixClientConnectorError",
}
TIMEOUT = {"ServerTimeoutError", "SocketTimeoutError"}
FAILED = {
    "ClientError",
    "ClientHttpProxyError",
    "ClientResponseError",
    "ContentTypeError",
    "InvalidURL",
    "InvalidUrlClientError",
    "InvalidUrlRedirectClientError",
    "NonHttpUrlClientError",
    "NonHttpUrlRedirectClientError",
    "RedirectClientError",
    "TooManyRedirects",
    "UploadAbortedError",
    "WSServerHandshakeError",
}
SOMETIMES = {"UploadAbortedError"}
"""What not every version of aiohttp has."""


def family(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(family(child) for child in kind.__subclasses__()))


def test_every_error_of_aiohttp_has_a_place() -> None:
    names = {kind.__name__ for kind in family(aiohttp.ClientError) if kind.__module__.startswith("aiohttp.")}
    assert names - SOMETIMES == (UNAVAILABLE | TIMEOUT | FAILED) - SOMETIMES


@pytest.mark.parametrize("kind", sorted(family(aiohttp.ClientError), key=str), ids=lambda kind: kind.__name__)
def test_errors_of_aiohttp(kind: type[BaseException]) -> None:
    expected: type[Exception] = PredictorError
    if kind.__name__ in UNAVAILABLE:
        expected = PredictorUnavailable
    elif kind.__name__ in TIMEOUT:
        expected = PredictorTimeout
    error = plain_instance(kind)
    with pytest.raises(expected, match="predictor at here") as caught, map_errors("here", 1.0):
        raise error
    assert type(caught.value) is expected
    assert caught.value.__cause__ is error


def plain_instance(kind: type[BaseException]) -> BaseException:
    """An instance of the class whose constructor asks for nothing."""
    plain = type(kind.__name__, (kind,), {"__init__": lambda self: None, "__str__": lambda self: "why"})
    instance: BaseException = plain()
    return instance


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (HttpProcessingError(message="bad chunk"), PredictorError),
        (TimeoutError(), PredictorTimeout),
        (ConnectionResetError(), PredictorUnavailable),
        (OSError("no route"), PredictorUnavailable),
    ],
    ids=repr,
)
def test_other_errors(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as caught, map_errors("here", 1.0):
        raise error
    assert type(caught.value) is expected
