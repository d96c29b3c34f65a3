"""Tokenizers that transformers itself has to load: without a tokenizer.json, of a rare class, or with custom code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from hf_transformer.errors import InvalidInput, LoadError
from hf_transformer.tokenizer.engine import too_many_tokens
from hf_transformer.tokenizer.tokenizer_files import NAMED, LoadedTokenizer, without_lower_case
from hf_transformer.types import PLAIN, Cut, Encoding, TextInput, Tokenization, Words

FIRST_ALONE = Tokenization(only_first=True)
WHOLE, BARE = Tokenization(whole=True), Tokenization(whole=True, special_tokens=False)


def load_with_transformers(
    folder: Path, *, lower_case: bool, trust_remote_code: bool
) -> tuple[LoadedTokenizer | None, Any]:
    """Load a folder with AutoTokenizer: its Rust part, None if it is written in Python, and the whole.

    Raises LoadError; custom code runs only with ``trust_remote_code``."""
    try:
        import transformers
    except ImportError as exc:
        raise LoadError(
            f"the tokenizer in {folder} can only be loaded by transformers: pip install transformers, or save"
            " tokenizer.json there"
        ) from exc
    transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # the library has no types there
    options = {} if lower_case else {"do_lower_case": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder),
            trust_remote_code=trust_remote_code,
            local_files_only=not trust_remote_code,
            **options,
        )
    except Exception as exc:  # custom code and a dozen libraries can raise anything here
        if "trust_remote_code" in str(exc) and not trust_remote_code:
            raise LoadError(
                f"the tokenizer in {folder} has code of its own: allow it with --trust_remote_code"
            ) from exc
        raise LoadError(f"the tokenizer in {folder} can't be loaded: {_one_line(exc)}") from exc
    return _rust_part(tokenizer, lower_case), tokenizer


def _one_line(exc: Exception) -> str:
    return f"{type(exc).__name__}: {' '.join(str(exc).split())}"[:300]


def _rust_part(tokenizer: Any, lower_case: bool) -> LoadedTokenizer | None:
    """The Rust tokenizer inside, if encoding goes straight to it."""
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    kind = type(tokenizer)
    if not isinstance(tokenizer, TokenizersBackend) or (kind._encode_plus, kind.__call__) != (
        TokenizersBackend._encode_plus,
        PreTrainedTokenizerBase.__call__,
    ):
        return None
    return LoadedTokenizer(
        _own_backend(tokenizer.backend_tokenizer, lower_case),
        1 + max(tokenizer.get_vocab().values(), default=-1),
        named_tokens(tokenizer),
        tokenizer.padding_side,
        tokenizer.truncation_side,
        tokenizer.model_max_length,
        clean_up=False,
    )


def _own_backend(backend: Tokenizer, lower_case: bool) -> Tokenizer:
    """A copy of its own, because truncation is set on it and transformers sets it per call."""
    document = orjson.loads(backend.to_str())
    if not lower_case:
        document["normalizer"] = without_lower_case(document.get("normalizer"))
    own = Tokenizer.from_buffer(orjson.dumps(document))
    own.encode_special_tokens = backend.encode_special_tokens
    return own


def named_tokens(tokenizer: Any) -> Mapping[str, str]:
    """The special tokens that are set, by name."""
    tokens = {name: getattr(tokenizer, name, None) for name in NAMED}
    return {name: str(token) for name, token in tokens.items() if token is not None}


@dataclass(frozen=True, slots=True)
class PythonEngine:
    """A tokenizer written in Python behind the same methods as the Rust one."""

    tokenizer: Any
    max_length: int
    special_tokens: bool

    def encode(self, texts: Sequence[TextInput], how: Tokenization) -> list[list[Encoding]]:
        """One encoding per text. Raises InvalidInput for what such tokenizers don't have: offsets, windows, words."""
        in_words = any(isinstance(text, Words) for text in texts)
        if how.whole and not in_words:
            return [[self._whole(text, how)] for text in texts]
        if how not in (PLAIN, FIRST_ALONE) or in_words:
            raise InvalidInput(
                "this model's tokenizer is written in Python and has no offsets, windows or texts in words; "
                "a tokenizer.json would give it them"
            )
        pairs = [text if isinstance(text, tuple) else (text, None) for text in texts]
        strategy = "only_first" if how.only_first else "longest_first"
        return [[self._encode(str(text), pair, strategy)] for text, pair in pairs]

    def encode_one(self, text: str) -> Encoding:
        """What ``encode`` gives for one text in the usual way."""
        return self.encode((text,), PLAIN)[0][0]

    def ids(self, text: str, *, special_tokens: bool) -> list[int]:
        """All ids of one text: it is not cut. Special ones are added as usual, or not at all."""
        return self._whole(text, WHOLE if special_tokens else BARE).ids

    def _whole(self, text: TextInput, how: Tokenization) -> Encoding:
        """A text as it is; where its tokens lie in it is not known."""
        first, second = text if isinstance(text, tuple) else (str(text), None)
        special = self.special_tokens if how.special_tokens is None else how.special_tokens
        whole = self._call(first, second, add_special_tokens=special, return_special_tokens_mask=True)
        ids = list(whole["input_ids"])
        if len(ids) > how.max_tokens:
            raise too_many_tokens(how)
        added: int = self.tokenizer.num_special_tokens_to_add(second is not None)
        rest = len(ids) + added * (self.special_tokens - special) - self.max_length
        types = list(whole.get("token_type_ids") or [0] * len(ids))
        mask = list(whole["special_tokens_mask"]) if how.detail else None
        return Encoding(ids, types, special_mask=mask, cut=Cut(max(0, rest), None))

    def _encode(self, text: str, pair: str | None, strategy: str) -> Encoding:
        whole = self._call(text, pair)
        truncated = len(whole["input_ids"]) > self.max_length
        if truncated:
            whole = self._call(text, pair, truncation=strategy, max_length=self.max_length)
        ids = list(whole["input_ids"])
        if len(ids) > self.max_length:
            # transformers logs an error then, and leaves the pair as long as it was.
            raise InvalidInput(f"a pair of texts does not fit into {self.max_length} tokens")
        return Encoding(ids, list(whole.get("token_type_ids") or [0] * len(ids)), truncated)

    def _call(self, text: str, pair: str | None, **options: Any) -> Mapping[str, Any]:
        try:
            encoded: Mapping[str, Any] = self.tokenizer(
                text,
                pair,
                **{
                    "add_special_tokens": self.special_tokens,
                    "return_token_type_ids": True,
                    "verbose": False,
                    **options,
                },
            )
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise InvalidInput(f"the tokenizer can't encode a text: {exc}") from exc
        return encoded

    def with_max_length(self, length: int) -> PythonEngine:
        """The same with another limit; nothing in it changes while it works."""
        return PythonEngine(self.tokenizer, length, self.special_tokens)
