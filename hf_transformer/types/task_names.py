"""Names of tasks, apart from the tasks: scripts/demo checks flags without any library."""

from __future__ import annotations

from hf_transformer.errors import ConfigError, nearest

TASK_NAMES: dict[str, tuple[str, ...]] = {
    "fill_mask": (),
    "sequence_classification": ("text_classification", "sentiment_analysis"),
    "zero_shot_classification": (),
    "rerank": ("text_ranking",),
    "token_classification": ("ner",),
    "zero_shot_token_classification": ("gliner",),
    "question_answering": (),
    "text_embedding": ("sentence_similarity", "sentence_embedding", "embedding"),
    "feature_extraction": (),
    "text_generation": ("causal_lm", "text_completion"),
    "text2text_generation": ("summarization", "translation"),
}
"""The underscored name of each task, with alternative names, from Hugging Face pipelines."""


def task_name(text: str, *more: str) -> str:
    """The name of the task that ``text`` names, underscored or hyphenated, or one of ``more``.

    Raises ConfigError for another name.
    """
    tasks = TASK_NAMES | dict.fromkeys(more, ())
    names = {other: name for name, others in tasks.items() for other in (name, *others)}
    wanted = text.strip().lower().replace("-", "_")
    if wanted not in names:
        suggestion = nearest(wanted, {name: name for name in names})
        raise ConfigError(f"expected one of {', '.join(tasks)}, got {text[:100]!r}{suggestion}")
    return names[wanted]
