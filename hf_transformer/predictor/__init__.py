"""The transports to the predictor, one file each, behind the interface in base.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hf_transformer.errors import ConfigError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor, PredictorSettings, Transport


def _rest(settings: PredictorSettings) -> Transport:
    from hf_transformer.predictor.rest import RestPredictor

    return RestPredictor(settings)


def _grpc(settings: PredictorSettings) -> Transport:
    from hf_transformer.predictor.grpc import GrpcPredictor

    return GrpcPredictor(settings)


PROTOCOLS: Mapping[str, Callable[[PredictorSettings], Transport]] = {"v2": _rest, "grpc-v2": _grpc}
"""--predictor_protocol to transport. The import waits for the call: one service needs one of them, and gRPC's costs
3 MB and 18 ms."""


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

    Args:
        protocol: a key of PROTOCOLS.
        settings: where the predictor is, and whether outputs go through shared memory.
        retries: how often one infer is tried again while the predictor is unavailable; 0 is never.
        metrics: show what becomes of shared memory, where there is any, of retries, errors and the circuit.
        retry_budget: retries per call on average; see RetryBudget.
        circuit_failures: calls in a row that find the predictor unavailable until it counts as dead; 0 is never.

    Raises:
        ConfigError: the protocol is unknown, or the settings can't be used.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"predictor_protocol is {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
    transport = PROTOCOLS[protocol](settings)
    predictor: Predictor = transport
    if settings.shared_memory_bytes > 0:
        from hf_transformer.predictor.shared_memory import SharedMemoryPredictor

        shared = SharedMemoryPredictor(
            transport,
            settings.shared_memory_bytes,
            settings.shared_memory_min_bytes,
            warns=settings.shared_memory_warns,
        )
        if metrics is not None:
            metrics.watch_shared_memory(shared.use)
        predictor = shared
    if retries > 0:
        from hf_transformer.predictor.retry_budget import RetryBudget
        from hf_transformer.predictor.retrying import RetryingPredictor

        predictor = RetryingPredictor(predictor, retries, settings.timeout, RetryBudget(retry_budget), metrics=metrics)
    if circuit_failures > 0 or metrics is not None:
        from hf_transformer.predictor.circuit import CircuitPredictor

        predictor = CircuitPredictor(predictor, circuit_failures, metrics)
    return predictor
