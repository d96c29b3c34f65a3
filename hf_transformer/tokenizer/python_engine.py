"""Encoding of texts with a tokenizer of transformers written in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_transformer.errors import InvalidInput
from hf_transformer.tokenizer.engine import Engine, encoding_error, too_many_tokens
from hf_transformer.tokenizer.letters import alternation
from hf_transformer.types.tokenization import (
    Encoding,
    PromptText,
    Side,
    TextInput,
    Tokenization,
    Truncation,
    UserTokens,
    Words,
)


@dataclass
class PythonEngine(Engine):
    """Tokenizer of transformers written in Python. It does not support offsets, windows and texts in words."""

    tokenizer: Any
    max_length: int
    special_tokens: bool
    scope: UserTokens = "none"
    search: Callable[..., re.Match[str] | None] | None = None
    """Finds special tokens; None without --user_special_tokens."""

    def user_tokens_as_letters(self, scope: UserTokens, template: str) -> None:
        added = self.tokenizer.added_tokens_decoder.values()
        contents = [str(token) for token in added if token.special or str(token) in template]
        if contents:
            self.scope, self.search = scope, re.compile(alternation(contents)).search

    def _encode(self, texts: Sequence[TextInput], options: Tokenization) -> list[list[Encoding]]:
        in_words = any(isinstance(text, Words) for text in texts)
        if options.whole and not in_words:
            return [[self._whole(text, options)] for text in texts]
        if options.detail or options.windows or options.max_each or in_words:
            raise InvalidInput(
                "",
                "no request for offsets, windows or texts in words",
                hint="this model's tokenizer is written in Python and has none; a tokenizer.json would add them",
            )
        return [[self._truncated(text, options)] for text in texts]

    def _whole(self, text: TextInput, options: Tokenization) -> Encoding:
        """Encodes a text without truncation. ``cut`` has no spans, since the tokenizer has no offsets."""
        special = self.special_tokens if options.special_tokens is None else options.special_tokens
        whole = self._call(text, add_special_tokens=special, return_special_tokens_mask=True)
        ids = list(whole["input_ids"])
        if len(ids) > options.max_tokens:
            raise too_many_tokens(options)
        added: int = self.tokenizer.num_special_tokens_to_add(isinstance(text, tuple))
        excess = len(ids) + added * (self.special_tokens - special) - self.max_length
        mask = list(whole["special_tokens_mask"]) if options.detail else None
        return Encoding(ids, list(whole["token_type_ids"]), special_mask=mask, cut=Truncation(max(0, excess), None))

    def _truncated(self, text: TextInput, options: Tokenization) -> Encoding:
        whole, limit = self._call(text), self._limit(options)
        truncated = len(whole["input_ids"]) > limit
        if truncated:
            is_second = options.only_second and isinstance(text, tuple)
            one = "only_second" if is_second else "only_first" if options.one_side else "longest_first"
            whole = self._call(text, options.truncation_side, truncation=one, max_length=limit)
        ids = list(whole["input_ids"])
        if len(ids) > limit:
            # In this case transformers logs an error, and does not truncate the pair.
            raise InvalidInput("", f"a pair of texts that fits into {limit} tokens")
        return Encoding(ids, list(whole["token_type_ids"]), truncated)

    def _pieces(self, text: PromptText) -> str | list[int]:
        """Ids of a composed text, piece by piece, unless the tokenizer reads it as it is."""
        if self.search is None or not any(self.search(text, start, end) for start, end in text.letters):
            return str(text)
        ids, position = list[int](), 0
        for start, end in (*text.letters, (len(text), len(text))):
            for piece, splits in ((text[position:start], False), (text[start:end], True)):
                ids += self.tokenizer.convert_tokens_to_ids(self.tokenizer.tokenize(piece, split_special_tokens=splits))
            position = end
        return ids

    def _call(self, text: TextInput, side: Side | None = None, **options: Any) -> Mapping[str, Any]:
        pair: tuple[Any, Any] = text if isinstance(text, tuple) else (str(text), None)
        tokenizer = self.tokenizer
        if isinstance(text, PromptText):
            pair = self._pieces(text), None
        elif self.search and (self.scope == "all" or (self.scope == "pairs" and isinstance(text, tuple))):
            if any(part and self.search(part) for part in pair):
                options["split_special_tokens"] = True
        if side is not None:  # an attribute and no argument; copy() would load some vocabularies again
            tokenizer = object.__new__(type(tokenizer))
            tokenizer.__dict__.update(self.tokenizer.__dict__, truncation_side=side)
        defaults = {"add_special_tokens": self.special_tokens, "return_token_type_ids": True, "verbose": False}
        try:
            encoded: Mapping[str, Any] = tokenizer(*pair, **(defaults | options))
        except (ValueError, TypeError, KeyError, UnicodeError) as exc:
            raise encoding_error((text,), exc) from exc
        return {"token_type_ids": [0] * len(encoded["input_ids"]), **encoded}
