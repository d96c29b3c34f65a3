"""Which kind of generative model the predictor has, by the model's own tensors, and the generator that goes with it.

tokens  input_ids, request_output_len -> output_ids     tensorrtllm_backend, and what is like it
text    text_input -> text_output, or text              vllm_backend, tensorrtllm_backend's ensemble, the tutorial's
logits  input_ids -> logits                             an exported model: the service chooses the tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Literal

from hf_transformer.core.contract import ContractError
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.logits_model import make_logits_generator
from hf_transformer.generation.text_model import TEXT_INPUT, TEXT_OUTPUTS, TextGenerator
from hf_transformer.generation.token_model import IDS, OUTPUT, TokenGenerator
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import FLOATS
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import ModelSpec, TensorSpec

Kind = Literal["tokens", "text", "logits"]


def choose_kind(spec: ModelSpec, settings: GeneratorSettings) -> Kind:
    """The kind of a model: what --generation_interface says, else what its tensors show.

    Raises:
        ContractError: they show none of the three.
    """
    if settings.interface != "auto":
        return settings.interface
    inputs, outputs = {one.name for one in spec.inputs}, {one.name for one in spec.outputs}
    if IDS in inputs and OUTPUT in outputs:
        return "tokens"
    if _is_text(spec, settings, inputs, outputs):
        return "text"
    if any(one.datatype in FLOATS for one in spec.outputs) and any(one.datatype != "BYTES" for one in spec.inputs):
        return "logits"
    raise ContractError(
        spec.name,
        [
            f"Its inputs {_listed(spec.inputs)} and outputs {_listed(spec.outputs)} are of no kind of generative model:"
            f" tokens ({IDS}, request_output_len -> {OUTPUT}), text ({TEXT_INPUT} -> {' or '.join(TEXT_OUTPUTS)}) or "
            "logits (input_ids -> logits). Name them so in config.pbtxt, or set --tensor_input_names and "
            "--tensor_output_names, and --generation_interface."
        ],
    )


def _is_text(spec: ModelSpec, settings: GeneratorSettings, inputs: set[str], outputs: set[str]) -> bool:
    """Whether text goes in and comes out, under the usual names or those of the flags."""
    texts_in = {one.name for one in spec.inputs if one.datatype == "BYTES"}
    texts_out = {one.name for one in spec.outputs if one.datatype == "BYTES"}
    named_in = settings.input_names[:1] or (TEXT_INPUT,)
    named_out = settings.output_names[:1] or TEXT_OUTPUTS
    return not texts_in.isdisjoint(named_in) and not texts_out.isdisjoint(named_out)


def make_generator(
    spec: ModelSpec,
    predictor: Predictor,
    tokenizer: Tokenizer,
    settings: GeneratorSettings,
    *,
    executor: Executor,
    metrics: Metrics,
) -> Generator:
    """What drives the model.

    Args:
        spec: what the predictor says of it.
        tokenizer: the service's own.
        executor: has the threads for what would block the event loop.

    Raises:
        ContractError: it is of no kind, or has not what its kind or a flag needs.
    """
    kind = choose_kind(spec, settings)
    if kind != "logits" and settings.pad_to_multiple_of > 1:
        raise ContractError(
            spec.name,
            [
                f"--pad_to_multiple_of={settings.pad_to_multiple_of}: a model of {kind} gets each prompt as it is and "
                "makes its batches itself; expected 1, or a model that gives logits."
            ],
        )
    match kind:
        case "tokens":
            return TokenGenerator(spec, predictor, settings)
        case "text":
            return TextGenerator(spec, predictor, tokenizer, settings, executor=executor)
        case "logits":
            return make_logits_generator(spec, predictor, tokenizer, settings, executor=executor, metrics=metrics)


def _listed(tensors: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{tensor.name} ({tensor.datatype})" for tensor in tensors) or "none"
