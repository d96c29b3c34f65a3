"""The longest text and the highest token id: both come from tokenizer and config.json, and the model has to take them.

Nothing is sent that a client's text could not hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_transformer.commands.doctor import samples
from hf_transformer.commands.doctor.findings import Finding, failed, ok
from hf_transformer.commands.doctor.probing import answers, ask, highest
from hf_transformer.commands.doctor.subject import Subject, known
from hf_transformer.errors import PredictorDenied, PredictorError


async def longest_text(subject: Subject) -> Sequence[Finding]:
    """Whether the model's table of positions is as long as texts may be. Raises RequestError."""
    pair, predictor = known(subject.bound), known(subject.predictor)
    longest = samples.longest(pair)
    size, most = pair.signature.output_bytes(len(longest)), pair.config.max_predictor_response_bytes
    if size > most:
        return failed(
            f"the outputs for {len(longest)} tokens have {size} bytes, and {most} are taken",
            f"raise --max_predictor_response_bytes to {size + 65536}, or lower --max_model_len",
        )
    try:
        await ask(predictor, pair, [longest])
    except PredictorDenied:
        raise
    except PredictorError as error:
        return await _too_long(subject, len(longest), error)
    return ok(f"{len(longest)} tokens are answered")


async def _too_long(subject: Subject, length: int, error: PredictorError) -> Sequence[Finding]:
    pair, predictor = known(subject.bound), known(subject.predictor)
    if pair.signature.length is not None or not await answers(predictor, pair, samples.encoding(pair)):
        return _broken(f"a text of {length} tokens", error)
    longest = samples.longest(pair)
    found = await highest(
        len(samples.encoding(pair)) + 1, length, lambda size: answers(predictor, pair, samples.shortened(longest, size))
    )
    return failed(
        f"the model answers texts of up to {found} tokens, tokenizer and config.json allow {length}: {error}",
        f"set --max_model_len={found}, or export the model with the positions that its config.json promises",
    )


async def highest_id(subject: Subject) -> Sequence[Finding]:
    """Whether the model's embedding has a row for each of the tokenizer's ids. Raises RequestError."""
    pair, predictor = known(subject.bound), known(subject.predictor)
    sample, top = samples.encoding(pair), pair.tokenizer.vocab_size - 1
    place = len(sample) // 2

    async def works(number: int) -> bool:
        return await answers(
            predictor, pair, samples.with_ids(sample, [*sample.ids[:place], number, *sample.ids[place + 1 :]])
        )

    if await works(top):
        return ok(f"id {top} is answered")
    if not await answers(predictor, pair, sample):
        return _broken(f"a text with the token id {top}", PredictorError("it answers no text since then"))
    found = await highest(0, top, works)
    return failed(
        f"the model takes token ids up to {found}, the tokenizer's go up to {top}",
        "serve the model with its own tokenizer (--model_dir, --model_id), or resize its embeddings before the export",
    )


def _broken(what: str, error: PredictorError) -> Sequence[Finding]:
    return failed(f"{what} fails: {error}", "see the predictor's log, and load the model anew")
