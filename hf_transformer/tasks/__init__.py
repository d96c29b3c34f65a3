"""The predictive tasks, and the selection of a task.

A new task needs a module here and an entry in TASKS; generation/task.py adds the generative tasks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tasks.base import Servable
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.question_answering import QuestionAnswering
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.types.task_names import TASK_NAMES, task_name

TASKS: Sequence[tuple[type[Servable], str]] = (
    (FillMask, "ForMaskedLM"),
    (FillMask, "FlaubertWithLMHeadModel"),
    (FillMask, "XLMWithLMHeadModel"),
    (QuestionAnswering, "ForQuestionAnswering"),
    (QuestionAnswering, "ForQuestionAnsweringSimple"),
    (ZeroShotTokenClassification, "GLiNER"),
    (TokenClassification, "ForTokenClassification"),
    (SequenceClassification, "ForSequenceClassification"),
    (ZeroShotClassification, ""),
    (Rerank, ""),
    (FeatureExtraction, ""),
    # Last, since the suffix matches every bare encoder and some models with a head.
    (TextEmbedding, "Model"),
)
"""Each task with a suffix of architecture names in config.json; the first match applies. An empty suffix requires
--task. tests/models/test_architectures.py compares the suffixes with transformers' mappings."""
NON_TEXT_ARCHITECTURES = re.compile(
    r"(Blip|Vilt|Tapas|LayoutLM)ForQuestionAnswering$"
    r"|(Data2VecAudio|Hubert|SEWD?|UniSpeech(Sat)?|Wav2Vec2\w*|WavLM)For"
    r"|(Canary|CohereAsr|Dia|KyutaiSpeechToText|Moonshine(Streaming)?|PI0|Pop2Piano|Qwen\w+Omni(Moe)?|Speech2Text)For"
    r"|(Vision|Speech)EncoderDecoderModel$|VisionModel$|AudioModel$"
)
"""Names of architectures for images, audio or tables."""
NON_TEXT_FIELDS = frozenset(
    {
        *("vision_config", "audio_config", "speech_config", "image_size", "patch_size", "num_mel_bins", "num_channels"),
        *("image_token_id", "image_token_index", "audio_token_id", "video_token_id", "feat_extract_norm", "vision"),
    }
)
"""Fields of config.json that only models for images or audio have."""


def find_task(
    name: str | None, model_config: Mapping[str, Any], tasks: Sequence[tuple[type[Servable], str]]
) -> type[Servable]:
    """Selects the task by --task, or by the model's architecture.

    Args:
        name: the value of --task, underscored or hyphenated; None if the flag is absent.
        model_config: the content of config.json.
        tasks: the available tasks, in the form of TASKS.

    Raises:
        ConfigError: --task names an unknown task.
        LoadError: config.json names no known architecture.
    """
    if name is not None:
        try:
            wanted = task_name(name)
        except ConfigError as error:
            raise ConfigError(f"--task: {error}") from None
        return next(task for task, _ in tasks if task.name == wanted)
    known = ", ".join(TASK_NAMES)
    architectures = [str(architecture) for architecture in model_config.get("architectures") or ()]
    for architecture in architectures:
        # A multimodal model with the suffix ForCausalLM is supported as a text model.
        non_text = NON_TEXT_ARCHITECTURES.search(architecture) or not NON_TEXT_FIELDS.isdisjoint(model_config)
        if non_text and not architecture.endswith("ForCausalLM"):
            raise LoadError(
                f"the architecture {architecture} reads more than text (pictures, sound or tables), which no task "
                f"does; for its text part alone set --task to one of {known}"
            )
        for task, suffix in tasks:
            if suffix and architecture.endswith(suffix):
                return task
    if architectures:
        problem = f"the architecture {', '.join(architectures)} stands for no task"
    elif model_config:
        problem = "config.json names no architectures, so the task is unknown"
    else:
        problem = "there is no config.json, or it is empty, so the task is unknown"
    raise LoadError(f"{problem}; set --task to one of {known}")
