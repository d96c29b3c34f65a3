"""Opens a predictor: a transport (rest.py or grpc.py), with the layers around it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hf_transformer.errors import NoPredictor
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.absent import AbsentPredictor
from hf_transformer.predictor.base import Predictor, PredictorSettings, Transport, parse_address
from hf_transformer.predictor.embedding_requests import EmbeddingRequests
from hf_transformer.predictor.resilience import Resilience
from hf_transformer.predictor.shared_memory import SharedMemory

if TYPE_CHECKING:
    from hf_transformer.predictor.grpc_connections import GrpcConnections
    from hf_transformer.predictor.rest import RestConnections


class Connections:
    """The connections to predictors, shared by the transports of several models.

    Models share connections if their protocol and their settings are equal, except for ``model_name`` and the settings
    of the shared memory, which belong to a model. The connections are open while at least one of these transports is.
    """

    def __init__(self) -> None:
        # Only transports refer to the connections, so those that no model uses any more disappear.
        self._rest = WeakValueDictionary[PredictorSettings, "RestConnections"]()
        self._grpc = WeakValueDictionary[PredictorSettings, "GrpcConnections"]()

    def transport(self, protocol: str, settings: PredictorSettings) -> Transport:
        """The transport of one model for a --predictor_protocol, an async context manager.

        Raises ConfigError, and NoPredictor for the protocol ``none``.
        """
        if protocol == "none":
            raise NoPredictor(settings.model_name)
        key = settings.connection
        # Only the transport in use is imported: gRPC's import costs 3 MB and 18 ms.
        if protocol == "v2":
            from hf_transformer.predictor.rest import RestConnections, RestPredictor

            self._rest[key] = rest = self._rest.get(key) or RestConnections(settings)
            return RestPredictor(settings, rest)
        from hf_transformer.predictor.grpc import GrpcPredictor
        from hf_transformer.predictor.grpc_connections import GrpcConnections

        self._grpc[key] = grpc = self._grpc.get(key) or GrpcConnections(settings)
        return GrpcPredictor(settings, grpc)


def open_transport(protocol: str, settings: PredictorSettings) -> Transport:
    """The transport for a --predictor_protocol with connections of its own, an async context manager. Raises
    ConfigError."""
    return Connections().transport(protocol, settings)


def open_predictor(
    protocol: str,
    settings: PredictorSettings,
    metrics: ModelMetrics,
    *,
    connections: Connections | None = None,
    retries: int = 0,
    retry_budget: float = 0.1,
    circuit_failures: int = 0,
    embeds: bool = False,
) -> Predictor:
    """The predictor for a --predictor_protocol, an async context manager; AbsentPredictor for ``none``.

    Its layers, from the inside: the transport, SharedMemory if configured, EmbeddingRequests if ``embeds``, and
    Resilience, which takes the other keyword arguments. ``connections`` are shared with other models; None for
    connections of its own. Raises ConfigError for invalid settings.
    """
    if protocol == "none":
        return AbsentPredictor(settings.model_name)
    predictor: Predictor
    transport = open_transport(protocol, settings) if connections is None else connections.transport(protocol, settings)
    predictor = transport
    if settings.shared_memory_bytes > 0:
        predictor = shared = SharedMemory(
            transport,
            settings.shared_memory_bytes,
            settings.shared_memory_min_bytes,
            warns=settings.shared_memory_warns,
            model_name=settings.model_name,
        )
        metrics.watch_shared_memory(shared.use)
    if embeds:
        predictor = EmbeddingRequests(predictor)
    return Resilience(
        predictor,
        str(parse_address(settings)),
        settings.timeout,
        metrics,
        retries=retries,
        retry_budget=retry_budget,
        circuit_failures=circuit_failures,
        model_name=settings.model_name,
    )
