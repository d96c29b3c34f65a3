"""One text all the way, as a client's goes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import orjson

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, ok
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import Context, Query

SHOWN = 60
"""Characters of the answer."""


async def golden_text(subject: Subject) -> Sequence[Finding]:
    """The answer to a text of our own, and the time of each stage. Raises RequestError."""
    parts = known(subject.parts)
    text = samples.instance(parts.task.name, parts.tokenizer.mask_token)
    context = Context("doctor", {})
    metrics = Metrics(subject.config.model_name)  # which nobody reads
    with ThreadPoolExecutor(1) as executor:
        build = pipeline_builder(subject.config, parts, known(subject.predictor), metrics, executor)
        pipeline = build(known(subject.spec))
        answers = await pipeline(Query([text], {}), context)
    answer = orjson.dumps(answers.predictions[0], option=orjson.OPT_SERIALIZE_NUMPY).decode()
    shown = answer if len(answer) <= SHOWN else f"{answer[:SHOWN]}..."
    times = context
    stages = (
        ("tokenize", times.preprocess),
        ("queue", times.queue),
        ("predict", times.predict - times.queue),
        ("decode", times.postprocess),
    )
    took = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in stages)
    return ok(f"{answers.tokens} tokens -> {shown}; {took}")
