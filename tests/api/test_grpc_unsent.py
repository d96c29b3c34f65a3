"""Answers that gRPC could not send since their connection ended: the log has no traceback of them, but of all else."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio
import pytest

from hf_transformer.api.grpc.unsent import GRPCS_LOGGER
from hf_transformer.commands.local_triton import HOST, free_ports
from tests.integration.api.grpc_model import ScriptedModel, channel_to, serving

UNSENT = grpc.aio.InternalError('Failed "execute_batch": (<SendMessageOperation>, <SendStatusFromServerOperation>)')
"""As gRPC has it."""
OTHERS = (
    grpc.aio.InternalError("Failed grpc_call_start_batch: 10 with grpc_call_error value: 'INVALID_METADATA'"),
    ValueError("wrong"),
)


def log(error: Exception) -> None:
    """As gRPC's own task does."""
    try:
        raise error
    except Exception:
        GRPCS_LOGGER.exception("raised by servicer method")


def told(caplog: pytest.LogCaptureFixture) -> list[object]:
    """The exceptions that the log has a traceback of."""
    return [record.exc_info[1] for record in caplog.records if record.exc_info]


async def test_what_grpc_logs_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedModel()):
        for error in (UNSENT, *OTHERS):
            log(error)
        GRPCS_LOGGER.warning("a line without a traceback")
    assert told(caplog) == [*OTHERS]
    assert caplog.messages[-1] == "a line without a traceback"


async def test_nothing_is_held_back_once_no_server_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedModel()):
        pass
    log(UNSENT)
    assert told(caplog) == [UNSENT]


async def test_what_grpc_leaves_to_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ScriptedModel()):
        for error in (UNSENT, *OTHERS):
            asyncio.get_running_loop().call_exception_handler({"message": "never retrieved", "exception": error})
    assert told(caplog) == [*OTHERS]


async def test_it_is_the_logger_of_grpcs_tasks(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC tells nobody its name."""

    async def fail(body: bytes, context: Any) -> bytes:
        raise ValueError("wrong")

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(fail)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tests.Failing", {"Fail": handler}),))
    address = f"{HOST}:{free_ports(1)[0]}"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with channel_to(address) as channel:
            call: Any = channel.unary_unary("/tests.Failing/Fail", bytes, bytes)
            with pytest.raises(grpc.aio.AioRpcError, match="wrong"), caplog.at_level(logging.ERROR):
                await call(b"")
    finally:
        await server.stop(None)
    assert [record.name for record in caplog.records if record.exc_info] == [GRPCS_LOGGER.name]
