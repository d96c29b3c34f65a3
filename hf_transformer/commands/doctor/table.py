"""All checks, and the order in which they are made."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from hf_transformer.commands.doctor import (
    extremes,
    files,
    fit,
    generating,
    golden,
    inference,
    network,
    server,
    shared,
    tls,
)
from hf_transformer.commands.doctor.declared import OF_ANY, OF_PREDICTIVE
from hf_transformer.commands.doctor.findings import Finding, Result, failed, skipped
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.errors import TransformerError
from hf_transformer.pair import BoundPair, Pair

logger = logging.getLogger(__name__)

Run = Callable[[Subject], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True)
class Check:
    """``needs`` are those without which it makes no sense: where one has failed, this one is skipped. ``hint`` is what
    to change where ``run`` raises one of our errors, whose message says what is wrong."""

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    hint: str = "see the predictor's log"


def _of_pair(check: Callable[[Pair], Sequence[Finding]]) -> Run:
    async def run(subject: Subject) -> Sequence[Finding]:
        return check(known(subject.pair))

    return run


def _of_bound(check: Callable[[BoundPair], Sequence[Finding]]) -> Run:
    async def run(subject: Subject) -> Sequence[Finding]:
        return check(known(subject.bound))

    return _either(run, None)


def _either(predictive: Run, generative: Run | None) -> Run:
    """One check in two forms; a generative task may have none."""

    async def run(subject: Subject) -> Sequence[Finding]:
        if not subject.generates:
            return await predictive(subject)
        return skipped("does not apply to generated text") if generative is None else await generative(subject)

    return run


_SAME_MODEL = (
    "serve the model with the tokenizer and the config.json that it was exported from (--model_dir, --model_id), or "
    "set --task; the predictor's log may say more"
)

CHECKS: Sequence[Check] = (
    Check("flags", files.flags),
    Check("model files", files.model_files, hint="see --model_dir, --model_id and --task"),
    Check("address", network.address, hint="correct --predictor_host"),
    Check("connection", network.connection, ("address",)),
    Check("protocol", network.protocol, ("connection",)),
    Check("TLS", tls.tls, ("protocol",), "see --predictor_ca_file, --predictor_cert_file and --predictor_key_file"),
    Check("server", server.server, ("TLS",)),
    Check("server ready", server.server_ready, ("server",)),
    Check("model", server.model, ("server",)),
    Check("description", server.description, ("model",)),
    Check("contract", fit.contract, ("description", "model files")),
    *(Check(name, _of_bound(check), ("contract",)) for name, check in OF_PREDICTIVE),
    *(Check(name, _of_pair(check), ("contract",)) for name, check in OF_ANY),
    Check("inference", _either(inference.inference, generating.one_token), ("contract",), _SAME_MODEL),
    Check("other text", _either(inference.constant, None), ("inference",), _SAME_MODEL),
    Check(
        "longest text",
        _either(extremes.longest_text, generating.longest_prompt),
        ("inference",),
        "see --max_model_len, and the predictor's log",
    ),
    Check("highest token id", _either(extremes.highest_id, generating.highest_id), ("inference",)),
    Check(
        "shared batch",
        _either(inference.company, None),
        ("inference",),
        'set "max_batch_size: 1" in config.pbtxt if the model can\'t batch',
    ),
    Check("shared memory", _either(shared.shared_memory, None), ("inference",), "--predictor_shared_memory=off"),
    Check("golden text", _either(golden.golden_text, generating.golden_text), ("inference",), _SAME_MODEL),
)


async def examine(subject: Subject, checks: Sequence[Check] = CHECKS) -> AsyncIterator[Result]:
    """Makes the checks, one after the other, and gives each finding as soon as it is there."""
    unusable: set[str] = set()
    async with subject.stack:
        for check in checks:
            started = time.perf_counter()
            missing = [name for name in check.needs if name in unusable]
            findings = skipped(f"not made: {missing[0]} comes first") if missing else await _findings(check, subject)
            if missing or any(one.status == "failed" for one in findings):
                unusable.add(check.name)
            seconds = time.perf_counter() - started
            for one in findings:
                yield Result(check.name, one.status, one.found, one.change, seconds, bool(missing))


async def _findings(check: Check, subject: Subject) -> Sequence[Finding]:
    try:
        return await check.run(subject)
    except TransformerError as error:
        return failed(str(error), check.hint)
    except Exception as error:
        # The last resort: a fault of ours in one check must not keep the others from being made.
        logger.exception("the check %r failed", check.name)
        return failed(f"the check itself failed: {type(error).__name__}", "report this, with the traceback above")
