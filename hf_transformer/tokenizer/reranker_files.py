"""Reader of a model folder's files about reranking with a causal model or a template.

modules.json                    LogitScore follows the model (sentence-transformers 6)
<folder of LogitScore>/config.json      true_token_id, false_token_id
sentence_bert_config.json       modality_config, processing_kwargs.chat_template
config.json                     classifier_from_token (vLLM), architectures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import SentenceTransformers
from hf_transformer.tasks.pair_template import ARCHITECTURES, PRESETS, PairTemplate, Reranker
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.sentence_transformers import LOGIT_SCORE, SETTINGS, read_modules, read_transformer
from hf_transformer.types.request import Json

CAUSAL = ("ForCausalLM", "LMHeadModel")
"""Endings of causal architectures in config.json."""
NOT_FOR_TEMPLATES = ("restore_suffix", "max_length", "truncation", "padding")
"""Arguments of sentence-transformers' chat templates that don't reach the template. A suffix is always kept."""


def is_causal(config: Mapping[str, Json]) -> bool:
    """Whether config.json names a causal model."""
    return any(str(name).endswith(CAUSAL) for name in config.get("architectures") or ())


def implied_task(folder: Path, config: Mapping[str, Json], sentences: SentenceTransformers | None) -> str | None:
    """The task that a folder's files imply, whatever the architecture in config.json. Raises LoadError for an invalid
    file.

    The config.json of a sentence-transformers model has the base model, as MPNetForMaskedLM in all-mpnet-base-v2.
    """
    if is_causal(config) and ("classifier_from_token" in config or _logit_score(folder) is not None):
        return Rerank.name
    return TextEmbedding.name if sentences else None


def score_tokens(folder: Path, config: Mapping[str, Json]) -> tuple[int | str, ...]:
    """The tokens of a causal reranker: those in its files, of its architecture, or no and yes as in
    sentence-transformers. Raises LoadError for an invalid file."""
    return _tokens(folder, config) or _preset(config).tokens or ("no", "yes")


def read_reranker(
    folder: Path,
    config: Mapping[str, Json],
    own_template: Callable[[Mapping[str, Json]], PairTemplate | None],
    *,
    template: str = "auto",
    tokens: tuple[str, ...] = (),
) -> Reranker:
    """Reads a reranker's template and tokens.

    Args:
        own_template: reads the chat template of --rerank_template or of the folder, with the variables in its files;
            None without a template for pairs.
        template, tokens: --rerank_template and --rerank_tokens.

    Raises:
        LoadError: a file is invalid, or the template of a causal model is unknown.
    """
    preset = PRESETS.get(template) or _preset(config)
    chosen = None if template == "none" else preset.template
    if template not in ("none", *PRESETS):
        transformer = read_transformer(folder)
        calls, modalities = transformer.get("processing_kwargs"), transformer.get("modality_config")
        variables = calls.get("chat_template") if isinstance(calls, dict) else None
        if template != "auto" or not isinstance(modalities, dict) or "message" in modalities:
            arguments = {key: value for key, value in (variables or {}).items() if key not in NOT_FOR_TEMPLATES}
            chosen = own_template(arguments) or chosen
    if not is_causal(config):
        return Reranker(template=chosen)
    if chosen is None and template != "none":
        raise LoadError(f"{config['architectures'][0]}: its template as a reranker is unknown; set --rerank_template")
    return Reranker(
        template=chosen, tokens=tokens or (preset.tokens if template in PRESETS else score_tokens(folder, config))
    )


def _preset(config: Mapping[str, Json]) -> Reranker:
    """The preset of the architecture in config.json; an empty one for others."""
    names = (ARCHITECTURES.get(str(name)) for name in config.get("architectures") or ())
    return next((PRESETS[name] for name in names if name), Reranker())


def _tokens(folder: Path, config: Mapping[str, Json]) -> tuple[int | str, ...]:
    """The tokens in the folder's files; empty if they name none."""
    score = _logit_score(folder)
    if score is not None:
        ids = (score.get("false_token_id"), score.get("true_token_id"))
        if not isinstance(ids[1], int):
            raise LoadError(f"{LOGIT_SCORE} has no true_token_id")
        return tuple(number for number in ids if isinstance(number, int))
    named = config.get("classifier_from_token") or ()
    return tuple(map(str, named))


def _logit_score(folder: Path) -> Mapping[str, Json] | None:
    """The config of the module LogitScore; None without it."""
    path = folder / "modules.json"
    if not path.is_file() or read_json(folder / SETTINGS, required=False).get("model_type") != "CrossEncoder":
        return None
    inner = dict(read_modules(path)).get(LOGIT_SCORE)
    return None if inner is None else read_json(folder / inner / "config.json", required=True)
