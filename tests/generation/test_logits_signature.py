"""Signatures of logits models, and the messages of mismatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hf_transformer.core.contract import ContractError
from hf_transformer.generation.logits_signature import LogitsSignature, fit_logits
from hf_transformer.types.tensors import ModelSpec, TensorSpec
from tests.generation.tiny_model import SETTINGS, VOCABULARY, ModelVariant, vocabulary

PLAIN = ModelVariant().spec
CACHED = ModelVariant(past=True, positions=True).spec
SOURCED = ModelVariant(encoder_decoder=True, past=True).spec
PAST, KEY_VALUE = "past_key_values.0", ("key", "value")


def fit(spec: ModelSpec, **settings: Any) -> LogitsSignature:
    return fit_logits(spec, vocabulary(settings.pop("size", VOCABULARY)), replace(SETTINGS, **settings))


def changed(spec: ModelSpec, *tensors: TensorSpec, without: Sequence[str] = ()) -> ModelSpec:
    """Replaces the tensors of the same names, or adds inputs, and removes the tensors ``without``."""
    inputs, outputs = ({tensor.name: tensor for tensor in side} for side in (spec.inputs, spec.outputs))
    for tensor in tensors:
        (outputs if tensor.name in outputs else inputs)[tensor.name] = tensor
    kept = [tuple(side[name] for name in side if name not in without) for side in (inputs, outputs)]
    return replace(spec, inputs=kept[0], outputs=kept[1])


def test_positional_names_take_the_roles_of_the_flag() -> None:
    inputs = tuple(TensorSpec(f"INPUT__{number}", "INT64", (-1,)) for number in (1, 0))
    spec = ModelSpec("m", "1", inputs, (TensorSpec("OUTPUT__0", "FP32", (-1, VOCABULARY)),), 8)
    found = fit(spec, input_names=("input_ids", "attention_mask"))
    assert {one.name: one.role for one in found.inputs} == {"INPUT__0": "input_ids", "INPUT__1": "attention_mask"}
    assert found.logits == "OUTPUT__0"
    with pytest.raises(ContractError, match="include no input_ids"):
        fit(spec)


@pytest.mark.parametrize("encoder_decoder", [False, True])
def test_numbered_names_have_the_role_before_the_number(encoder_decoder: bool) -> None:
    """Triton's PyTorch backend names tensors so: the number is the position."""
    plain = ModelVariant(encoder_decoder=encoder_decoder).spec
    inputs, outputs = (
        tuple(replace(tensor, name=f"{tensor.name}__{number}") for number, tensor in enumerate(side))
        for side in (plain.inputs, plain.outputs)
    )
    signature = fit(replace(plain, inputs=inputs, outputs=outputs))
    roles = {tensor.name: tensor.role for tensor in fit(plain).inputs}
    assert {tensor.name.rpartition("__")[0]: tensor.role for tensor in signature.inputs} == roles
    assert signature.logits == "logits__0" and signature.encoder_decoder is encoder_decoder and signature.pads
    other = (*outputs, TensorSpec("other__1", "FP32", (-1, VOCABULARY)))
    assert fit(replace(plain, inputs=inputs, outputs=other)).logits == "logits__0"


def test_flags_select_the_inputs_and_the_output() -> None:
    optional = TensorSpec("attention_mask", "INT64", (-1,), optional=True)
    spec = changed(PLAIN, optional)
    spec = replace(spec, outputs=(*spec.outputs, TensorSpec("other", "FP32", (-1, VOCABULARY))))
    found = fit(spec, input_names=("input_ids",), output_names=("other",))
    assert [one.name for one in found.inputs] == ["input_ids"] and found.logits == "other"
    assert fit(spec).logits == "logits"


def test_config_json_lowers_the_minimum_of_an_unknown_vocabulary() -> None:
    spec = changed(PLAIN, TensorSpec("logits", "FP32", (-1, -1)))
    assert (fit(spec).vocabulary, fit(spec).min_vocabulary) == (None, VOCABULARY)
    assert fit(spec, size=60).min_vocabulary == VOCABULARY, "config.json has fewer than the tokenizer"
    assert fit(spec, size=60, model_config={}).min_vocabulary == 60


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(PLAIN, decoupled=True), "decoupled: false"),
        (changed(PLAIN, without=("input_ids",)), "include no input_ids"),
        (changed(PLAIN, TensorSpec("input_ids", "INT64", (-1, -1))), "include no input_ids"),
        (changed(PLAIN, TensorSpec("input_ids", "FP32", (-1,))), "'input_ids' is FP32; export it as INT64"),
        (changed(PLAIN, TensorSpec("input_ids", "INT16", (-1,))), "'input_ids' is INT16; export it as INT64"),
        (changed(PLAIN, TensorSpec("position_ids", "UINT8", (-1,))), "'position_ids' is UINT8; export it as INT64"),
        (changed(PLAIN, TensorSpec("attention_mask", "BF16", (-1,))), "'attention_mask' is BF16"),
        (changed(PLAIN, TensorSpec("pixel_values", "FP32", (3,))), "requires the input 'pixel_values'"),
        (
            changed(CACHED, TensorSpec("encoder_hidden_states", "FP32", (-1, 8))),
            "'encoder_hidden_states', the output of another",
        ),
        (changed(SOURCED, without=[f"{PAST}.decoder.{part}" for part in KEY_VALUE]), "caches of the encoder alone"),
        (changed(CACHED, without=("present.0.value",)), "but has no output 'present.0.value'"),
        (changed(CACHED, TensorSpec(f"{PAST}.key", "FP32", (-1, -1, 8))), r"has the dims \[-1, -1, 8\]; set all but"),
        (changed(CACHED, TensorSpec(f"{PAST}.key", "BF16", (2, -1, 8))), f"'{PAST}.key' is BF16; export it as FP32 or"),
        (changed(CACHED, TensorSpec("present.0.key", "FP16", (2, -1, 8))), "'present.0.key' is FP16, but"),
        (changed(PLAIN, TensorSpec("logits", "FP32", (-1, 49))), "has 49 tokens, the tokenizer or config.json 50"),
        (changed(PLAIN, TensorSpec("logits", "INT64", (-1, 50))), r"Its outputs \(logits INT64 \[-1, 50\]\) include"),
        (changed(PLAIN, TensorSpec("logits", "FP32", (-1, 2, 50))), "include no unique logits"),
        (ModelVariant(length=16, past=True).spec, "input has 16 tokens, but a cache grows"),
        (
            ModelVariant(length=16, logits="last").spec,
            "input has 16 tokens, but it returns the logits of the last position alone",
        ),
        (ModelVariant(length=16, encoder_decoder=True, mask=False).spec, "it would attend to the padding"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_mismatch_has_its_message(spec: ModelSpec, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        fit(spec)


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        (ModelVariant(mask=False), "without attention_mask its texts can't be padded"),
        (ModelVariant(logits="last"), "without attention_mask and position_ids its texts can't be padded"),
        (
            ModelVariant(encoder_decoder=True, logits="last"),
            "it returns the logits of its decoder's last position alone, which",
        ),
        (ModelVariant(encoder_decoder=True, mask=False), "without attention_mask its prompts can't be padded"),
    ],
    ids=str,
)
def test_padding_is_refused_for_a_model_that_would_attend_to_it(variant: ModelVariant, reason: str) -> None:
    with pytest.raises(ContractError, match=f"--pad_to_multiple_of=24: {reason}"):
        fit(variant.spec, pad_to_multiple_of=24)


def test_all_mismatches_are_reported_together() -> None:
    spec = changed(PLAIN, TensorSpec("pixel_values", "FP32", (3,)), TensorSpec("logits", "FP32", (-1, 49)))
    with pytest.raises(ContractError) as caught:
        fit(replace(spec, decoupled=True))
    assert len(caught.value.problems) == 3
    with pytest.raises(ContractError, match="add decoder_start_token_id"):
        fit(ModelVariant(encoder_decoder=True).spec, decoder_start_ids=())
