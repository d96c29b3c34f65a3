"""The transports to the predictor, one file each, behind the interface in base.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor, PredictorSettings, Transport, parse_address
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.predictor.shared_memory import SharedMemory


def _rest(settings: PredictorSettings) -> Transport:
    from hf_transformer.predictor.rest import RestPredictor

    return RestPredictor(settings)


def _grpc(settings: PredictorSettings) -> Transport:
    from hf_transformer.predictor.grpc import GrpcPredictor

    return GrpcPredictor(settings)


PROTOCOLS: Mapping[str, Callable[[PredictorSettings], Transport]] = {"v2": _rest, "grpc-v2": _grpc}
"""--predictor_protocol to transport. The import waits for the call: one service needs one of them, and gRPC's costs
3 MB and 18 ms."""


def open_transport(protocol: str, settings: PredictorSettings) -> Transport:
    """The bare transport that speaks ``protocol``, still to be entered with ``async with``.

    Raises:
        ConfigError: the protocol is unknown, or the settings can't be used.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"predictor_protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol](settings)


def open_predictor(
    protocol: str,
    settings: PredictorSettings,
    retries: int,
    metrics: Metrics | None = None,
    *,
    retry_budget: float = 0.1,
    circuit_failures: int = 0,
) -> Predictor:
    """The predictor that speaks ``protocol``, still to be entered with ``async with``.

    Its layers, from the inside: the transport, SharedMemory if there is any, and Resilience, which has the other
    arguments.

    Raises:
        ConfigError: the protocol is unknown, or the settings can't be used.
    """
    transport = open_transport(protocol, settings)
    predictor: Predictor = transport
    if settings.shared_memory_bytes > 0:
        predictor = shared = SharedMemory(
            transport,
            settings.shared_memory_bytes,
            settings.shared_memory_min_bytes,
            warns=settings.shared_memory_warns,
        )
        if metrics is not None:
            metrics.watch_shared_memory(shared.use)
    return Resilience(
        predictor,
        str(parse_address(settings)),
        settings.timeout,
        retries=retries,
        retry_budget=retry_budget,
        circuit_failures=circuit_failures,
        metrics=metrics,
    )
