"""What the model answers: numbers, the same ones whatever shares the batch, also for the longest text and the highest
token id, and one text all the way.

Nothing is sent that a client's text could not hold. All texts are the doctor's own.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import orjson

from hf_transformer.commands.doctor.advice import GENERATES
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, skipped, warning
from hf_transformer.core.batch import EncodingForm
from hf_transformer.core.pipeline import Pipeline
from hf_transformer.errors import PredictorDenied, PredictorError
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.model_wiring import filling, most_shared_bytes, scheduler_settings
from hf_transformer.pair import BoundPair
from hf_transformer.types import Array, Context, Encoding, Json, Query, TokenIds

TEXT = "The capital of France is a city on a river."
WORD = "the "
NEW_TOKENS = 8
"""Of the smoke test of a model that generates."""
SHOWN = 60
"""Characters of the smoke test's answer."""

TOLERANCES = {"FP16": 2e-2, "BF16": 5e-2}
"""Of answers to the same text, as a part of the largest value: rounding differs with a batch's shape."""
TOLERANCE = 1e-3
UNUSABLE = 0.1
"""A difference that changes answers, and not only their last digits."""

Outputs = Mapping[str, Array]
"""One text's outputs by role, without batch axis and padding."""


async def inference(subject: Subject) -> list[Finding]:
    """One text: datatypes and shapes of the outputs, and that they are numbers. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        await subject.pipeline.trial()
        return ok("a prompt is continued by a token")
    encoding = sample(subject)
    [outputs] = await ask(subject, [encoding])
    for role, values in outputs.items():
        # -inf is a legitimate logit: that of a banned token.
        if np.isnan(values).any() or np.isposinf(values).any():
            return failed(
                f"{role} holds values that are not finite numbers (NaN or infinite)",
                "export the model again, in FP32 if it is FP16: that overflows",
            )
    shapes = ", ".join(f"{role} {list(values.shape)}" for role, values in outputs.items())
    return ok(f"{len(encoding)} tokens -> {shapes}")


async def other_text(subject: Subject) -> list[Finding]:
    """Whether another text has other outputs. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        return skipped(GENERATES)
    encoding = sample(subject)
    [outputs] = await ask(subject, [encoding])
    [others] = await ask(subject, [_altered(encoding, subject.pair.tokenizer.vocab_size)])
    if all(np.array_equal(values, others[role]) for role, values in outputs.items()):
        return failed(
            "two texts without a word in common have the same outputs",
            "export the model again: it does not use its input_ids, or has no weights",
        )
    return ok("another text has other outputs")


async def longest_text(subject: Subject) -> list[Finding]:
    """Whether the model takes as many tokens as its files promise, those it generates included. Raises RequestError."""
    generates = isinstance(subject.pipeline, GenerationPipeline)
    longest, fixed = _longest(subject), False
    length = len(longest)
    if isinstance(subject.pair, BoundPair):
        signature, most = subject.pair.signature, subject.config.max_predictor_response_bytes
        size, fixed = signature.output_bytes(length), signature.length is not None
        if size > most:
            return failed(
                f"the outputs for {length} tokens have {size} bytes, and {most} are taken",
                f"raise --max_predictor_response_bytes to {size + 65536}, or lower --max_model_len",
            )

    async def refuses(size: int) -> PredictorError | None:
        return await _refusal(_answer(subject, _shortened(longest, size)))

    error = await refuses(length)
    if error is None:
        return ok(f"a prompt of {length} tokens is continued" if generates else f"{length} tokens are answered")
    text = sample(subject)
    if fixed or await _refusal(_answer(subject, text)):
        return _broken(f"a text of {length} tokens fails: {error}")
    found = await _highest(len(text) if len(text) < length else 0, length, refuses)
    if generates:
        return failed(
            f"the model continues prompts of up to {found} tokens, tokenizer and config.json allow {length}",
            f"set --max_model_len={found + 1}, or raise the limit that the model was built with (max_input_len, "
            "max_model_len)",
        )
    return failed(
        f"the model answers texts of up to {found} tokens, tokenizer and config.json allow {length}: {error}",
        f"set --max_model_len={found}, or export the model with the positions that its config.json promises",
    )


async def highest_id(subject: Subject) -> list[Finding]:
    """Whether the model has an embedding for each of the tokenizer's ids. Raises RequestError."""
    text, top = sample(subject), subject.pair.tokenizer.vocab_size - 1
    place = len(text) // 2

    async def refuses(number: int) -> PredictorError | None:
        ids = [*text.ids[:place], number, *text.ids[place + 1 :]]
        return await _refusal(_answer(subject, replace(text, ids=ids)))

    if await refuses(top) is None:
        return ok(f"id {top} is {'continued' if isinstance(subject.pipeline, GenerationPipeline) else 'answered'}")
    if await _refusal(_answer(subject, text)):
        return _broken(f"the model answers no text since one had the token id {top}")
    return failed(
        f"the model takes token ids up to {await _highest(-1, top, refuses)}, the tokenizer's go up to {top}",
        "serve the model with its own tokenizer (--model_dir, --model_id), or resize its embeddings before the export",
    )


async def batch_invariance(subject: Subject) -> list[Finding]:
    """Whether a full batch is answered, and whether a text's answer depends on what shares it. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        return skipped(GENERATES)
    pair = subject.bound
    signature, form = pair.signature, form_of(pair)
    if signature.max_rows < 2:
        return skipped("the model takes one text at a time")
    text = sample(subject)
    padded = signature.masked or signature.length is not None
    other = _longer(text, form.length(text), pair.length) if padded else _altered(text, pair.tokenizer.vocab_size)
    width, limits = form.length(other), form.limits(other)
    sizes = range(signature.max_rows, 2, -1)
    rows = next((size for size in sizes if limits.allow(size, width, size * width)), 2)

    async def together(size: int) -> Outputs:
        return (await ask(subject, [text, *[other] * (size - 1)]))[0]

    async def refuses(size: int) -> PredictorError | None:
        return await _refusal(together(size))

    [alone] = await ask(subject, [text])
    if (error := await refuses(rows)) is not None:
        found = await _highest(0, rows, refuses)
        return failed(
            f"the model answers up to {found} texts in a batch, and {rows} would be sent: {error}",
            f'set "max_batch_size: {found}" in config.pbtxt, or export the model with a free batch axis',
        )
    worst = _difference(alone, await together(rows))
    others = f"{rows - 1} {'longer' if padded else 'equally long'}"
    if not worst:
        return ok(f"the answer to a text is the same in a batch with {others} ones")
    said = f"the answer to a text changes by {worst:.1e} of its largest value in a batch with {others} ones"
    tolerance = max(TOLERANCES.get(output.datatype, TOLERANCE) for output in signature.outputs)
    if worst <= tolerance:
        return ok(f"{said} (tolerance {tolerance:g})")
    cause = "its attention_mask hides the padding" if signature.masked else "its rows do not mix"
    change = f'export the model so that {cause}, or set "max_batch_size: 1" in config.pbtxt'
    return failed(said, change) if worst > UNUSABLE else warning(said, change)


async def smoke_test(subject: Subject) -> list[Finding]:
    """A text all the way, as a client's goes, and the time of each stage. Raises RequestError."""
    context, pipeline = Context("doctor", {}), subject.pipeline
    times, began = context.timings, time.perf_counter()
    if isinstance(pipeline, GenerationPipeline):
        answers = await pipeline(Query([TEXT], {"max_new_tokens": NEW_TOKENS}), context)
        answer = answers.predictions[0][0]["generated_text"].removeprefix(TEXT)
        stages = {f"{NEW_TOKENS} tokens at most in": time.perf_counter() - began}
    else:
        answers = await pipeline(Query([_instance(subject)], {}), context)
        answer = answers.predictions[0]
        stages = {"queue": times.queue, "predict": times.predict - times.queue, "decode": times.postprocess}
    stages = {"tokenize": times.preprocess, **stages}
    shown = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
    took = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in stages.items())
    return ok(f"{context.tokens} tokens -> {shown}; {took}")


def form_of(pair: BoundPair) -> EncodingForm:
    """How the service makes batches for this model, with its limits."""
    settings, shared = scheduler_settings(pair.config, pair.spec.instances), most_shared_bytes(pair.config)
    return EncodingForm(
        pair.signature,
        filling(pair.config, pair.tokenizer, pair.signature),
        max_tokens=settings.max_batch_tokens,
        max_output_bytes=settings.max_batch_output_bytes,
        more=lambda size: size <= shared,
    )


async def ask(subject: Subject, encodings: Sequence[Encoding]) -> list[Outputs]:
    """One batch, without scheduler and task; each text's outputs, copied. Raises RequestError, also for outputs of
    another shape than promised."""
    form = form_of(subject.bound)
    packed = form.pack(encodings)
    reply = await subject.predictor.infer(packed.inputs, packed.outputs, {})
    try:
        found = form.unpack(encodings, packed, reply.tensors)
        return [{role: data.copy() for role, data in rows.items()} for rows in found]
    finally:
        reply.release()


async def _answer(subject: Subject, encoding: Encoding) -> None:
    """Has the model answer these tokens, or continue them by one. Raises RequestError."""
    if isinstance(subject.pipeline, Pipeline):
        await ask(subject, [encoding])
        return
    prompt = TokenIds(tuple(encoding.ids))
    request = GenerationRequest(prompts=[prompt], sampling=Sampling(max_tokens=1, greedy=True))
    async with await subject.pipeline.start(request, Context("doctor", {})) as generation:
        await generation.collect()


async def _refusal(question: Awaitable[object]) -> PredictorError | None:
    """The model's own error, None where it answers. Any other error is raised."""
    try:
        await question
    except PredictorDenied:
        raise
    except PredictorError as error:
        return error
    return None


async def _highest(works: int, fails: int, refuses: Callable[[int], Awaitable[PredictorError | None]]) -> int:
    """The highest number that the model does not refuse, between one that works and one that fails."""
    while fails - works > 1:
        middle = (works + fails) // 2
        if await refuses(middle):
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


def _instance(subject: Subject) -> Json:
    """An instance for the task, as a client would send it: a plain text unless the task wants another form."""
    match subject.pair.task.name:
        case "fill_mask":
            return f"The capital of France is {subject.pair.tokenizer.mask_token}."
        case "question_answering":
            return {"question": "Where does the river flow?", "context": TEXT}
        case "rerank":
            return {"query": "Which city is on a river?", "texts": [TEXT, "The sky is blue."]}
        case "zero_shot_classification":
            return {"sequence": TEXT, "candidate_labels": ["geography", "cooking"]}
        case _:
            return TEXT


def sample(subject: Subject) -> Encoding:
    """The tokens of the first text of ``_instance``, as long as the model takes it."""
    pair = subject.pair
    if not isinstance(pair, BoundPair):
        return pair.tokenizer.with_max_length(pair.tokenizer.max_length - 1).encode([TEXT])[0]
    options = pair.task.options({})
    item = pair.task.item(_instance(subject), "the sample", options)
    tokenizer = pair.tokenizer.with_max_length(pair.length)
    return tokenizer.encode_windows(pair.task.texts(item, options)[:1], pair.task.tokenization(options))[0][0]


def _longest(subject: Subject) -> Encoding:
    """As many tokens as the service ever sends in one text: a model that generates needs room for one more."""
    pair = subject.pair
    length = pair.length if isinstance(pair, BoundPair) else pair.tokenizer.max_length - 1
    return pair.tokenizer.with_max_length(length).encode([WORD * length])[0]


def _shortened(encoding: Encoding, length: int) -> Encoding:
    """The first ``length`` tokens, of which the last stays the last: it may be one that ends each text."""
    ids = [*encoding.ids[: length - 1], encoding.ids[-1]]
    return replace(encoding, ids=ids, type_ids=encoding.type_ids[:length])


def _altered(encoding: Encoding, vocabulary: int) -> Encoding:
    """Another text of the same length: all tokens but the first and the last are others."""
    inner = slice(1, -1) if len(encoding) > 2 else slice(None)
    ids = list(encoding.ids)
    ids[inner] = [(number + vocabulary // 3) % vocabulary for number in ids[inner]]
    return replace(encoding, ids=ids)


def _longer(encoding: Encoding, width: int, length: int) -> Encoding:
    """The same text several times over, up to ``length`` tokens, so that the first one is padded beside it to more than
    the ``width`` that it has alone."""
    inner = encoding.ids[1:-1]
    times = max(3, width // max(len(inner), 1) + 1)
    ids = [encoding.ids[0], *(inner * times), encoding.ids[-1]][: max(length, 1)]
    return Encoding(ids, [0] * len(ids))
