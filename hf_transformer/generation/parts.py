"""What a model that generates text needs of its files beside tokenizer and task: the ids that begin and end a text, and
the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_transformer.errors import LoadError
from hf_transformer.generation.chat import ChatTemplate, load_chat_template
from hf_transformer.tokenizer.files import ModelFiles, read_json
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types import Json


@dataclass(frozen=True, slots=True)
class GenerationParts:
    """See GeneratorSettings for the ids. ``chat_template`` is None for a model that has none."""

    model_config: Mapping[str, Any]
    eos_ids: frozenset[int]
    pad_id: int
    decoder_start_ids: tuple[int, ...]
    chat_template: ChatTemplate | None


def load_generation_parts(files: ModelFiles, tokenizer: Tokenizer, chat_template: str | None) -> GenerationParts:
    """Reads generation_config.json where there is one, as transformers does, else config.json.

    Of generation_config.json the ids count alone: how texts are sampled is up to requests and to the service's flags.

    Args:
        chat_template: --chat_template.

    Raises:
        LoadError: an id is none, or an encoder-decoder has none that its decoder could begin with.
    """
    own = read_json(files.model_folder / "generation_config.json", required=False)
    given = _Ids({**{name: files.config.get(name) for name in _NAMES}, **{k: v for k, v in own.items() if k in _NAMES}})
    pad = given.padding()
    return GenerationParts(
        model_config=files.config,
        eos_ids=frozenset(given.some("eos_token_id")),
        pad_id=tokenizer.pad_id if pad is None else pad,
        decoder_start_ids=_decoder_start(given) if files.config.get("is_encoder_decoder") else (),
        chat_template=load_chat_template(files.tokenizer_folder, chat_template, tokenizer.special_tokens),
    )


MOST_IDS = 2**31
"""Ids that there may be: tokenizers and models have 32 bits for them."""
_NAMES = ("eos_token_id", "pad_token_id", "decoder_start_token_id", "bos_token_id", "forced_bos_token_id")


class _Ids:
    """Typed access to the ids in a configuration."""

    def __init__(self, values: Mapping[str, Json]) -> None:
        self._values = values

    def some(self, name: str) -> list[int]:
        """One id or a list of some; none where there is nothing. Raises LoadError."""
        value = self._values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(one) is int and 0 <= one < MOST_IDS for one in ids):
            raise LoadError(f"{name} in generation_config.json or config.json: expected token ids, got {value!r:.100}")
        return ids

    def one(self, name: str) -> int | None:
        """The first id. Raises LoadError."""
        return next(iter(self.some(name)), None)

    def padding(self) -> int | None:
        """The id of padding, which is -1 in the configurations of the first LLaMAs, for none. Raises LoadError."""
        return None if self._values.get("pad_token_id") == -1 else self.one("pad_token_id")


def _decoder_start(given: _Ids) -> tuple[int, ...]:
    """What a decoder begins with: its start token, and the token that is forced to come first (a language, in mBART and
    NLLB). Source: transformers, GenerationMixin._prepare_decoder_input_ids_for_generation and
    ForcedBOSTokenLogitsProcessor."""
    start = given.one("decoder_start_token_id")
    start = given.one("bos_token_id") if start is None else start
    if start is None:
        raise LoadError("config.json has no decoder_start_token_id, which an encoder-decoder begins its answers with")
    return (start, *given.some("forced_bos_token_id")[:1])
