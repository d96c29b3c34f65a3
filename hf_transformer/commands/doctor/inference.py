"""What the model answers: inference, limits (longest text, highest token id), batches, shared memory, a smoke test.

Nothing is sent that a client's text could not hold. All texts are the doctor's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import numpy as np
import orjson

from hf_transformer.app.wiring import FittedBinding, ModelBinding, most_shared_bytes, padding_policy, scheduler_settings
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, skipped, warning
from hf_transformer.commands.doctor.model import CALL_SECONDS
from hf_transformer.core.batch import EncodingBatchBuilder, Packed
from hf_transformer.errors import PredictorDenied, PredictorError, RequestError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.predictor.base import ModelCall, Transport
from hf_transformer.predictor.shared_memory import (
    ADVICE_TO_ALLOW,
    FOLDER,
    RESERVED_BYTES,
    Region,
    aligned,
    free_bytes,
    is_disallowed,
)
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TokenIds

TEXT = "The capital of France is a city on a river."
PROMPTS = (TEXT, "The capital")
NEW_TOKENS = 8  # of the smoke test of a model that generates

TOLERANCES = {"FP16": 5e-3, "BF16": 5e-2}
"""Of answers to the same text, as a part of the largest value: rounding differs with a batch's shape."""
TOLERANCE = 1e-4
UNUSABLE = 0.1  # a difference that changes answers, and not only their last digits

MIB = 2**20
INLINE = "or set --predictor_shared_memory=off; outputs travel in the responses until then, and work as well"

Outputs = Mapping[str, Array]  # one text's outputs by role, without batch axis and padding


async def inference(subject: Subject) -> list[Finding]:
    """One text: datatypes and shapes of the outputs, and that they are numbers. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        await subject.pipeline.trial()
        return ok("a prompt is continued by a token")
    text = sample(subject.pair)
    [by_role] = await ask(subject, [text])
    bound = subject.pair.signature.outputs if isinstance(subject.pair, FittedBinding) else ()
    names = {output.role: output.name for output in bound}
    outputs = {names.get(role, role): values for role, values in by_role.items()}
    for name, values in outputs.items():
        # -inf is a legitimate logit: that of a banned token.
        if np.isnan(values).any() or np.isposinf(values).any():
            return failed(
                f"{name} holds values that are not finite numbers (NaN or infinite)",
                "export the model again, in FP32 if it is FP16: that overflows",
            )
    shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in outputs.items())
    return ok(f"{len(text)} tokens -> {shapes}")


async def other_text(subject: Subject) -> list[Finding]:
    """Whether another text has other outputs. Raises RequestError."""
    text = sample(subject.pair)
    [outputs] = await ask(subject, [text])
    [others] = await ask(subject, [_altered(text, subject.pair.tokenizer.vocab_size)])
    if all(np.array_equal(values, others[role]) for role, values in outputs.items()):
        return failed(
            "two texts without a word in common have the same outputs",
            "export the model again: it does not use its input_ids, or has no weights",
        )
    return ok("another text has other outputs")


async def longest_text(subject: Subject) -> list[Finding]:
    """Whether the model takes as many tokens as its files promise, a generated one included. Raises RequestError."""
    pair = subject.pair
    text, longest, fixed = sample(pair), _longest(pair), False
    length = len(longest)
    if isinstance(pair, FittedBinding):
        fixed = pair.signature.length is not None
        size, most = pair.signature.output_bytes(length), pair.config.max_predictor_response_bytes
        if size > most:
            return failed(
                f"the outputs for {length} tokens have {size} bytes, and {most} are taken",
                f"raise --max_predictor_response_bytes to {size + 65536}, or lower --max_model_len",
            )
    error = await _refusal(subject, [longest])
    if error is None and isinstance(pair, FittedBinding):
        return ok(f"{length} tokens are answered")
    if error is None:
        return ok(f"a prompt of {length} tokens is continued")
    if fixed or await _refusal(subject, [text]):
        return _broken(f"a text of {length} tokens fails: {error}")
    works = len(text) if len(text) < length else 0
    found = await _highest(subject, works, length, lambda size: [_shortened(longest, size)])
    if isinstance(pair, FittedBinding):
        return failed(
            f"the model answers texts of up to {found} tokens, tokenizer and config.json allow {length}: {error}",
            f"set --max_model_len={found}, or export the model with the positions that its config.json promises",
        )
    return failed(
        f"the model continues prompts of up to {found} tokens, tokenizer and config.json allow {length}",
        f"set --max_model_len={found + 1}, or raise the limit that the model was built with (max_input_len, "
        "max_model_len)",
    )


async def highest_id(subject: Subject) -> list[Finding]:
    """Whether the model has an embedding for each of the tokenizer's ids. Raises RequestError."""
    text, top = sample(subject.pair), subject.pair.tokenizer.vocab_size - 1
    place = len(text) // 2

    def having(number: int) -> list[Encoding]:
        return [replace(text, ids=[*text.ids[:place], number, *text.ids[place + 1 :]])]

    if await _refusal(subject, having(top)) is None:
        return ok(f"id {top} is {'answered' if isinstance(subject.pair, FittedBinding) else 'continued'}")
    if await _refusal(subject, [text]):
        return _broken(f"the model answers no text since one had the token id {top}")
    found = await _highest(subject, -1, top, having)
    return failed(
        f"the model takes token ids up to {found}, the tokenizer's go up to {top}",
        "serve the model with its own tokenizer (--model_dir, --model_id), or resize its embeddings before the export",
    )


async def batch_invariance(subject: Subject) -> list[Finding]:
    """Whether a full batch is answered, and whether a text's answer depends on what shares it. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        return await _prompts_together(subject, subject.pipeline)
    pair = subject.bound
    signature, form, text = pair.signature, form_of(pair), sample(pair)
    if signature.max_rows < 2:
        return skipped("the model takes one text at a time")
    if padded := form.limits(text).padding:
        longest = _longest(pair)
        other = _shortened(longest, min(3 * form.bucket(text)[1], len(longest)))
    else:
        other = _altered(text, pair.tokenizer.vocab_size)
    width, limits = form.bucket(other)[1], form.limits(other)
    rows = next((rows for rows in range(signature.max_rows, 2, -1) if limits.allow(rows, width, rows * width)), 2)

    def together(count: int) -> list[Encoding]:
        return [text, *[other] * (count - 1)]

    alone = [(await ask(subject, [one]))[0] for one in (text, other)]
    if error := await _refusal(subject, together(rows)):
        found = await _highest(subject, 0, rows, together)
        return failed(
            f"the model answers up to {found} texts in a batch, and {rows} would be sent: {error}",
            f'set "max_batch_size: {found}" in config.pbtxt, or export the model with a free batch axis',
        )
    worst = max(map(_difference, alone, await ask(subject, together(rows))))
    others = f"a batch with {rows - 1} {'longer' if padded else 'equally long'} ones"
    if not worst:
        return ok(f"the answer to a text is the same in {others}")
    said = f"the answer to a text changes by {worst:.1e} of its largest value in {others}"
    tolerance = max(TOLERANCES.get(output.datatype, TOLERANCE) for output in signature.outputs)
    if worst <= tolerance:
        return ok(f"{said} (tolerance {tolerance:g})")
    remedy = "its attention_mask hides the padding" if signature.masked else "its rows do not mix"
    change = f'export the model so that {remedy}, or set "max_batch_size: 1" in config.pbtxt'
    return failed(said, change) if worst > UNUSABLE else warning(said, change)


async def _prompts_together(subject: Subject, pipeline: GenerationPipeline) -> list[Finding]:
    """Whether two prompts of different lengths are continued alike alone and together. Raises RequestError."""
    alone = [(await _continued(pipeline, [prompt]))[0] for prompt in PROMPTS]
    together = await _continued(pipeline, PROMPTS)
    if together == alone:
        return ok(f"{len(PROMPTS)} prompts are continued alike alone and together, for {NEW_TOKENS} tokens")
    found = "a prompt is continued differently alone and together with another one"
    if pipeline.interface != "logits":  # the engine makes the batches, and few engines round alike in all of them
        return warning(found, "see whether the engine has a mode in which batches change nothing, where that matters")
    return failed(found, "export the model so that its attention_mask hides the padding, or set max_batch_size to 1")


async def _continued(pipeline: GenerationPipeline, prompts: Sequence[str]) -> list[str]:
    """The continuation of each prompt, the likeliest tokens. Raises RequestError."""
    request = GenerationRequest(prompts=prompts, sampling=Sampling(max_tokens=NEW_TOKENS, greedy=True))
    async with await pipeline.start(request, Context("doctor", {})) as generation:
        return [choices[0].text for choices in await generation.collect()]


async def shared_memory(subject: Subject) -> list[Finding]:
    """Whether a region can be registered, and an output comes through it. Raises RequestError."""
    pair, config = subject.bound, subject.config
    if config.predictor_shared_memory != "auto":
        return skipped("switched off (--predictor_shared_memory)")
    largest = pair.signature.max_rows * pair.signature.output_bytes(pair.length)
    if largest < config.predictor_shared_memory_min_bytes:
        return skipped(
            f"not needed: a batch's outputs have {largest} bytes at most, "
            f"--predictor_shared_memory_min_bytes={config.predictor_shared_memory_min_bytes}"
        )
    if any(output.row_bytes(pair.length) is None for output in pair.signature.outputs):
        return skipped("the outputs' dims are free in config.pbtxt, so their size is not known beforehand")
    try:
        there = free_bytes(FOLDER)
    except OSError as exc:
        return warning(f"{FOLDER}: {exc.strerror}", f"mount an emptyDir with medium: Memory there, {INLINE}")
    if there < config.predictor_shared_memory_bytes + RESERVED_BYTES:
        return warning(
            f"{FOLDER} has {there // MIB} MiB left, --predictor_shared_memory_bytes asks for "
            f"{config.predictor_shared_memory_bytes // MIB} MiB and {RESERVED_BYTES // MIB} MiB have to stay free",
            f"enlarge {FOLDER} (sizeLimit of the emptyDir, --shm-size), lower the flag, {INLINE}",
        )
    packed = form_of(pair).pack([sample(pair)])
    try:
        async with asyncio.timeout(CALL_SECONDS):
            arrived = await _arrives(subject.admin, packed)
    except (RequestError, OSError) as error:  # TimeoutError is an OSError
        if is_disallowed(error):
            return warning(f"the predictor takes no shared memory of clients: {error}", f"{ADVICE_TO_ALLOW}, {INLINE}")
        return warning(
            f"the predictor can't use our {FOLDER}: {str(error) or f'it gave no answer in {CALL_SECONDS:g} s'}",
            f"mount one emptyDir with medium: Memory at {FOLDER} in both containers (or --ipc=host), {INLINE}",
        )
    if not arrived:
        return warning(
            f"what the predictor writes into {FOLDER} does not arrive here",
            f"mount the same {FOLDER} in both containers, {INLINE}",
        )
    return ok(f"{sum(packed.sizes.values())} bytes came through {FOLDER}")


async def _arrives(transport: Transport, packed: Packed) -> bool:
    """Whether a batch's outputs come through a region of our own as they come inline. Raises RequestError if the
    predictor refuses the region or the batch, OSError if /dev/shm is missing or full."""
    outputs = list(packed.sizes)
    with ExitStack() as stack:
        call = ModelCall(packed.inputs, outputs, {})
        inline = await transport.infer(call)
        stack.callback(inline.release)
        region = stack.enter_context(closing(Region(sum(map(aligned, packed.sizes.values())), FOLDER)))
        await transport.register_region(region.name, region.size)
        try:
            await asyncio.to_thread(region.fill)
            slot = region.take(packed.sizes)
            if slot is None:
                raise OSError(f"the region of {region.size} bytes has no place for {packed.sizes}")
            shared = await transport.infer(call, slot.destination)
            stack.callback(shared.release)
        finally:
            with suppress(RequestError):
                await transport.unregister_region(region.name)
        # Some models' sums come in another order each time.
        return all(
            np.allclose(tensor.data, shared.tensors[name].data, rtol=2e-2, atol=1e-3)
            for name, tensor in inline.tensors.items()
        )


async def smoke_test(subject: Subject) -> list[Finding]:
    """One text through the whole pipeline, and the time of each stage. Raises RequestError."""
    context, pipeline, began = Context("doctor", {}), subject.pipeline, time.perf_counter()
    if isinstance(pipeline, GenerationPipeline):
        answers = await pipeline(Query([TEXT], {"max_new_tokens": NEW_TOKENS}), context)
        answer = answers.predictions[0][0]["generated_text"].removeprefix(TEXT)
        stages = {f"{NEW_TOKENS} tokens at most in": time.perf_counter() - began}
    else:
        answers = await pipeline(Query([_instance(subject.pair)], {}), context)
        answer = with_labels(answers.predictions[0], getattr(subject.pair.task, "labels", ()))
        stages = {"queue": context.queue, "predict": context.predict - context.queue, "decode": context.postprocess}
    shown = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    stages = {"tokenize": context.preprocess} | stages
    took = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in stages.items())
    return ok(f"{context.tokens} tokens -> {shown}; {took}")


def with_labels(answer: Json, labels: Sequence[str]) -> Json:
    """An answer that names labels by their numbers, as KServe's form does, with config.json's names instead."""
    match answer:
        case dict() if answer.keys() <= {str(number) for number in range(len(labels))}:
            return {labels[int(number)]: value for number, value in answer.items()}
        case list():
            return [with_labels(one, labels) for one in answer]
        case int() if answer in range(len(labels)):
            return labels[answer]
    return answer


def form_of(pair: FittedBinding) -> EncodingBatchBuilder:
    """How the service makes batches for this model, with its limits."""
    settings, shared = scheduler_settings(pair.config, pair.spec.instances), most_shared_bytes(pair.config)
    return EncodingBatchBuilder(
        pair.signature,
        padding_policy(pair.config, pair.tokenizer, pair.signature, pair.model_config),
        max_tokens=settings.max_batch_tokens,
        max_output_bytes=settings.max_batch_output_bytes,
        allow_in_shared_memory=lambda size: size <= shared,
    )


async def ask(subject: Subject, texts: Sequence[Encoding]) -> list[Outputs]:
    """One batch, without scheduler and task; each text's outputs, copied. Raises RequestError, also for outputs of
    another shape than promised."""
    form = form_of(subject.bound)
    packed = form.pack(texts)
    reply = await subject.predictor.infer(ModelCall(packed.inputs, packed.outputs, {}))
    try:
        found = form.unpack(texts, packed, reply.tensors)
        return [{role: data.copy() for role, data in rows.items()} for rows in found]
    finally:
        reply.release()


async def _refusal(subject: Subject, texts: Sequence[Encoding]) -> PredictorError | None:
    """The model's own error, None where it answers the texts, or continues them by a token. Other errors are raised."""
    try:
        if not isinstance(subject.pipeline, GenerationPipeline):
            await ask(subject, texts)
        else:
            prompts = [TokenIds(tuple(text.ids)) for text in texts]
            request = GenerationRequest(prompts=prompts, sampling=Sampling(max_tokens=1, greedy=True))
            async with await subject.pipeline.start(request, Context("doctor", {})) as generation:
                await generation.collect()
    except PredictorDenied:
        raise
    except PredictorError as error:
        return error
    return None


async def _highest(subject: Subject, works: int, fails: int, texts: Callable[[int], Sequence[Encoding]]) -> int:
    """Bisects: the highest number whose texts the model answers, where ``works`` does and ``fails`` does not."""
    while fails - works > 1:
        middle = (works + fails) // 2
        if await _refusal(subject, texts(middle)):
            fails = middle
        else:
            works = middle
    return works


def _broken(found: str) -> list[Finding]:
    return failed(found, "see the predictor's log, and load the model anew")


def _difference(one: Outputs, other: Outputs) -> float:
    """The largest difference between two texts' outputs, as a part of the largest value; 0.0 where they are equal."""
    worst = 0.0
    for role, values in one.items():
        values = values.astype(np.float64)
        change = float(np.abs(values - other[role].astype(np.float64)).max(initial=0.0))
        worst = max(worst, change / max(float(np.abs(values).max(initial=0.0)), 1e-6))
    return worst


def _instance(pair: ModelBinding) -> Json:
    """An instance for the task, as a client would send it: a plain text unless the task wants another form."""
    match pair.task.name:
        case "fill_mask":
            return f"The capital of France is {pair.tokenizer.mask_token}."
        case "question_answering":
            return {"question": "Where does the river flow?", "context": TEXT}
        case "rerank":
            return {"query": "Which city is on a river?", "texts": [TEXT, "The sky is blue."]}
        case "zero_shot_classification":
            return {"sequence": TEXT, "candidate_labels": ["geography", "cooking"]}
        case _:
            return TEXT


def sample(pair: ModelBinding) -> Encoding:
    """The tokens of the first text of ``_instance``, as long as the model takes it."""
    tokenizer = pair.tokenizer.with_max_length(_most_tokens(pair))
    if not isinstance(pair, FittedBinding):
        return tokenizer.encode([TEXT])[0]
    options = pair.task.options({})
    item = pair.task.item(_instance(pair), "the sample", options)
    return tokenizer.encode_windows(pair.task.texts(item, options)[:1], pair.task.tokenization(options))[0][0]


def _longest(pair: ModelBinding) -> Encoding:
    """As many tokens as the service ever sends in one text."""
    length = _most_tokens(pair)
    return pair.tokenizer.with_max_length(length).encode(["the " * length])[0]


def _most_tokens(pair: ModelBinding) -> int:
    """Of one text; a model that generates needs room for a new one."""
    return pair.length if isinstance(pair, FittedBinding) else pair.tokenizer.max_length - 1


def _shortened(text: Encoding, length: int) -> Encoding:
    """The first ``length`` tokens. The last token stays, since it may be the one that ends each text."""
    return replace(text, ids=[*text.ids[: length - 1], text.ids[-1]], type_ids=text.type_ids[:length])


def _altered(text: Encoding, vocabulary: int) -> Encoding:
    """Another text of the same length: all tokens but the first and the last differ."""
    inner = slice(1, -1) if len(text) > 2 else slice(None)
    ids = list(text.ids)
    ids[inner] = [(number + vocabulary // 3) % vocabulary for number in ids[inner]]
    return replace(text, ids=ids)
