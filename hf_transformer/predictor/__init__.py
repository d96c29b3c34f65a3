"""The transports to the predictor, one file each, behind the interface in base.py."""

from __future__ import annotations

from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor, PredictorSettings, Transport, parse_address
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.predictor.shared_memory import SharedMemory


def open_transport(protocol: str, settings: PredictorSettings) -> Transport:
    """The bare transport of a --predictor_protocol, still to be entered with ``async with``. Raises ConfigError."""
    # Each is imported alone: gRPC's import costs 3 MB and 18 ms.
    if protocol == "v2":
        from hf_transformer.predictor.rest import RestPredictor

        return RestPredictor(settings)
    from hf_transformer.predictor.grpc import GrpcPredictor

    return GrpcPredictor(settings)


def open_predictor(
    protocol: str,
    settings: PredictorSettings,
    metrics: Metrics,
    *,
    retries: int = 0,
    retry_budget: float = 0.1,
    circuit_failures: int = 0,
) -> Predictor:
    """The predictor of a --predictor_protocol, still to be entered with ``async with``.

    Its layers, from the inside: the transport, SharedMemory if there is any, and Resilience, which has the other
    arguments. Raises ConfigError for settings that can't be used.
    """
    predictor: Predictor
    predictor = transport = open_transport(protocol, settings)
    if settings.shared_memory_bytes > 0:
        size, least = settings.shared_memory_bytes, settings.shared_memory_min_bytes
        predictor = shared = SharedMemory(transport, size, least, warns=settings.shared_memory_warns)
        metrics.watch_shared_memory(shared.use)
    return Resilience(
        predictor,
        str(parse_address(settings)),
        settings.timeout,
        metrics,
        retries=retries,
        retry_budget=retry_budget,
        circuit_failures=circuit_failures,
    )
