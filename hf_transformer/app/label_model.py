"""The model of labels of a bi-encoder: its tokenizer from the model's files, and its vectors from the predictor."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from hf_transformer.app.settings import scheduler_settings
from hf_transformer.config.options import Config
from hf_transformer.core.batch import PaddingPolicy
from hf_transformer.core.batch_rules import batch_rules
from hf_transformer.core.contract import Signature, fit_signature
from hf_transformer.core.label_vectors import VECTORS, LabelVectors
from hf_transformer.core.remote import SchedulerRecipe
from hf_transformer.core.scheduler import ConcurrencyLimit, Scheduler
from hf_transformer.errors import LoadError, describe
from hf_transformer.observability.metrics import ModelMetrics
from hf_transformer.predictor.base import Predictor, PredictorSettings
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.files import LABELS_FOLDER, LABELS_SUFFIX, has_tokenizer
from hf_transformer.tokenizer.model_files import ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import ModelSpec
from hf_transformer.types.tokenization import Encoding


@dataclass(frozen=True, slots=True)
class LoadedLabels:
    """The tokenizer of labels, and the config.json of their encoder."""

    tokenizer: Tokenizer
    encoder: Mapping[str, Json]


def load_labels(config: Config, files: ModelFiles) -> LoadedLabels:
    """Loads the tokenizer of labels: from the folder labels_tokenizer, else of the hub's model that encodes them.

    Raises LoadError if there is none, or gliner_config.json is invalid.
    """
    gliner = files.config["gliner"]
    folder, name = files.model_folder / LABELS_FOLDER, gliner["labels_encoder"]
    encoder = gliner.get("labels_encoder_config") or {}
    for field, value, kind, expected in (
        ("labels_encoder", name, str, "a model's name"),
        ("labels_encoder_config", encoder, dict, "an object"),
    ):
        if not isinstance(value, kind):
            raise LoadError(f"gliner_config.json: {field}: expected {expected}, got {describe(value)}")
    if not has_tokenizer(folder):
        try:
            encoder_files = find_model_files(
                name,
                "",
                token=config.hf_token,
                trust_remote_code=config.trust_remote_code,
                max_file_bytes=config.max_model_file_bytes,
            )
        except (LoadError, OSError) as error:  # an OSError for a name that no file can have
            reason = error.message if isinstance(error, LoadError) else error.strerror
            raise LoadError(
                f"gliner_config.json: the tokenizer of labels is not in {LABELS_FOLDER}/, and not that of the "
                f"labels_encoder {name[:200]!r}: {reason}"
            ) from error
        folder, encoder = encoder_files.tokenizer_folder, encoder or encoder_files.config
    tokenizer = load_tokenizer(
        folder,
        encoder,
        trust_remote_code=config.trust_remote_code,
        word_cache=config.enable_word_cache,
        max_file_bytes=config.max_model_file_bytes,
    )
    return LoadedLabels(tokenizer, encoder)


def label_model_name(config: Config) -> str:
    """The predictor's name of the model of labels."""
    return config.labels_model or f"{config.predictor_model or config.model_name}{LABELS_SUFFIX}"


def label_settings(config: Config, settings: PredictorSettings) -> PredictorSettings:
    """The settings of the predictor of labels, beside the ``settings`` of that of texts. Its outputs are small."""
    return replace(settings, model_name=label_model_name(config), shared_memory_bytes=0)


def label_vectors(
    config: Config, labels: LoadedLabels, predictor: Predictor, metrics: ModelMetrics, executor: ThreadPoolExecutor
) -> LabelVectors:
    """Makes the source of vectors. ``predictor`` is that of labels."""
    name = label_model_name(config)

    def build(spec: ModelSpec) -> tuple[Signature, Scheduler[Encoding]]:
        signature = fit_signature(spec, (VECTORS,), task=ZeroShotTokenClassification.name)
        rules = batch_rules(labels.encoder, None)
        pad_id = labels.tokenizer.pad_id if rules.pad_id is None else rules.pad_id
        policy = PaddingPolicy(pad_id, left=rules.left, equal_lengths=rules.equal_lengths)
        scheduling = scheduler_settings(config, spec.instances)
        made = SchedulerRecipe(name, signature, policy, scheduling, 0, spec.instances)
        return signature, made.make(predictor, executor, metrics, ConcurrencyLimit(0))

    return LabelVectors(name, predictor, labels.tokenizer, build, executor=executor, limit=config.max_label_vectors)
