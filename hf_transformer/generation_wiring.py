"""The wiring of a model that generates text: from its configuration and what the predictor says of it to a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from hf_transformer.config.options import Config
from hf_transformer.core.contract import ContractError
from hf_transformer.core.limits import Limits
from hf_transformer.core.scheduler import ConcurrencyLimit, SchedulerSettings
from hf_transformer.generation.base import Generator, GeneratorSettings
from hf_transformer.generation.cache_budget import CacheBudget
from hf_transformer.generation.kinds import make_generator
from hf_transformer.generation.model_inputs import FIELDS
from hf_transformer.generation.parts import GenerationParts
from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.observability.metrics import Metrics
from hf_transformer.pair import Diagnose, Pair
from hf_transformer.predictor.base import Predictor
from hf_transformer.tasks.text_generation import TextGeneration
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Context, ModelSpec, TextInput


def generation_builder(
    config: Config,
    task: TextGeneration,
    tokenizer: Tokenizer,
    parts: GenerationParts,
    predictor: Predictor,
    metrics: Metrics,
    executor: Executor,
    *,
    limits: Limits,
    scheduling: Callable[[int], SchedulerSettings],
    log_texts: Callable[[Sequence[TextInput], Context], None] | None,
    diagnose: Diagnose,
) -> Callable[[ModelSpec], GenerationPipeline]:
    """A function that fits everything to the model that the predictor describes; it raises ContractError.

    Args:
        scheduling: how much goes to the predictor at a time, for a model with so many instances.
    """

    settings_for = _settings(config, tokenizer, parts)

    def build(spec: ModelSpec) -> GenerationPipeline:
        settings = settings_for(scheduling=scheduling(spec.instances))
        generator = make_generator(spec, predictor, tokenizer, settings, executor=executor, metrics=metrics)
        if problems := _sampling_problems(config, task, generator):
            raise ContractError(spec.name, problems)
        diagnose(Pair(config, tokenizer, task, spec))
        return GenerationPipeline(
            task,
            tokenizer,
            generator,
            settings,
            executor=executor,
            limits=limits,
            metrics=metrics,
            timeout=config.predictor_request_timeout_seconds,
            log_texts=log_texts,
        )

    return build


def _settings(config: Config, tokenizer: Tokenizer, parts: GenerationParts) -> Callable[..., GeneratorSettings]:
    """All but ``scheduling``. One generator after the other is made from them, and those share what is the predictor's:
    texts under way keep the pipeline that they have when it is built anew."""
    return partial(
        GeneratorSettings,
        model_config=parts.model_config,
        eos_ids=parts.eos_ids,
        pad_id=parts.pad_id,
        decoder_start_ids=parts.decoder_start_ids,
        max_length=tokenizer.max_length,
        interface=config.generation_interface,
        input_names=config.tensor_input_names,
        output_names=config.tensor_output_names,
        pad_to_multiple_of=config.pad_to_multiple_of,
        places=ConcurrencyLimit(0),
        caches=CacheBudget(config.max_cache_bytes),
    )


def _sampling_problems(config: Config, task: TextGeneration, generator: Generator) -> list[str]:
    """A sentence for each of the service's own defaults of sampling that this model can't be told: with --do_sample
    each request that leaves it out would be refused, and not by its client's fault. OpenAI's API has its own."""
    if not config.do_sample:
        return []
    drawn = task.options({"do_sample": True}).sampling
    problems = []
    for flag, neutral in (("temperature", 1), ("top_k", 0), ("top_p", 1)):
        if flag in drawn.names and flag not in generator.honours:
            inputs = " or ".join(FIELDS[flag])
            problems.append(
                f"--do_sample=true with --{flag}={getattr(config, flag):g}: this model is a {generator.kind} model "
                f"without an input {inputs}, so it can't be told; set --do_sample=false, or --{flag}={neutral}."
            )
    return problems
