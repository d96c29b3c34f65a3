"""Checks that call the model: inference, limits (longest text, highest token id), batches, shared memory, a smoke test.

The checks use only fixed texts, which any client could send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import numpy as np
import orjson

from hf_transformer.app.pipelines import FittedBinding, ModelBinding, padding_policy, words_of
from hf_transformer.app.settings import limits_of, max_shared_bytes, scheduler_settings
from hf_transformer.commands.doctor.examination import Finding, Subject, failed, ok, skipped, warning
from hf_transformer.commands.doctor.model import CALL_SECONDS
from hf_transformer.core.batch import EncodingBatchBuilder, Packed
from hf_transformer.core.budget import Budget
from hf_transformer.core.labelled_batch import make_builder
from hf_transformer.errors import InvalidInput, PredictorDenied, PredictorError, RequestError
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.types import GenerationRequest, Sampling
from hf_transformer.predictor.base import ModelCall, Transport
from hf_transformer.predictor.region_files import FOLDER, RESERVED_BYTES, free_bytes
from hf_transformer.predictor.regions import Region, aligned
from hf_transformer.predictor.registration import ADVICE_TO_ALLOW, is_disallowed
from hf_transformer.tasks.reduced import REDUCED
from hf_transformer.tasks.zero_shot_token_classification import TRIAL_LABELS
from hf_transformer.types.request import Context, Json, Query
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, LabelledEncoding, TokenIds

TEXT = "The capital of France is Paris."
PROMPTS = (TEXT, "The capital")
MAX_NEW_TOKENS = 8
"""Maximum number of generated tokens in the smoke test and in the comparison of prompts."""

TOLERANCES = {"FP16": 5e-3, "BF16": 5e-2}
"""Maximum relative difference of outputs between batches, by datatype. Rounding depends on the batch's shape."""
TOLERANCE = 1e-4
"""The maximum relative difference for other datatypes."""
UNUSABLE_DIFFERENCE = 0.1
"""The relative difference that indicates wrong answers instead of rounding."""

FORM = {
    "type": "object",
    "properties": {"doctor": {"enum": [17]}},
    "required": ["doctor"],
    "additionalProperties": False,
}
"""The schema that the doctor tries."""
FORM_TOKENS = 64
LARGE_OUTPUT_BYTES = 2**18
"""The size of a text's outputs from which there is advice: above hidden states of a short text, below a vocabulary's
logits."""

MIB = 2**20
INLINE = "or set --predictor_shared_memory=off; until then the service works with outputs in the responses"

Outputs = Mapping[str, Array]
"""The outputs of a text by role, without batch axis and padding."""


async def inference(subject: Subject) -> list[Finding]:
    """Run the model on a text; check that the outputs contain neither NaN nor +inf. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        await subject.pipeline.trial()
        return ok("the model continues a prompt by a token")
    text = sample(subject.binding)
    [by_role] = await ask(subject, [text])
    promised = subject.binding.signature.outputs if isinstance(subject.binding, FittedBinding) else ()
    names = {output.role: output.name for output in promised}
    outputs = {names.get(role, role): values for role, values in by_role.items()}
    for name, values in outputs.items():
        # -inf is valid: the logit of a suppressed token.
        if np.isnan(values).any() or np.isposinf(values).any():
            return failed(
                f"{name} holds values that are not finite numbers (NaN or infinite)",
                "export the model again, in FP32 if it is FP16, which overflows",
            )
    shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in outputs.items())
    return ok(f"{len(text)} tokens -> {shapes}")


async def other_text(subject: Subject) -> list[Finding]:
    """Check that two different texts have different outputs. Raises RequestError."""
    text = sample(subject.binding)
    [outputs] = await ask(subject, [text])
    [others] = await ask(subject, [_altered(text, subject.binding.tokenizer.vocab_size)])
    if all(np.array_equal(values, others[role]) for role, values in outputs.items()):
        return failed(
            "two texts without a word in common have the same outputs",
            "export the model again: it ignores its input_ids, or its weights are missing",
        )
    return ok("a different text gets different outputs")


async def longest_text(subject: Subject) -> list[Finding]:
    """Check that the model accepts a text of maximum length, including any generated token. Raises RequestError."""
    binding = subject.binding
    text, longest, fixed = sample(binding), _longest(binding), False
    length = len(longest)
    if isinstance(binding, FittedBinding):
        fixed = binding.signature.length is not None
        size, limit = binding.signature.output_bytes(length), binding.config.max_predictor_response_bytes
        if size > limit:
            return failed(
                f"the outputs for {length} tokens have {size} bytes, the limit is {limit}",
                f"raise --max_predictor_response_bytes to {size + 65536}, or lower --max_model_len",
            )
    error = await _refusal(subject, [longest])
    if error is None and isinstance(binding, FittedBinding):
        return ok(f"the model answers a text of {length} tokens")
    if error is None:
        return ok(f"the model continues a prompt of {length} tokens")
    if fixed or await _refusal(subject, [text]):
        return _broken(f"a text of {length} tokens fails: {error}")
    works = len(text) if len(text) < length else 0
    limit = await _highest(subject, works, length, lambda size: [_shortened(longest, size)])
    if isinstance(binding, FittedBinding):
        return failed(
            f"the model answers texts of up to {limit} tokens, tokenizer and config.json allow {length}: {error}",
            f"set --max_model_len={limit}, or export the model with as many positions as config.json allows",
        )
    return failed(
        f"the model continues prompts of up to {limit} tokens, tokenizer and config.json allow {length}",
        f"set --max_model_len={limit + 1}, or build the model with a higher limit (max_input_len, max_model_len)",
    )


async def highest_id(subject: Subject) -> list[Finding]:
    """Check that the model has an embedding for the tokenizer's highest id. Raises RequestError."""
    text, top = sample(subject.binding), subject.binding.tokenizer.vocab_size - 1
    middle = len(text) // 2

    def with_id(number: int) -> list[Encoding]:
        return [replace(text, ids=[*text.ids[:middle], number, *text.ids[middle + 1 :]])]

    if await _refusal(subject, with_id(top)) is None:
        return ok(f"the model takes id {top}")
    if await _refusal(subject, [text]):
        return _broken(f"since a text with the token id {top} the model answers no text")
    highest = await _highest(subject, -1, top, with_id)
    return failed(
        f"the model takes token ids up to {highest}, the tokenizer's go up to {top}",
        "serve the model with its own tokenizer (--model_dir, --model_id), or resize its embeddings before the export",
    )


async def batch_invariance(subject: Subject) -> list[Finding]:
    """Check that a text has equal outputs in a full batch and alone, within a tolerance. Raises RequestError."""
    if isinstance(subject.pipeline, GenerationPipeline):
        return await _prompts_together(subject, subject.pipeline)
    binding = subject.fitted
    signature, builder, text = binding.signature, batch_builder(binding), sample(binding)
    if signature.max_rows < 2:
        return skipped("the model takes one text at a time")
    if padded := builder.limits(text).padding:
        longest = _longest(binding)
        companion = _shortened(longest, min(3 * builder.bucket(text)[1], len(longest)))
    else:
        companion = _altered(text, binding.tokenizer.vocab_size)
    width, limits = builder.bucket(companion)[1], builder.limits(companion)
    rows = next((rows for rows in range(signature.max_rows, 2, -1) if limits.allow(rows, width, rows * width)), 2)

    def batch(count: int) -> list[Encoding]:
        return [text, *[companion] * (count - 1)]

    alone = [(await ask(subject, [single]))[0] for single in (text, companion)]
    if error := await _refusal(subject, batch(rows)):
        highest = await _highest(subject, 0, rows, batch)
        return failed(
            f"the model answers up to {highest} texts in a batch, the service would send {rows}: {error}",
            f'set "max_batch_size: {highest}" in config.pbtxt, or export the model with a free batch axis',
        )
    worst = max(map(_difference, alone, await ask(subject, batch(rows))))
    company = f"a batch with {rows - 1} {'longer' if padded else 'equally long'} texts"
    if not worst:
        return ok(f"the answer to a text is the same alone and in {company}")
    change = f"the answer to a text changes by {worst:.1e} of its largest value in {company}"
    tolerance = max(TOLERANCES.get(output.datatype, TOLERANCE) for output in signature.outputs)
    if worst <= tolerance:
        return ok(f"{change} (tolerance {tolerance:g})")
    goal = "its attention_mask hides the padding" if signature.masked else "its rows do not mix"
    remedy = f'export the model so that {goal}, or set "max_batch_size: 1" in config.pbtxt'
    return (failed if worst > UNUSABLE_DIFFERENCE else warning)(change, remedy)


async def _prompts_together(subject: Subject, pipeline: GenerationPipeline) -> list[Finding]:
    """Check that two prompts have equal continuations in a common batch and alone. Raises RequestError."""
    alone = [(await _continued(pipeline, [prompt]))[0] for prompt in PROMPTS]
    together = await _continued(pipeline, PROMPTS)
    if together == alone:
        return ok(f"{len(PROMPTS)} prompts get the same {MAX_NEW_TOKENS} tokens alone and together")
    change = "a prompt gets other tokens together with another prompt than alone"
    if pipeline.interface != "logits":  # in most engines, rounding depends on the batch
        return warning(change, "if that matters, use a batch-invariant mode of the engine")
    return failed(change, "export the model so that its attention_mask hides the padding, or set max_batch_size to 1")


async def _continued(pipeline: GenerationPipeline, prompts: Sequence[str]) -> list[str]:
    """Generate the greedy continuation of each prompt. Raises RequestError."""
    request = GenerationRequest(prompts=prompts, sampling=Sampling(max_tokens=MAX_NEW_TOKENS, greedy=True))
    async with await pipeline.start(request, Context("doctor", {})) as generation:
        return [choices[0].text for choices in await generation.collect()]


async def shared_memory(subject: Subject) -> list[Finding]:
    """Check that the predictor writes an output into a region of shared memory. Raises RequestError.

    Without shared memory, warns about a text's outputs of LARGE_OUTPUT_BYTES or more, and how to make them cheaper.
    """
    binding, [finding] = subject.fitted, await _region_in_use(subject)
    tokens = binding.signature.length or len(sample(binding))
    size = binding.signature.output_bytes(tokens)
    remedies = [finding.change] if finding.change else []
    if type(binding.task) in REDUCED:
        remedies.append("export the model with --reduce, for small responses (hf-transformer export)")
    if subject.config.predictor_protocol == "grpc-v2":
        remedies.append("set --predictor_protocol=v2: large responses take less CPU time over REST")
    if finding.status == "ok" or size < LARGE_OUTPUT_BYTES or not remedies:
        return [finding]
    return warning(f"{finding.found}; the outputs for {tokens} tokens have {size} bytes", "; or ".join(remedies))


async def _region_in_use(subject: Subject) -> list[Finding]:
    """Check that an output arrives in a region of shared memory. Raises RequestError."""
    binding, config = subject.fitted, subject.config
    if config.predictor_shared_memory != "auto":
        return skipped("switched off (--predictor_shared_memory)")
    largest = binding.signature.max_rows * binding.signature.output_bytes(binding.length)
    if largest < config.predictor_shared_memory_min_bytes:
        return skipped(
            f"not needed: the outputs of a batch have at most {largest} bytes, "
            f"--predictor_shared_memory_min_bytes={config.predictor_shared_memory_min_bytes}"
        )
    if any(output.row_bytes(binding.length) is None for output in binding.signature.outputs):
        return skipped("free dims in config.pbtxt: the service can't tell the outputs' size in advance")
    try:
        free = free_bytes(FOLDER)
    except OSError as exc:
        return warning(f"{FOLDER}: {exc.strerror}", f"mount an emptyDir with medium: Memory there, {INLINE}")
    if free < config.predictor_shared_memory_bytes + RESERVED_BYTES:
        return warning(
            f"{FOLDER} has {free // MIB} MiB left, --predictor_shared_memory_bytes asks for "
            f"{config.predictor_shared_memory_bytes // MIB} MiB, and {RESERVED_BYTES // MIB} MiB must stay free",
            f"enlarge {FOLDER} (sizeLimit of the emptyDir, --shm-size), lower the flag, {INLINE}",
        )
    packed = batch_builder(binding).pack([sample(binding)])
    try:
        async with asyncio.timeout(CALL_SECONDS):
            arrived = await _same_in_shared_memory(subject.admin, packed)
    except (RequestError, OSError) as error:  # TimeoutError is an OSError
        if is_disallowed(error):
            return warning(f"the predictor refuses shared memory of clients: {error}", f"{ADVICE_TO_ALLOW}, {INLINE}")
        return warning(
            f"the predictor can't use our {FOLDER}: {str(error) or f'it gave no answer in {CALL_SECONDS:g} s'}",
            f"mount one emptyDir with medium: Memory at {FOLDER} in both containers (or --ipc=host), {INLINE}",
        )
    if not arrived:
        return warning(
            f"the service does not see the outputs that the predictor writes into {FOLDER}",
            f"mount the same {FOLDER} in both containers, {INLINE}",
        )
    return ok(f"{sum(packed.sizes.values())} bytes arrived through {FOLDER}")


async def _same_in_shared_memory(transport: Transport, packed: Packed) -> bool:
    """Whether a batch's outputs are equal in shared memory and in a response.

    Raises RequestError if the predictor refuses the region or the batch, OSError if /dev/shm is missing or full.
    """
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
                raise OSError(f"the region of {region.size} bytes can't hold {packed.sizes}")
            shared = await transport.infer(call, slot.destination)
            stack.callback(shared.release)
        finally:
            with suppress(RequestError):
                await transport.unregister_region(region.name)
        # Some models change the order of summation from call to call.
        return all(
            np.allclose(tensor.data, shared.tensors[name].data, rtol=2e-2, atol=1e-3)
            for name, tensor in inline.tensors.items()
        )


async def structured_output(subject: Subject) -> list[Finding]:
    """Check that the model holds a text to a JSON schema. Raises RequestError."""
    pipeline, form = subject.pipeline, f"--structured_output_form={subject.config.structured_output_form}"
    if not isinstance(pipeline, GenerationPipeline):
        return skipped("the task generates no text")
    constraint = Constraint.of("json_schema", FORM)
    sampling = Sampling(max_tokens=FORM_TOKENS, greedy=True, constraint=constraint, names={"constraint": "a schema"})
    remedy = "set --structured_output_form=guided_decoding for a Triton before 25.11, or none to refuse such requests"
    try:
        request = GenerationRequest(prompts=[TEXT], sampling=sampling)
        async with await pipeline.start(request, Context("doctor", {})) as generation:
            [[piece]] = await generation.collect()
    except InvalidInput as error:
        return skipped(f"the service refuses such requests: {error.hint or error}")
    except PredictorDenied:
        raise
    except PredictorError as error:
        return warning(f"the model refuses a schema ({form}): {error}", remedy)
    try:
        held = orjson.loads(piece.text) == {"doctor": 17}
    except orjson.JSONDecodeError:
        held = False
    if not held:
        return warning(f"the model ignores a schema: it answers {piece.text[:60]!r} ({form})", remedy)
    return ok("the model holds a text to a JSON schema")


async def smoke_test(subject: Subject) -> list[Finding]:
    """Send one text through the whole pipeline, and time each stage. Raises RequestError."""
    context, pipeline, started = Context("doctor", {}), subject.pipeline, time.perf_counter()
    if isinstance(pipeline, GenerationPipeline):
        answers = await pipeline(Query([TEXT], {"max_new_tokens": MAX_NEW_TOKENS}), context)
        answer = answers.predictions[0][0]["generated_text"].removeprefix(TEXT)
        stages = {f"at most {MAX_NEW_TOKENS} tokens in": time.perf_counter() - started}
    else:
        answers = await pipeline(Query([_instance(subject.binding)], {}), context)
        answer = with_labels(answers.predictions[0], getattr(subject.binding.task, "labels", ()))
        stages = {"queue": context.queue, "predict": context.predict - context.queue, "decode": context.postprocess}
    text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    text = text if len(text) <= 60 else f"{text[:60]}..."
    stages = {"tokenize": context.preprocess} | stages
    times = ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in stages.items())
    return ok(f"{context.tokens} tokens -> {text}; {times}")


def with_labels(answer: Json, labels: Sequence[str]) -> Json:
    """Replace label numbers in an answer of KServe's form with the labels in config.json."""
    match answer:
        case dict() if answer.keys() <= {str(number) for number in range(len(labels))}:
            return {labels[int(number)]: value for number, value in answer.items()}
        case list():
            return [with_labels(item, labels) for item in answer]
        case int() if answer in range(len(labels)):
            return labels[answer]
    return answer


def batch_builder(binding: FittedBinding) -> EncodingBatchBuilder:
    """Create the service's batch builder for this model, with the configured limits."""
    settings = scheduler_settings(binding.config, binding.spec.instances)
    shared_bytes = max_shared_bytes(binding.config)
    return make_builder(
        words_of(binding.task),
        binding.signature,
        padding_policy(binding.config, binding.tokenizer, binding.signature, binding.model_config),
        max_tokens=settings.max_batch_tokens,
        max_output_bytes=settings.max_batch_output_bytes,
        allow_in_shared_memory=lambda size: size <= shared_bytes,
    )


async def ask(subject: Subject, texts: Sequence[Encoding]) -> list[Outputs]:
    """Infer a batch without scheduler and task, and copy the outputs of each text. Raises RequestError."""
    builder = batch_builder(subject.fitted)
    if subject.label_vectors is not None:
        labelled = [(text, TRIAL_LABELS) for text in texts]
        await subject.label_vectors.attach(labelled, Context("doctor", {}), Budget(limits_of(subject.config)), "labels")
    packed = builder.pack(texts)
    reply = await subject.predictor.infer(ModelCall(packed.inputs, packed.outputs, {}))
    try:
        unpacked = builder.unpack(texts, packed, reply.tensors)
        return [{role: data.copy() for role, data in rows.items()} for rows in unpacked]
    finally:
        reply.release()


async def _refusal(subject: Subject, texts: Sequence[Encoding]) -> PredictorError | None:
    """Return the model's error, or None after a success. Raises PredictorDenied and other kinds of errors."""
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
    """Bisect between ``works`` and ``fails``; return the largest number for which the model accepts the texts."""
    while fails - works > 1:
        middle = (works + fails) // 2
        if await _refusal(subject, texts(middle)):
            fails = middle
        else:
            works = middle
    return works


def _broken(problem: str) -> list[Finding]:
    return failed(problem, "see the predictor's log, then reload the model")


def _difference(alone: Outputs, batched: Outputs) -> float:
    """The maximum difference of a text's outputs alone and in a batch, relative to the largest absolute value."""
    worst = 0.0
    for role, values in alone.items():
        values = values.astype(np.float64)
        change = float(np.abs(values - batched[role].astype(np.float64)).max(initial=0.0))
        worst = max(worst, change / max(float(np.abs(values).max(initial=0.0)), 1e-6))
    return worst


def _instance(binding: ModelBinding) -> Json:
    """A V1 instance of the task."""
    return binding.task.trial_instance(TEXT, binding.tokenizer.mask_token)


def sample(binding: ModelBinding) -> Encoding:
    """Tokenize the first text of ``_instance``, truncated to the model's maximum length."""
    tokenizer = binding.tokenizer.with_max_length(_most_tokens(binding))
    if not isinstance(binding, FittedBinding):
        return tokenizer.encode([TEXT])[0]
    options = binding.task.options({})
    item = binding.task.item(_instance(binding), ("the sample",), options)
    return tokenizer.encode_windows(binding.task.texts(item, options)[:1], binding.task.tokenization(options))[0][0]


def _longest(binding: ModelBinding) -> Encoding:
    """A text of the maximum length that the service sends."""
    length = _most_tokens(binding)
    text = "the " * length
    texts = [binding.task.trial_text(text) if isinstance(binding, FittedBinding) else text]
    return binding.tokenizer.with_max_length(length).encode(texts)[0]


def _most_tokens(binding: ModelBinding) -> int:
    """The maximum number of tokens in a text. A generative model needs space for a generated token."""
    return binding.length if isinstance(binding, FittedBinding) else binding.tokenizer.max_length - 1


def _shortened(text: Encoding, length: int) -> Encoding:
    """Shorten the text to ``length`` tokens, with the original last token: the model may require a separator."""
    shorter = replace(text, ids=[*text.ids[: length - 1], text.ids[-1]], type_ids=text.type_ids[:length])
    if isinstance(shorter, LabelledEncoding):
        mask = [*shorter.words_mask[: length - 1], 0]
        return replace(shorter, words_mask=mask, words=shorter.words[: max(mask)])
    return shorter


def _altered(text: Encoding, vocabulary: int) -> Encoding:
    """Replace the inner tokens of a text, or all tokens if the text has at most two. A prompt of labels stays."""
    inner = slice(1, -1) if len(text) > 2 else slice(None)
    if isinstance(text, LabelledEncoding):
        inner = slice(text.words_mask.index(1), -1)
    ids = list(text.ids)
    ids[inner] = [(number + vocabulary // 3) % vocabulary for number in ids[inner]]
    return replace(text, ids=ids)
