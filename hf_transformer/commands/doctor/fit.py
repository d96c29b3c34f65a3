"""Whether model, tokenizer, task and flags fit: what core.contract and the generators say, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor import generating
from hf_transformer.commands.doctor.findings import Finding, ok
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.core.contract import ContractError
from hf_transformer.model_wiring import fit_task
from hf_transformer.pair import BoundPair
from hf_transformer.tasks.base import Task


async def contract(subject: Subject) -> Sequence[Finding]:
    """Names, datatypes, ranks and sizes of all inputs and outputs; each mismatch is a finding of its own."""
    try:
        return _bound(subject) if not subject.generates else await generating.begin(subject)
    except ContractError as error:
        return [_finding(problem) for problem in error.problems]


def _bound(subject: Subject) -> Sequence[Finding]:
    config, parts, spec = subject.config, known(subject.parts), known(subject.spec)
    task = parts.task
    if not isinstance(task, Task):
        raise TypeError(f"{task.name} is not a predictive task")
    reader, signature = fit_task(config, task, spec)
    subject.pair = subject.bound = BoundPair(config, parts.tokenizer, reader, spec, signature)
    inputs = ", ".join(f"{one.name} ({one.datatype})" for one in signature.inputs)
    outputs = ", ".join(f"{one.name} ({one.datatype})" for one in signature.outputs)
    return ok(f"{inputs} -> {outputs}")


def _finding(problem: str) -> Finding:
    """A sentence that ends with what to change, in its two parts."""
    for mark in ("; ", ". ", ": "):
        found, cut, change = problem.rpartition(mark)
        if cut:
            return Finding("failed", found, change.removesuffix("."))
    return Finding("failed", problem, "see the flag that it names")
