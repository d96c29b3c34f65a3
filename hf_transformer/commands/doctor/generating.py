"""A model that generates text: whether it can be driven, continues prompts, and takes what its files promise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import orjson

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, failed, ok
from hf_transformer.commands.doctor.probing import highest, succeeds
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.pair import Pair
from hf_transformer.types import Context, Query, TokenIds

NEW_TOKENS = 8
"""Of the golden text."""
SHOWN = 60
"""Characters of it."""


async def begin(subject: Subject) -> Sequence[Finding]:
    """Makes what drives the model, as the service does. Raises ContractError where nothing can."""
    parts, spec = known(subject.parts), known(subject.spec)
    executor = ThreadPoolExecutor(2)
    subject.stack.callback(executor.shutdown, wait=False)
    metrics = Metrics(subject.config.model_name)  # which nobody reads
    pipeline = pipeline_builder(subject.config, parts, known(subject.predictor), metrics, executor)(spec)
    if not isinstance(pipeline, GenerationPipeline):
        raise TypeError(f"{parts.task.name} does not generate")
    subject.stack.push_async_callback(pipeline.close)
    subject.generation = pipeline
    subject.pair = Pair(subject.config, parts.tokenizer, parts.task, spec)
    return ok(f"it can be driven, as a model of {pipeline.kind} (--generation_interface={pipeline.kind})")


async def one_token(subject: Subject) -> Sequence[Finding]:
    """Whether it continues a prompt at all. Raises RequestError."""
    await known(subject.generation).trial()
    return ok("a prompt is continued by a token")


async def golden_text(subject: Subject) -> Sequence[Finding]:
    """A few tokens, the likeliest ones, of a prompt of our own, and their time. Raises RequestError."""
    context = Context("doctor", {})
    began = time.perf_counter()
    query = Query([samples.TEXT], {"max_new_tokens": NEW_TOKENS})
    answers = await known(subject.generation)(query, context)
    seconds = time.perf_counter() - began
    answer = orjson.dumps(answers.predictions[0][0]["generated_text"].removeprefix(samples.TEXT)).decode()
    shown = answer if len(answer) <= SHOWN else f"{answer[:SHOWN]}..."
    return ok(
        f"{context.tokens} tokens -> {shown}; tokenize {context.preprocess * 1000:.1f} ms, "
        f"{NEW_TOKENS} tokens at most in {seconds * 1000:.1f} ms"
    )


async def highest_id(subject: Subject) -> Sequence[Finding]:
    """Whether the model's embedding has a row for each of the tokenizer's ids. Raises RequestError."""
    tokenizer = known(subject.parts).tokenizer
    top = tokenizer.vocab_size - 1
    ids = tokenizer.encode([samples.TEXT])[0].ids
    place = len(ids) // 2

    async def works(number: int) -> bool:
        return await _continues(subject, [*ids[:place], number, *ids[place + 1 :]])

    if await works(top):
        return ok(f"id {top} is continued")
    if not await _continues(subject, ids):
        return failed(f"no prompt is continued since one had the token id {top}", "load the model anew; see its log")
    found = await highest(0, top, works)
    return failed(
        f"the model takes token ids up to {found}, the tokenizer's go up to {top}",
        "serve the model with its own tokenizer (--model_dir, --model_id), or resize its embeddings before the export",
    )


async def longest_prompt(subject: Subject) -> Sequence[Finding]:
    """Whether it takes as many tokens as its files promise, the new one included. Raises RequestError."""
    tokenizer = known(subject.parts).tokenizer
    length = tokenizer.max_length
    ids = tokenizer.encode([samples.WORD * length])[0].ids[: length - 1]

    async def works(size: int) -> bool:
        return await _continues(subject, ids[:size])

    if await works(len(ids)):
        return ok(f"a prompt of {len(ids)} tokens is continued")
    if not await works(1):
        return failed(f"no prompt is continued since one had {len(ids)} tokens", "load the model anew; see its log")
    found = await highest(1, len(ids), works)
    return failed(
        f"the model continues prompts of up to {found} tokens, tokenizer and config.json allow {len(ids)}",
        f"set --max_model_len={found + 1}, or raise the limit that the model was built with (max_input_len, "
        "max_model_len)",
    )


async def _continues(subject: Subject, ids: Sequence[int]) -> bool:
    """Whether these tokens are continued by one; another failure than one of the model's own is raised."""
    request = GenerationRequest(prompts=[TokenIds(tuple(ids))], sampling=Sampling(max_tokens=1, greedy=True))

    async def generate() -> None:
        async with await known(subject.generation).start(request, Context("doctor", {})) as generation:
            await generation.collect()

    return await succeeds(generate())
