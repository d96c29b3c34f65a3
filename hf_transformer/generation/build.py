"""From a model's files and the predictor's description of it to a generator.

tokens  input_ids, request_output_len -> output_ids     tensorrtllm_backend, and models with its interface
text    text_input -> text_output, or text              vllm_backend, tensorrtllm_backend's ensemble, the tutorial's
logits  input_ids -> logits                             an exported model: the service chooses the tokens
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, Literal

from hf_transformer.core.contract import ContractError
from hf_transformer.errors import LoadError
from hf_transformer.generation.logits import LogitsGenerator
from hf_transformer.generation.text import TEXT_INPUT, TEXT_OUTPUTS, TextGenerator
from hf_transformer.generation.tokens import IDS, OUTPUT, TokenGenerator
from hf_transformer.generation.types import Generator, GeneratorSettings
from hf_transformer.observability.metrics import Metrics
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.base import FLOATS
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.model_files import ModelFiles
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec

_NAMES = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "bos_token_id", "forced_bos_token_id")


def generator_settings(files: ModelFiles, tokenizer: Tokenizer, **flags: Any) -> GeneratorSettings:
    """Reads the ids in generation_config.json, as transformers does, else in config.json. Nothing else in it counts:
    sampling is up to requests and the service's flags. ``flags`` are the other fields of GeneratorSettings. Raises
    LoadError for an id that is not valid, and for an encoder-decoder that has none to begin with."""
    own = read_json(files.model_folder / "generation_config.json", required=False)
    given = {name: own[name] if name in own else files.config.get(name) for name in _NAMES}
    pad = [] if given["pad_token_id"] == -1 else _ids(given, "pad_token_id")  # -1 is none in the first LLaMAs
    return GeneratorSettings(
        model_config=files.config,
        eos_ids=frozenset(_ids(given, "eos_token_id")),
        pad_id=pad[0] if pad else tokenizer.pad_id,
        decoder_start_ids=_decoder_start(given) if files.config.get("is_encoder_decoder") else (),
        max_length=tokenizer.max_length,
        **flags,
    )


def _ids(given: Mapping[str, Json], name: str) -> list[int]:
    """The ids of a field that is one id, a list, or absent. Raises LoadError."""
    value = given[name]
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) is int and 0 <= one < 2**31 for one in ids):  # tokenizers and models have 32 bits for them
        raise LoadError(f"{name} in generation_config.json or config.json: expected token ids, got {value!r:.100}")
    return ids


def _decoder_start(given: Mapping[str, Json]) -> tuple[int, ...]:
    """The first tokens of a decoder: its start token, and the token that is forced to come first (a language, in mBART
    and NLLB). Source: transformers, GenerationMixin._prepare_decoder_input_ids_for_generation and
    ForcedBOSTokenLogitsProcessor."""
    start = _ids(given, "decoder_start_token_id")[:1] or _ids(given, "bos_token_id")[:1]
    if not start:
        raise LoadError("config.json has no decoder_start_token_id, which an encoder-decoder begins its answers with")
    return (*start, *_ids(given, "forced_bos_token_id")[:1])


def choose_interface(spec: ModelSpec, settings: GeneratorSettings) -> Literal["tokens", "text", "logits"]:
    """The kind of a model: --generation_interface, else by its tensors. Raises ContractError for no kind."""
    if settings.interface != "auto":
        return settings.interface
    inputs, outputs = {one.name for one in spec.inputs}, {one.name for one in spec.outputs}
    if IDS in inputs and OUTPUT in outputs:
        return "tokens"
    texts_in = {one.name for one in spec.inputs if one.datatype == "BYTES"}
    texts_out = {one.name for one in spec.outputs if one.datatype == "BYTES"}
    named_in, named_out = settings.input_names[:1] or (TEXT_INPUT,), settings.output_names[:1] or TEXT_OUTPUTS
    if not texts_in.isdisjoint(named_in) and not texts_out.isdisjoint(named_out):
        return "text"
    if any(one.datatype in FLOATS for one in spec.outputs) and any(one.datatype != "BYTES" for one in spec.inputs):
        return "logits"
    shown = [
        ", ".join(f"{one.name} ({one.datatype})" for one in side) or "none" for side in (spec.inputs, spec.outputs)
    ]
    raise ContractError(
        spec.name,
        [
            f"Its inputs {shown[0]} and outputs {shown[1]} are of no kind of generative model:"
            f" tokens ({IDS}, request_output_len -> {OUTPUT}), text ({TEXT_INPUT} -> {' or '.join(TEXT_OUTPUTS)}) or "
            "logits (input_ids -> logits). Name them so in config.pbtxt, or set --tensor_input_names and "
            "--tensor_output_names, and --generation_interface."
        ],
    )


def make_generator(
    spec: ModelSpec,
    predictor: Predictor,
    tokenizer: Tokenizer,
    settings: GeneratorSettings,
    *,
    executor: Executor,
    metrics: Metrics,
) -> Generator:
    """The generator of a model that the predictor describes by ``spec``. Its long work runs in ``executor``. Raises
    ContractError if the model is of no kind, or lacks something that its kind or a flag needs."""
    interface = choose_interface(spec, settings)
    if interface == "logits":
        return LogitsGenerator(spec, predictor, tokenizer, settings, executor=executor, metrics=metrics)
    if settings.pad_to_multiple_of > 1:
        raise ContractError(
            spec.name,
            [
                f"--pad_to_multiple_of={settings.pad_to_multiple_of}: a model of {interface} gets each prompt as it is "
                "and makes its batches itself; expected 1, or a model that gives logits."
            ],
        )
    if interface == "tokens":
        return TokenGenerator(spec, predictor, settings)
    return TextGenerator(spec, predictor, tokenizer, settings, executor=executor)
