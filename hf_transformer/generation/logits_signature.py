"""Signature of a logits model: the role of each tensor, and the batch limits.

Tensor names follow transformers and optimum:

decoder          input_ids, attention_mask, position_ids
encoder-decoder  input_ids, attention_mask, decoder_input_ids, decoder_attention_mask
cache            past_key_values.0.key -> present.0.key; past_key_values.0.decoder.key of an encoder-decoder
merged model     use_cache_branch

All functions are pure functions of the model's description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hf_transformer.core.contract import (
    DEFAULT_MAX_ROWS,
    POSITIONAL,
    ContractError,
    InputSignature,
    role_from_numbered_name,
)
from hf_transformer.generation.cache import CacheTensor
from hf_transformer.generation.types import GeneratorSettings
from hf_transformer.tasks.base import FLOATS
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, TensorSpec
from hf_transformer.types.tokenization import TaskTokenizer

DECODER: Final = ("input_ids", "attention_mask", "position_ids")
ENCODER_DECODER: Final = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
CACHE_BRANCH: Final = "use_cache_branch"
"""Boolean input of optimum's merged models, which run with or without a cache. True selects the cache."""
KNOWN: Final = (*DECODER, *ENCODER_DECODER, CACHE_BRANCH)
PAST: Final = re.compile(r"past_key_values\.(\d+\.(?:(decoder|encoder)\.)?(?:key|value))")
ENCODED: Final = ("encoder_outputs", "encoder_hidden_states", "encoder_last_hidden_state")
"""Possible names of the encoder's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsSignature:
    """Inputs, outputs and limits of a model that returns the next token's logits.

    Attributes:
        logits: output [rows, S, V] with ``all_positions``; else [rows, 1, V] or [rows, V], for the last position.
        vocabulary: V if the model's configuration defines it; at least ``min_vocabulary``.
        length: fixed number of tokens of input_ids; None if it is variable.
        target_length: fixed number of tokens of decoder_input_ids; None if it is variable.
        exact_rows, batch_axis: as in core.contract.Signature.
        triton_batch: whether Triton adds the batch axis to every tensor.
    """

    inputs: tuple[InputSignature, ...]
    logits: str
    datatype: str
    all_positions: bool
    vocabulary: int | None
    min_vocabulary: int
    caches: tuple[CacheTensor, ...]
    encoder_decoder: bool
    max_rows: int
    exact_rows: int | None
    batch_axis: bool
    triton_batch: bool
    length: int | None
    target_length: int | None

    def takes(self, role: str) -> bool:
        """Whether the model has an input of this role."""
        return any(tensor.role == role for tensor in self.inputs)

    @property
    def pads_cache(self) -> bool:
        """Whether caches of different lengths may share a batch. They may if the model takes position_ids and a
        mask."""
        return self.takes("attention_mask") and self.takes("position_ids") and not self.encoder_decoder

    @property
    def pads_left(self) -> bool:
        """Whether to pad whole texts on the left, because the model returns logits for the last position only.

        Other models get padding on the right, where a causal model ignores it.
        """
        return self.pads_cache and not self.all_positions

    @property
    def pads(self) -> bool:
        """Whether texts of different lengths may share a batch before they have a cache."""
        return self.pads_left or (self.all_positions and (self.encoder_decoder or self.takes("attention_mask")))


def fit_logits(spec: ModelSpec, vocabulary: TaskTokenizer, settings: GeneratorSettings) -> LogitsSignature:
    """Derives a model's signature from its tensors, the tokenizer and the flags. Raises ContractError with all
    mismatches."""
    problems: list[str] = []
    if spec.decoupled:
        problems.append(
            "It is decoupled (it streams responses), but each call of a logits model is one step: set "
            "model_transaction_policy { decoupled: false } in config.pbtxt."
        )
    roles = _roles(spec, settings.input_names)
    shapes = {roles[tensor.name]: tensor.shape for tensor in spec.inputs if tensor.name in roles}
    encoder_decoder = "decoder_input_ids" in shapes
    if encoder_decoder and not settings.decoder_start_ids:
        problems.append(
            "It takes decoder_input_ids, but neither config.json nor generation_config.json has their first token: "
            "add decoder_start_token_id."
        )
    inputs = _fit_inputs(spec, roles, encoder_decoder, problems)
    ids, target = shapes.get("input_ids", ()), shapes.get("decoder_input_ids", (-1,))[-1]
    if len(ids) not in ((1,) if spec.max_batch_size else (1, 2)):
        names = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in spec.inputs) or "none"
        problems.append(f"Its inputs ({names}) include no input_ids [-1] (with max_batch_size) or [-1, -1].")
        raise ContractError(spec.name, problems)
    leading = len(ids) - 1
    logits, all_positions, size = _fit_output(spec, settings.output_names, leading, problems)
    # Some models have a smaller vocabulary than their tokenizer, but no model has a smaller one than in config.json.
    min_size, declared = vocabulary.vocab_size, settings.model_config.get("vocab_size")
    if isinstance(declared, int) and declared > 0:
        min_size = min(min_size, declared)
    if size is not None and size < min_size:
        problems.append(
            f"Its output {logits.name!r} has {size} tokens, the tokenizer or config.json {min_size}. "
            "Serve it with its own tokenizer and config.json."
        )
    batch_axis = bool(spec.max_batch_size) or leading == 1
    exact = ids[0] if leading == 1 and ids[0] > 0 else None
    signature = LogitsSignature(
        inputs=inputs,
        logits=logits.name,
        datatype=logits.datatype,
        all_positions=all_positions,
        vocabulary=size,
        min_vocabulary=min_size,
        caches=_fit_caches(spec, leading, problems),
        encoder_decoder=encoder_decoder,
        max_rows=spec.max_batch_size or exact or (DEFAULT_MAX_ROWS if batch_axis else 1),
        exact_rows=exact,
        batch_axis=batch_axis,
        triton_batch=bool(spec.max_batch_size),
        length=ids[-1] if ids[-1] > 0 else None,
        target_length=target if target > 0 else None,
    )
    problems += _length_problems(signature)
    multiple = settings.pad_to_multiple_of
    if multiple > 1 and (problem := _padding_problem(signature)):
        problems.append(f"--pad_to_multiple_of={multiple}: {problem}; expected 1, or another export of the model.")
    if problems:
        raise ContractError(spec.name, problems)
    return signature


def _roles(spec: ModelSpec, input_names: Sequence[str]) -> dict[str, str]:
    """Role of each input to send, by input name. A name may have a number as its suffix (input_ids__0).

    The inputs INPUT__0, INPUT__1, ... have the roles ``input_names`` (--tensor_input_names) by position.
    """
    roles = {tensor.name: role_from_numbered_name(tensor.name, KNOWN) for tensor in spec.inputs}
    if input_names and roles and all(POSITIONAL.match(role) for role in roles.values()):
        names = sorted(roles, key=lambda name: int(name.rpartition("__")[2]))
        return dict(zip(names, input_names, strict=False))
    sent = {*input_names, CACHE_BRANCH} if input_names else {*KNOWN}
    return {name: role for name, role in roles.items() if role in sent}


def _fit_inputs(
    spec: ModelSpec, roles: Mapping[str, str], encoder_decoder: bool, problems: list[str]
) -> tuple[InputSignature, ...]:
    known = (*(ENCODER_DECODER if encoder_decoder else DECODER), CACHE_BRANCH)
    fitted = []
    for tensor in spec.inputs:
        role = roles.get(tensor.name)
        if role is not None and role in known:
            # numpy casts ids and positions to small integer types without an overflow error.
            is_flag = role in (CACHE_BRANCH, "attention_mask", "decoder_attention_mask")
            dtype = NUMPY_DTYPES.get(tensor.datatype)
            if dtype is None or dtype.kind not in ("iub" if is_flag else "iu") or (dtype.itemsize < 4 and not is_flag):
                problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as INT64 or INT32.")
            else:
                fitted.append(InputSignature(tensor.name, role, tensor.datatype))
        elif tensor.optional or PAST.fullmatch(tensor.name):
            continue
        elif tensor.name in ENCODED:
            problems.append(
                f"It requires {tensor.name!r}, the output of another model, such as optimum's separate encoder: serve "
                "both as one model that takes input_ids, attention_mask and decoder_input_ids."
            )
        else:
            problems.append(
                f"It requires the input {tensor.name!r}, but text generation fills {', '.join(known)} and "
                "past_key_values (see --tensor_input_names)."
            )
    return tuple(fitted)


def _fit_caches(spec: ModelSpec, leading: int, problems: list[str]) -> tuple[CacheTensor, ...]:
    """Matches each cache input with the output of the previous step."""
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    caches = []
    for tensor in spec.inputs:
        match = PAST.fullmatch(tensor.name)
        if not match:
            continue
        present, shape = f"present.{match[1]}", tensor.shape[leading:]
        if present not in outputs:
            problems.append(f"It takes {tensor.name!r}, but has no output {present!r} to fill it from.")
        elif tensor.datatype not in FLOATS or tensor.datatype not in NUMPY_DTYPES:
            problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as FP32 or FP16.")
        elif outputs[present].datatype != tensor.datatype:
            datatype = outputs[present].datatype
            problems.append(f"Its output {present!r} is {datatype}, but {tensor.name!r} is {tensor.datatype}.")
        elif shape.count(-1) != 1 or 0 in shape:
            problems.append(
                f"Its input {tensor.name!r} has the dims {list(tensor.shape)}; set all but the token (and batch) axis "
                "to numbers in config.pbtxt: [heads, -1, head size]."
            )
        else:
            caches.append(CacheTensor(tensor.name, present, tensor.datatype, shape, source=match[2] == "encoder"))
    if caches and all(cache.source for cache in caches):
        problems.append("It takes caches of the encoder alone: export it with decoder caches too, or without caches.")
    return tuple(caches)


def _fit_output(
    spec: ModelSpec, output_names: Sequence[str], leading: int, problems: list[str]
) -> tuple[TensorSpec, bool, int | None]:
    """Returns the logits output, whether it covers all positions, and the vocabulary size (None if unknown).

    Raises ContractError if the logits output is ambiguous.
    """
    floats = [tensor for tensor in spec.outputs if tensor.datatype in FLOATS and not tensor.name.startswith("present.")]
    floats = [tensor for tensor in floats if tensor.name not in ENCODED]
    name = output_names[0] if output_names else "logits"
    matches = [tensor for tensor in floats if name in (tensor.name, role_from_numbered_name(tensor.name, (name,)))]
    matches = matches or ([] if output_names else floats)
    if len(matches) != 1 or len(matches[0].shape) - leading not in (1, 2):
        outputs = ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in spec.outputs)
        problems.append(
            f"Its outputs ({outputs or 'none'}) include no unique logits: floats with the dims [-1, vocabulary], or "
            "[1, vocabulary] or [vocabulary] for the last position alone. Set --tensor_output_names, or change the "
            "export."
        )
        raise ContractError(spec.name, problems)
    shape = matches[0].shape[leading:]
    return matches[0], len(shape) == 2 and shape[0] != 1, shape[-1] if shape[-1] > 0 else None


def _length_problems(signature: LogitsSignature) -> list[str]:
    fixed = signature.length if signature.length is not None else signature.target_length
    if fixed is None:
        return []
    if signature.caches:
        return [f"Its input has {fixed} tokens, but a cache grows: export it with a free sequence axis."]
    if not signature.all_positions and not signature.pads_left:
        return [
            f"Its input has {fixed} tokens, but it returns the logits of the last position alone: export it with a "
            "free sequence axis, or with the logits of all positions."
        ]
    if signature.encoder_decoder and signature.length is not None and not signature.takes("attention_mask"):
        return ["Its input_ids have a fixed length, but it takes no attention_mask: it would attend to the padding."]
    return []


def _padding_problem(signature: LogitsSignature) -> str:
    """Reason why the model does not support --pad_to_multiple_of; empty if it does."""
    if signature.encoder_decoder:
        if signature.length is None and not signature.takes("attention_mask"):
            return "without attention_mask its prompts can't be padded"
        if signature.target_length is None and not signature.pads:
            return "it returns the logits of its decoder's last position alone, which would be padding"
    elif signature.length is None and not signature.pads:
        needed = "attention_mask" if signature.all_positions else "attention_mask and position_ids"
        return f"without {needed} its texts can't be padded"
    return ""
