"""Finds GLiNER folders, which their own library loads, and refuses what can't be exported; without torch."""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification, check_architecture
from hf_transformer.tokenizer.files import GLINER, LABELS_SUFFIX, read_counted
from hf_transformer.tokenizer.hub import hub_snapshot
from hf_transformer.types.request import Json
from hf_transformer.types.task_names import task_name

LIBRARY = "gliner"


class EncoderFields(NamedTuple):
    """The fields of gliner_config.json with an encoder's name on the hub and, optionally, its config.json."""

    title: str
    name: str
    config: str


ENCODERS = (
    EncoderFields("its encoder", "model_name", "encoder_config"),
    EncoderFields("its encoder of labels", "labels_encoder", "labels_encoder_config"),
)


def find_gliner(settings: Namespace) -> Path | None:
    """The folder with the small files of a GLiNER model; None for another model.

    Raises ConfigError for a flag that these models can't have. Raises LoadError for an architecture that the service
    can't use, for code without --trust_remote_code, without the library, and as ``hub_snapshot`` does.
    """
    folder = _small_files(settings)
    if folder is None or not (folder / GLINER).is_file():
        return None
    task = ZeroShotTokenClassification.name
    where = f"{settings.model_id} is a GLiNER folder"
    if settings.task is not None and _named(settings.task) != task:
        raise ConfigError(f"--task={settings.task}: {where}, expected {task}")
    if settings.reduce:
        raise ConfigError(f"--reduce: {task} has no exact reduction")
    if settings.inputs:
        raise ConfigError(f"--inputs: {where}, whose model needs all of its inputs")
    if settings.format != "onnx":  # TorchScript would move the lengths of packed words to the GPU
        raise ConfigError(f"--format={settings.format}: {where}, expected onnx")
    if settings.precision != "fp32":
        reason = "ONNX Runtime has no ScatterElements that adds 16-bit values on the CPU"
        raise ConfigError(f"--precision={settings.precision}: {where}, expected fp32: {reason}")
    config = read_counted(folder / GLINER, required=True)
    check_architecture(config)
    for encoder in ENCODERS:
        require_trust(config.get(encoder.config), encoder, settings)
    if find_spec(LIBRARY) is None:
        advice = f"pip install {LIBRARY}, best in an environment of its own, since it needs an older transformers"
        raise LoadError(f"{where}, which only its own library loads: {advice}")
    return folder


def labels_target(folder: Path, target: Path) -> Path | None:
    """The folder of the model that encodes labels, beside that of texts, ``target``; None for a uni-encoder."""
    if not read_counted(folder / GLINER, required=True).get("labels_encoder"):
        return None
    return target.with_name(f"{target.name}{LABELS_SUFFIX}")


def require_trust(config: Json, encoder: EncoderFields, settings: Namespace) -> None:
    """Raises LoadError for an encoder with code of its own without --trust_remote_code: the library runs any."""
    if isinstance(config, dict) and config.get("auto_map") and not settings.trust_remote_code:
        code = "brings its own Python code (auto_map), which only --trust_remote_code allows"
        raise LoadError(f"{settings.model_id}: {encoder.title} {code}")


def _small_files(settings: Namespace) -> Path | None:
    """The local folder, or the snapshot of the hub's; None for a path without a folder."""
    folder = Path(settings.model_id)
    if folder.is_dir():
        return folder
    if settings.model_id.startswith(("/", ".", "~")):
        return None
    return hub_snapshot(
        settings.model_id,
        settings.revision or "main",
        token=settings.token,
        with_tokenizer=False,
        with_code=settings.trust_remote_code,
        cache_dir=None,
    )


def _named(task: str) -> str:
    try:
        return task_name(task)
    except ConfigError as error:
        raise ConfigError(f"--task: {error}") from None
