"""The task of an architecture against transformers' own mappings, of every architecture that it has."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import pytest
from transformers.models.auto import configuration_auto, modeling_auto

from hf_transformer.errors import LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task

TEXT = {
    "MASKED_LM": "fill_mask",
    "SEQUENCE_CLASSIFICATION": "sequence_classification",
    "TOKEN_CLASSIFICATION": "token_classification",
    "QUESTION_ANSWERING": "question_answering",
    "CAUSAL_LM": "text_generation",
    "SEQ_TO_SEQ_CAUSAL_LM": "text2text_generation",
    "TEXT_ENCODING": "text_embedding",
}
"""Transformers' mappings of text models, and the task of each."""
OTHER = (
    *("AUDIO_CLASSIFICATION", "CTC", "DOCUMENT_QUESTION_ANSWERING", "TABLE_QUESTION_ANSWERING"),
    *("VISUAL_QUESTION_ANSWERING", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "MULTIMODAL_LM"),
)
"""Those of models that read something else."""
TWICE = {
    *(("MASKED_LM", f"{name}ForConditionalGeneration") for name in ("Bart", "MBart", "Mvp")),
    *(("CAUSAL_LM", f"{name}WithLMHeadModel") for name in ("XLM", "Flaubert")),
}
"""Listed for another task as well, for which --task has to be set."""


def architectures(kind: str) -> list[tuple[str, str]]:
    """Model type and class of each entry of a mapping."""
    found = getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES")
    return [(key, name) for key, names in found.items() for name in ([names] if isinstance(names, str) else names)]


def config_of(model_type: str) -> dict:
    """The default config.json of a model type, {} where it can't be made without arguments."""
    try:
        return configuration_auto.CONFIG_MAPPING[model_type]().to_dict()
    except Exception:
        return {}


def task_of(model_type: str, name: str) -> str:
    try:
        return find_task(None, {**config_of(model_type), "architectures": [name]}, ALL_TASKS).name
    except LoadError as error:
        assert name in str(error) and "set --task to one of" in str(error)
        return "refused"


MULTIMODAL = {name for kind in OTHER for _, name in architectures(kind)}


@pytest.mark.parametrize(("kind", "task"), TEXT.items(), ids=TEXT)
def test_text_models_have_their_task(kind: str, task: str) -> None:
    wrong = []
    for model_type, name in architectures(kind):
        if (kind, name) not in TWICE:
            found = task_of(model_type, name)
            # Some text mappings list models that read pictures or sound beside text.
            if found != task and not (found == "refused" and (name in MULTIMODAL or config_is_multimodal(model_type))):
                wrong.append((model_type, name, found))
    assert wrong == []


def config_is_multimodal(model_type: str) -> bool:
    config = config_of(model_type)
    return any("vision" in key or "audio" in key or "image" in key or key == "patch_size" for key in config)


@pytest.mark.parametrize("kind", OTHER)
def test_models_that_read_something_else_are_refused(kind: str) -> None:
    text = {name for one in TEXT for _, name in architectures(one)}
    wrong = [
        (model_type, name, found)
        for model_type, name in architectures(kind)
        if name not in text and not name.endswith("ForCausalLM")
        if (found := task_of(model_type, name)) != "refused"
    ]
    assert wrong == []
