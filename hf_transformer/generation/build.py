"""Construction of a generator from the model's files and the predictor's description of the model.

interface  tensors                                      models
tokens     input_ids, request_output_len -> output_ids  tensorrtllm_backend, and models with the same tensors
text       text_input -> text_output, or text           vllm_backend, tensorrtllm_backend's ensemble, Triton's tutorial
logits     input_ids -> logits                          exported models; the service samples the tokens
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Literal

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import LoadError
from hf_transformer.generation.detokenizer import Vocabulary
from hf_transformer.generation.grammars import IS_INSTALLED
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.masks import GrammarCompiler, Sandbox, extra_hint
from hf_transformer.generation.text import TEXT_INPUT, TEXT_OUTPUTS, TextGenerator
from hf_transformer.generation.tokens import IDS, OUTPUT, TokenGenerator
from hf_transformer.generation.types import Generator, GeneratorSettings
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import FLOATS
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec

logger = logging.getLogger(__name__)

_ID_FIELDS = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "bos_token_id", "forced_bos_token_id")


def generator_settings(files: ModelFiles, tokenizer: Tokenizer, **flags: Any) -> GeneratorSettings:
    """Reads the token ids from generation_config.json, else from config.json, as transformers does.

    Ignores the sampling defaults of generation_config.json: requests and the service's flags set sampling parameters.
    ``flags`` are the remaining fields of GeneratorSettings. Raises LoadError for an invalid id, and for an
    encoder-decoder without a start token.
    """
    generation_config = read_json(files.model_folder / "generation_config.json", required=False)
    fields = {name: (generation_config if name in generation_config else files.config).get(name) for name in _ID_FIELDS}
    # The first LLaMA models set -1 to mean no padding token.
    pad_ids = [] if fields["pad_token_id"] == -1 else _token_ids(fields, "pad_token_id")
    return GeneratorSettings(
        model_config=files.config,
        eos_ids=frozenset(_token_ids(fields, "eos_token_id")),
        pad_id=pad_ids[0] if pad_ids else tokenizer.pad_id,
        decoder_start_ids=_decoder_start(fields) if files.config.get("is_encoder_decoder") else (),
        max_length=tokenizer.max_length,
        **flags,
    )


def _token_ids(fields: Mapping[str, Json], name: str) -> list[int]:
    """Reads a field that is one id, a list of ids, or absent. Raises LoadError."""
    value = fields[name]
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int and 0 <= token < 2**31 for token in ids):  # tokenizers and models use 32-bit ids
        raise LoadError(f"{name} in generation_config.json or config.json: expected token ids, got {value!r:.100}")
    return ids


def _decoder_start(fields: Mapping[str, Json]) -> tuple[int, ...]:
    """First tokens of a decoder: the start token, and the forced first token (a language, in mBART and NLLB).

    Source: transformers, GenerationMixin._prepare_decoder_input_ids_for_generation and
    ForcedBOSTokenLogitsProcessor.
    """
    start = _token_ids(fields, "decoder_start_token_id")[:1] or _token_ids(fields, "bos_token_id")[:1]
    if not start:
        raise LoadError("config.json has no decoder_start_token_id, the first token of an encoder-decoder's answers")
    return (*start, *_token_ids(fields, "forced_bos_token_id")[:1])


def choose_interface(spec: ModelSpec, settings: GeneratorSettings) -> Literal["tokens", "text", "logits"]:
    """Interface of a model: --generation_interface, else the interface that matches its tensors.

    Raises ContractError if no interface matches.
    """
    if settings.interface != "auto":
        return settings.interface
    inputs, outputs = {tensor.name for tensor in spec.inputs}, {tensor.name for tensor in spec.outputs}
    if IDS in inputs and OUTPUT in outputs:
        return "tokens"
    text_inputs = {tensor.name for tensor in spec.inputs if tensor.datatype == "BYTES"}
    text_outputs = {tensor.name for tensor in spec.outputs if tensor.datatype == "BYTES"}
    input_names, output_names = settings.input_names[:1] or (TEXT_INPUT,), settings.output_names[:1] or TEXT_OUTPUTS
    if not text_inputs.isdisjoint(input_names) and not text_outputs.isdisjoint(output_names):
        return "text"
    if any(tensor.datatype in FLOATS for tensor in spec.outputs) and len(text_inputs) < len(spec.inputs):
        return "logits"
    described = [
        ", ".join(f"{tensor.name} ({tensor.datatype})" for tensor in tensors) or "none"
        for tensors in (spec.inputs, spec.outputs)
    ]
    problem = (
        f"Its inputs {described[0]} and outputs {described[1]} fit no interface of generative models:"
        f" tokens ({IDS}, request_output_len -> {OUTPUT}), text ({TEXT_INPUT} -> {' or '.join(TEXT_OUTPUTS)}) or "
        "logits (input_ids -> logits). Rename them in config.pbtxt, or set --tensor_input_names and "
        "--tensor_output_names, and --generation_interface."
    )
    raise ContractError(spec.name, [problem])


def make_generator(
    spec: ModelSpec,
    predictor: Predictor,
    tokenizer: Tokenizer,
    settings: GeneratorSettings,
    *,
    executor: Executor,
    metrics: ModelMetrics,
    sandbox: Sandbox | None = None,
) -> Generator:
    """Builds the generator of a model; ``executor`` runs CPU-bound work outside the event loop,
    ``sandbox`` bounds work with constraints.

    Raises ContractError if the model matches no interface, or lacks a tensor that its interface or a flag requires.
    """
    interface = choose_interface(spec, settings)
    if interface == "logits":
        grammars = None
        if IS_INSTALLED:
            sandbox = sandbox or Sandbox()
            sandbox.children.warm_up()
            grammars = GrammarCompiler(Vocabulary(tokenizer), sandbox)
        else:
            logger.info("%s: requests can't hold a text to a form: %s", spec.name, extra_hint())
        return LogitsGenerator(
            spec, predictor, tokenizer, settings, executor=executor, metrics=metrics, grammars=grammars
        )
    if settings.pad_to_multiple_of > 1:
        problem = (
            f"--pad_to_multiple_of={settings.pad_to_multiple_of}: a {interface} model takes unpadded prompts and "
            "batches them itself; expected 1, or a logits model."
        )
        raise ContractError(spec.name, [problem])
    if interface == "tokens":
        return TokenGenerator(spec, predictor, settings)
    return TextGenerator(spec, predictor, tokenizer, settings, executor=executor)
