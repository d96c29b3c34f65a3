"""A predictor that says of itself what a test tells it to; it is never asked to infer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from hf_transformer.commands.doctor.subject import Subject
from hf_transformer.config.options import parse_config
from hf_transformer.errors import RequestError
from hf_transformer.predictor.base import AdminTransport, Destination, Reply
from hf_transformer.types import ModelSpec, RepositoryEntry, ServerDescription, Tensor


class Askable(AdminTransport):
    """``index`` may be an error, which is raised."""

    def __init__(self, *, ready: bool = False, index: Sequence[RepositoryEntry] | RequestError | None = None) -> None:
        self.ready = ready
        self.index = index

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def server_live(self) -> bool:
        return True

    async def server_ready(self) -> bool:
        return self.ready

    async def describe_server(self) -> ServerDescription:
        return ServerDescription("triton", "2.51.0", ())

    async def repository_index(self) -> Sequence[RepositoryEntry] | None:
        if isinstance(self.index, RequestError):
            raise self.index
        return self.index

    async def model_ready(self) -> bool:
        return self.ready

    async def model_spec(self) -> ModelSpec:
        return ModelSpec("m", "1", (), (), max_batch_size=None)

    async def infer(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[str],
        headers: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        wanted: Callable[[], bool] | None = None,
        cancellable: bool = False,
        destination: Destination | None = None,
    ) -> Reply:
        raise AssertionError("nobody infers here")

    def stream(
        self, inputs: Sequence[Tensor], outputs: Sequence[str], headers: Mapping[str, str]
    ) -> AsyncGenerator[Mapping[str, Tensor], None]:
        raise AssertionError("nobody streams here")

    async def register_region(self, name: str, key: str, byte_size: int) -> None:
        raise AssertionError("nobody shares memory here")

    async def unregister_region(self, name: str) -> None:
        raise AssertionError("nobody shares memory here")

    async def region_names(self) -> Sequence[str]:
        return ()


def subject_with(admin: AdminTransport) -> Subject:
    """An examination of the model "bert" that has reached this predictor."""
    config, notes = parse_config(["--model_name=bert", "--predictor_host=triton:8000"], {})
    subject = Subject(config, notes)
    subject.admin = subject.predictor = admin
    return subject
