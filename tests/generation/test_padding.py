"""Steps of texts whose widths are multiples of --pad_to_multiple_of."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.generation.types import Sampling
from tests.generation.logits_bench import FORMS, PROMPTS, SCHEDULING, generator, write
from tests.generation.tiny_model import LONGEST, Form

MULTIPLE = 24
"""LONGEST is none of it, so that one width is the longest that the model takes."""
WIDTHS = {24, 48, LONGEST}
REFUSED = {
    "without a mask": "without attention_mask its texts can't be padded",
    "last": "without attention_mask and position_ids its texts can't be padded",
    "encoder-decoder, last": "it gives the logits of its decoder's last place alone, which would be padding",
}
TAKEN = {name: form for name, form in FORMS.items() if name not in REFUSED}
LONG = Sampling(greedy=True, ignore_eos=True)


@pytest.mark.parametrize("form", TAKEN.values(), ids=TAKEN)
async def test_texts_are_the_same_alone_and_in_shared_batches(form: Form) -> None:
    prompts = [*PROMPTS[:12], (5,) * 30, (5,) * (LONGEST - 1)]
    async with generator(form) as (made, _):
        expected = [await write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts]
    async with generator(form, pad_to_multiple_of=MULTIPLE) as (made, predictor):
        assert [await write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts] == expected
        together = [write(made, prompt, replace(LONG, max_tokens=12)) for prompt in prompts]
        assert await asyncio.gather(*together) == expected
        sent = {name: {call[name].shape[-1] for call in predictor.calls} for name in predictor.calls[0]}
    free = WIDTHS if form.length < 0 else {LONGEST}
    if form.encoder_decoder:
        assert sent["input_ids"] == sent["attention_mask"] == free
        assert sent["decoder_input_ids"] == ({1, 24} if form.past else {24})
    elif form.past:
        assert sent["input_ids"] == {1, *free}
    else:
        assert sent["input_ids"] == sent["attention_mask"] == free


async def test_a_text_becomes_as_long_as_the_model_takes_in_few_shapes() -> None:
    async with generator(FORMS["plain"], pad_to_multiple_of=MULTIPLE) as (made, predictor):
        ids, finish, _ = await write(made, (5,), LONG)
    assert (len(ids), finish) == (LONGEST - 1, "length")
    widths = [call["input_ids"].shape[-1] for call in predictor.calls]
    assert widths == [24] * 24 + [48] * 24 + [LONGEST] * 15


async def test_prompts_that_are_padded_to_one_width_share_a_batch() -> None:
    prompts = [(5,) * 3, (6,) * 20]
    for multiple, rows in ((1, {1}), (MULTIPLE, {2})):
        async with generator(FORMS["encoder-decoder"], pad_to_multiple_of=multiple) as (made, predictor):
            await asyncio.gather(*[write(made, prompt, replace(LONG, max_tokens=4)) for prompt in prompts])
            assert set(predictor.rows) == rows


@pytest.mark.parametrize("encoder_decoder", [False, True], ids=["decoder", "encoder-decoder"])
async def test_a_fixed_length_is_what_counts(encoder_decoder: bool) -> None:
    form = Form(length=40, max_batch_size=16, encoder_decoder=encoder_decoder)
    prompts = [(one,) * 30 for one in (5, 6, 7)]
    scheduling = replace(SCHEDULING, max_batch_tokens=3 * 40)
    async with generator(form, scheduling, pad_to_multiple_of=MULTIPLE) as (made, predictor):
        found = await asyncio.gather(*[write(made, prompt, replace(LONG, max_tokens=4)) for prompt in prompts])
        assert {data.shape[-1] for call in predictor.calls for data in call.values()} == {40}
        assert encoder_decoder or set(predictor.rows) == {3}, "as many as the tokens that are sent allow"
    async with generator(form, scheduling) as (made, _):
        assert found == [await write(made, prompt, replace(LONG, max_tokens=4)) for prompt in prompts]


@pytest.mark.parametrize(
    ("form", "why"),
    [
        *((FORMS[name], why) for name, why in REFUSED.items()),
        (Form(encoder_decoder=True, mask=False), "without attention_mask its prompts can't be padded"),
    ],
)
async def test_a_model_that_would_read_the_padding_is_refused(form: Form, why: str) -> None:
    with pytest.raises(ContractError) as caught:
        async with generator(form, pad_to_multiple_of=MULTIPLE):
            pass
    assert caught.value.problems == (f"--pad_to_multiple_of=24: {why}; expected 1, or another export of the model.",)
