"""The signature of a model that gives logits: the role of each tensor, and the limits of a batch.

Names are those of transformers and optimum: input_ids, attention_mask, position_ids; of an encoder-decoder input_ids,
attention_mask, decoder_input_ids, decoder_attention_mask; past_key_values.0.key (an encoder-decoder has .decoder or
.encoder in between) that come back as present.0.key, and use_cache_branch. Pure functions of the model's description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hf_transformer.core.contract import (
    DEFAULT_BATCH,
    POSITIONAL,
    ContractError,
    InputSignature,
    role_from_numbered_name,
)
from hf_transformer.generation.cache import CacheTensor
from hf_transformer.generation.types import GeneratorSettings
from hf_transformer.tasks.base import FLOATS, TaskTokenizer
from hf_transformer.types.tensors import NUMPY_DTYPES, ModelSpec, TensorSpec

DECODER: Final = ("input_ids", "attention_mask", "position_ids")
ENCODER_DECODER: Final = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
CACHE_BRANCH: Final = "use_cache_branch"
"""True where there is a cache, in models that optimum has merged: with and without a cache in one."""
KNOWN: Final = (*DECODER, *ENCODER_DECODER, CACHE_BRANCH)
PAST: Final = re.compile(r"past_key_values\.(\d+\.(?:(decoder|encoder)\.)?(?:key|value))")
ENCODED: Final = ("encoder_outputs", "encoder_hidden_states", "encoder_last_hidden_state")
"""Names of the encoder's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsSignature:
    """How to ask one model for the next token's logits.

    ``logits`` are [rows, S, V] with ``all_positions``, else [rows, 1, V] or [rows, V], of the last one. ``vocabulary``
    is V if the model's configuration has it, at least ``least_vocabulary``. ``length`` is the fixed number of tokens of
    its input_ids, ``target_length`` that of its decoder_input_ids; None is free. ``batch_axis`` and ``exact_rows`` are
    as in core.contract.Signature; with ``triton_batch`` Triton gives the axis to every tensor.
    """

    inputs: tuple[InputSignature, ...]
    logits: str
    datatype: str
    all_positions: bool
    vocabulary: int | None
    least_vocabulary: int
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
        return any(one.role == role for one in self.inputs)

    @property
    def pads_cache(self) -> bool:
        """Whether caches of different lengths may share a batch, since the model gets positions and a mask."""
        return self.takes("attention_mask") and self.takes("position_ids") and not self.encoder_decoder

    @property
    def left(self) -> bool:
        """Whether whole texts are padded on the left, because only the last place has logits. On the right a causal
        model does not see the padding."""
        return self.pads_cache and not self.all_positions

    @property
    def pads(self) -> bool:
        """Whether texts of different lengths may share a batch, before there is a cache."""
        return self.left or (self.all_positions and (self.encoder_decoder or self.takes("attention_mask")))


def fit_logits(spec: ModelSpec, vocabulary: TaskTokenizer, settings: GeneratorSettings) -> LogitsSignature:
    """Fits a model that gives logits to the tokenizer and the flags. Raises ContractError with every mismatch."""
    problems: list[str] = []
    if spec.decoupled:
        problems.append(
            "It is decoupled (a stream of responses), but gives logits, which are asked for one step at a time: set "
            "model_transaction_policy { decoupled: false } in config.pbtxt."
        )
    roles = _roles(spec, settings.input_names)
    shapes = {roles[tensor.name]: tensor.shape for tensor in spec.inputs if tensor.name in roles}
    encoder_decoder = "decoder_input_ids" in shapes
    if encoder_decoder and not settings.decoder_start_ids:
        problems.append(
            "It takes decoder_input_ids, but neither config.json nor generation_config.json says what they begin "
            "with: add decoder_start_token_id."
        )
    inputs = _fit_inputs(spec, roles, encoder_decoder, problems)
    ids, target = shapes.get("input_ids", ()), shapes.get("decoder_input_ids", (-1,))[-1]
    if len(ids) not in ((1,) if spec.max_batch_size else (1, 2)):
        names = ", ".join(f"{tensor.name} {list(tensor.shape)}" for tensor in spec.inputs) or "none"
        problems.append(f"Among its inputs ({names}) are no input_ids [-1] (beside max_batch_size) or [-1, -1].")
        raise ContractError(spec.name, problems)
    leading = len(ids) - 1
    logits, all_positions, size = _fit_output(spec, settings.output_names, leading, problems)
    # Some models have fewer tokens than their tokenizer, but none has fewer than config.json says.
    least, declared = vocabulary.vocab_size, settings.model_config.get("vocab_size")
    if isinstance(declared, int) and declared > 0:
        least = min(least, declared)
    if size is not None and size < least:
        problems.append(
            f"Its output {logits.name!r} has {size} tokens, the tokenizer or config.json {least}. "
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
        least_vocabulary=least,
        caches=_fit_caches(spec, leading, problems),
        encoder_decoder=encoder_decoder,
        max_rows=spec.max_batch_size or exact or (DEFAULT_BATCH if batch_axis else 1),
        exact_rows=exact,
        batch_axis=batch_axis,
        triton_batch=bool(spec.max_batch_size),
        length=ids[-1] if ids[-1] > 0 else None,
        target_length=target if target > 0 else None,
    )
    problems += _length_problems(signature)
    multiple = settings.pad_to_multiple_of
    if multiple > 1 and (why := _unpaddable(signature)):
        problems.append(f"--pad_to_multiple_of={multiple}: {why}; expected 1, or another export of the model.")
    if problems:
        raise ContractError(spec.name, problems)
    return signature


def _roles(spec: ModelSpec, wanted: Sequence[str]) -> dict[str, str]:
    """The role of each input that is sent, by its name, which may be numbered (input_ids__0); INPUT__0 and so on have
    theirs by position."""
    if (
        wanted
        and spec.inputs
        and all(POSITIONAL.match(role_from_numbered_name(tensor.name, KNOWN)) for tensor in spec.inputs)
    ):
        order = sorted(spec.inputs, key=lambda tensor: int(tensor.name.rpartition("__")[2]))
        return {tensor.name: role for tensor, role in zip(order, wanted, strict=False)}
    sent = {*wanted, CACHE_BRANCH} if wanted else {*KNOWN}
    return {
        tensor.name: role for tensor in spec.inputs if (role := role_from_numbered_name(tensor.name, KNOWN)) in sent
    }


def _fit_inputs(
    spec: ModelSpec, roles: Mapping[str, str], encoder_decoder: bool, problems: list[str]
) -> tuple[InputSignature, ...]:
    known = (*(ENCODER_DECODER if encoder_decoder else DECODER), CACHE_BRANCH)
    fitted = []
    for tensor in spec.inputs:
        role = roles.get(tensor.name)
        if role is not None and role in known:
            # In fewer than 32 bits, numpy would cut ids and positions without an error.
            flags = role in (CACHE_BRANCH, "attention_mask", "decoder_attention_mask")
            dtype = NUMPY_DTYPES.get(tensor.datatype)
            if dtype is None or dtype.kind not in ("iub" if flags else "iu") or (dtype.itemsize < 4 and not flags):
                problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as INT64 or INT32.")
            else:
                fitted.append(InputSignature(tensor.name, role, tensor.datatype))
        elif tensor.optional or PAST.fullmatch(tensor.name):
            continue
        elif tensor.name in ENCODED:
            problems.append(
                f"It requires {tensor.name!r}, which another model makes, such as the encoder that optimum exports "
                "apart: serve both as one model that takes input_ids, attention_mask and decoder_input_ids."
            )
        else:
            problems.append(
                f"It requires the input {tensor.name!r}, which is not made here; text generation makes "
                f"{', '.join(known)} and past_key_values (see --tensor_input_names)."
            )
    return tuple(fitted)


def _fit_caches(spec: ModelSpec, leading: int, problems: list[str]) -> tuple[CacheTensor, ...]:
    """The inputs that take an output of the previous step."""
    outputs = {tensor.name: tensor for tensor in spec.outputs}
    caches = []
    for tensor in spec.inputs:
        match = PAST.fullmatch(tensor.name)
        if not match:
            continue
        present, shape = f"present.{match[1]}", tensor.shape[leading:]
        if present not in outputs:
            problems.append(f"It takes {tensor.name!r}, but has no output {present!r}, which that would be.")
        elif tensor.datatype not in FLOATS or tensor.datatype not in NUMPY_DTYPES:
            problems.append(f"Its input {tensor.name!r} is {tensor.datatype}; export it as FP32 or FP16.")
        elif outputs[present].datatype != tensor.datatype:
            problems.append(f"Its output {present!r} is {outputs[present].datatype}, but {tensor.name!r} another type.")
        elif shape.count(-1) != 1 or 0 in shape:
            problems.append(
                f"Its input {tensor.name!r} has the dims {list(tensor.shape)}; set all but that of the tokens (and of "
                "the batch) to numbers in config.pbtxt: [heads, -1, head size]."
            )
        else:
            caches.append(CacheTensor(tensor.name, present, tensor.datatype, shape, source=match[2] == "encoder"))
    if caches and all(one.source for one in caches):
        problems.append(
            "It takes caches of the encoder alone: export it with those of the decoder too, or without any."
        )
    return tuple(caches)


def _fit_output(
    spec: ModelSpec, wanted: Sequence[str], leading: int, problems: list[str]
) -> tuple[TensorSpec, bool, int | None]:
    """The logits, whether they are of all positions, and the size of the vocabulary if it is known. Raises
    ContractError if it is not clear which output they are."""
    floats = [tensor for tensor in spec.outputs if tensor.datatype in FLOATS and not tensor.name.startswith("present.")]
    floats = [tensor for tensor in floats if tensor.name not in ENCODED]
    name = wanted[0] if wanted else "logits"
    found = [tensor for tensor in floats if name in (tensor.name, role_from_numbered_name(tensor.name, (name,)))]
    found = found or ([] if wanted else floats)
    if len(found) != 1 or len(found[0].shape) - leading not in (1, 2):
        shown = ", ".join(f"{tensor.name} {tensor.datatype} {list(tensor.shape)}" for tensor in spec.outputs) or "none"
        problems.append(
            f"Which of its outputs ({shown}) are the logits can't be told; they are floats with the dims [-1, "
            "vocabulary], or [1, vocabulary] or [vocabulary] for the last position alone. Set --tensor_output_names or "
            "export it so."
        )
        raise ContractError(spec.name, problems)
    shape = found[0].shape[leading:]
    return found[0], len(shape) == 2 and shape[0] != 1, shape[-1] if shape[-1] > 0 else None


def _length_problems(signature: LogitsSignature) -> list[str]:
    fixed = signature.length if signature.length is not None else signature.target_length
    if fixed is None:
        return []
    if signature.caches:
        return [f"Its input always has {fixed} tokens, but a cache grows: export it with a free sequence axis."]
    if not signature.all_positions and not signature.left:
        return [
            f"Its input always has {fixed} tokens, but it gives the logits of the last one alone: export it with a "
            "free sequence axis, or with the logits of all."
        ]
    if signature.encoder_decoder and signature.length is not None and not signature.takes("attention_mask"):
        return ["Its input_ids have a fixed length, but it takes no attention_mask: it would read the padding."]
    return []


def _unpaddable(signature: LogitsSignature) -> str:
    """Why texts without a fixed length can't be padded for --pad_to_multiple_of; empty if they can."""
    if signature.encoder_decoder:
        if signature.length is None and not signature.takes("attention_mask"):
            return "without attention_mask its prompts can't be padded"
        if signature.target_length is None and not signature.pads:
            return "it gives the logits of its decoder's last place alone, which would be padding"
    elif signature.length is None and not signature.pads:
        needed = "attention_mask" if signature.all_positions else "attention_mask and position_ids"
        return f"without {needed} its texts can't be padded"
    return ""
