"""How many tokens a model can take."""

from __future__ import annotations

from collections.abc import Mapping

from hf_transformer.errors import LoadError
from hf_transformer.types import Json

DEFAULT_MAX_LENGTH = 512
"""Where neither the tokenizer nor the model names a limit: that of BERT and of most encoders."""

NO_LIMIT = 10**12
"""Larger values mean no limit: transformers writes int(1e30) for it."""

LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Names that config.json has for the longest sequence; the smallest counts."""

OFFSET_POSITIONS = frozenset(
    "altclip bridgetower camembert clap data2vec-text ibert layoutlmv3 lilt longformer luke markuplm mpnet roberta"
    " roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod".split()
)
"""Model types whose position numbers begin at padding_idx + 1, so that many rows of the position table stay unused.

Source: create_position_ids_from_input_ids in transformers' modeling_roberta.py and its relatives.
"""


def choose_max_length(asked: int | None, tokenizer_limit: int | None, config: Mapping[str, Json]) -> int:
    """The length to truncate to: ``asked`` (--max_model_len), else the smaller of the two limits, else 512.

    Raises LoadError if more is asked for than the model can take.
    """
    limit = model_limit(config)
    if asked is not None:
        if limit is not None and asked > limit:
            raise LoadError(
                f"--max_model_len={asked} is more than the {limit} tokens that config.json lets the model take"
            )
        return asked
    return min((length for length in (_length(tokenizer_limit), limit) if length), default=DEFAULT_MAX_LENGTH)


def model_limit(config: Mapping[str, Json]) -> int | None:
    """The longest sequence, special tokens included, that config.json allows; None where it names none."""
    text = config.get("text_config")
    lengths = [_length(config.get(key)) for key in LENGTH_KEYS]
    found = min((length for length in lengths if length), default=None)
    if found is None:
        return model_limit(text) if isinstance(text, Mapping) else None
    if config.get("model_type") in OFFSET_POSITIONS:
        # MPNet's padding_idx is 1 whatever its config says; the others' is pad_token_id, 1 by default.
        padding = 1 if config["model_type"] == "mpnet" else config.get("pad_token_id", 1)
        found -= (padding if isinstance(padding, int) else 1) + 1
    return _stretched(found, config.get("rope_scaling") or config.get("rope_parameters"))


def _length(value: Json) -> int | None:
    """A usable limit, or None: -1 and the like mean none, as do transformers' very large numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < NO_LIMIT:
        return None
    return int(value)


def _stretched(length: int, scaling: Json) -> int:
    """Rotary positions can be stretched by a factor, as rope_scaling says (linear, dynamic, yarn)."""
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    if kind == "yarn":
        length = _length(scaling.get("original_max_position_embeddings")) or length
    factor = scaling.get("factor") if kind in ("linear", "dynamic", "yarn") else None
    return int(length * factor) if isinstance(factor, int | float) and factor > 1 else length
