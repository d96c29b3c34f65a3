"""The predictive tasks, and the choice of one.

A new one is a file here and a line in TASKS; generation/task.py has those that generate.
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

TASKS: Sequence[tuple[type[Servable], str]] = (
    (FillMask, "ForMaskedLM"),
    (FillMask, "FlaubertWithLMHeadModel"),
    (FillMask, "XLMWithLMHeadModel"),
    (QuestionAnswering, "ForQuestionAnswering"),
    (QuestionAnswering, "ForQuestionAnsweringSimple"),
    (TokenClassification, "ForTokenClassification"),
    (SequenceClassification, "ForSequenceClassification"),
    (ZeroShotClassification, ""),
    (Rerank, ""),
    (FeatureExtraction, ""),
    # Last: every bare encoder is called so, and some models with a head are too.
    (TextEmbedding, "Model"),
)
"""Each task, and the end of its architectures' names in config.json; empty for one that only --task chooses. The first
line that fits counts. tests/models/test_architectures.py compares them with transformers' own mappings."""
OTHER_SENSES = re.compile(
    r"(Blip|Vilt|Tapas|LayoutLM)ForQuestionAnswering$"
    r"|(Data2VecAudio|Hubert|SEWD?|UniSpeech(Sat)?|Wav2Vec2\w*|WavLM)For"
    r"|(Canary|CohereAsr|Dia|KyutaiSpeechToText|Moonshine(Streaming)?|PI0|Pop2Piano|Qwen\w+Omni(Moe)?|Speech2Text)For"
    r"|(Vision|Speech)EncoderDecoderModel$|VisionModel$|AudioModel$"
)
"""Architectures that read pictures, sound or tables, by their names."""
OTHER_INPUTS = frozenset(
    {
        *("vision_config", "audio_config", "speech_config", "image_size", "patch_size", "num_mel_bins", "num_channels"),
        *("image_token_id", "image_token_index", "audio_token_id", "video_token_id", "feat_extract_norm", "vision"),
    }
)
"""Fields of config.json that only models have which read pictures or sound."""


def find_task(
    name: str | None, model_config: Mapping[str, Any], tasks: Sequence[tuple[type[Servable], str]]
) -> type[Servable]:
    """The task that --task names, else the one of the model's architecture.

    Args:
        name: underscored or hyphenated, None if not given.
        model_config: config.json.
        tasks: those to choose from, in the form of TASKS; the service passes ALL_TASKS of generation/task.py.

    Raises:
        ConfigError: --task names one that can't be served; the message names those that can.
        LoadError: config.json names none that can.
    """
    known = ", ".join(dict.fromkeys(task.name for task, _ in tasks))
    if name is not None:
        wanted = name.strip().lower().replace("-", "_")
        for task, _ in tasks:
            if wanted in (task.name, *task.other_names):
                return task
        raise ConfigError(f"--task={name}: can't be served, expected one of {known}")
    architectures = [str(one) for one in model_config.get("architectures") or ()]
    for architecture in architectures:
        # The text part of such a model is a task of its own where a ForCausalLM has its name.
        other = OTHER_SENSES.search(architecture) or not OTHER_INPUTS.isdisjoint(model_config)
        if other and not architecture.endswith("ForCausalLM"):
            raise LoadError(
                f"the architecture {architecture} reads more than text (pictures, sound or tables), which no task "
                f"does; for its text part alone set --task to one of {known}"
            )
        for task, suffix in tasks:
            if suffix and architecture.endswith(suffix):
                return task
    if not architectures:
        found = "config.json names no architectures" if model_config else "there is no config.json, or nothing in it"
        raise LoadError(f"{found}, so the task can't be told; set --task to one of {known}")
    shown = ", ".join(architectures)
    raise LoadError(f"the architecture {shown} stands for no task that can be served; set --task to one of {known}")
