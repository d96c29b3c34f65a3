"""Languages of models that translate between many: the parameters ``src_lang`` and ``tgt_lang``.

models          source                                      target
NLLB            its token before the text; after it with    the first token of the answer
                ``legacy_behaviour``
mBART           its token after the text                    the first token of the answer
mBART-50        its token before the text                   the first token of the answer
M2M100          its token before the text                   the first token of the answer
Marian          chosen by the model                         a mark before the text, such as >>fra<<

The tokenizer itself shows the place of the source's token: it adds the token of its default language.

Source: transformers 5.24, the tokenizers of these models and their ``_build_translation_inputs``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from hf_transformer.errors import InvalidInput, Path, describe
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import Tokenization

TOKEN: Final = re.compile(r"__(?P<bare>[a-z]{2,4})__|(?P<code>[a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
"""Tokens of languages: __fr__ of M2M100, fra_Latn of NLLB, fr_XX of mBART."""
NEAR: Final = 3
LONGEST: Final = 40
"""Characters of an unknown code that are compared with the known ones."""


class Languages:
    """The languages of a model.

    Args:
        ids: the tokens of languages by their codes.
        place: the index of the source's token, 0 or -1; None if the tokenizer adds none.
        is_mark: whether the target is a mark before the text.
    """

    def __init__(self, ids: Mapping[str, int], place: int | None, *, is_mark: bool = False) -> None:
        self._ids, self._place = ids, place
        self.is_mark = is_mark

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Languages | None:
        """Returns the languages of a tokenizer; None without any."""
        if marks := tokenizer.language_marks():
            return cls({mark[2:-2]: number for mark, number in marks.items()}, None, is_mark=True)
        ids = dict(tokenizer.language_ids())
        for token, number in tokenizer.skipped_tokens().items() if not ids else ():
            if match := TOKEN.fullmatch(token):
                ids[match["bare"] or match["code"]] = number
        if len(ids) < 2:
            return None
        [[empty]] = tokenizer.encode_windows([""], Tokenization(whole=True))
        places = [index for index in (0, -1) if empty.ids and empty.ids[index] in ids.values()]
        return cls(ids, places[0] if places else None)

    @property
    def has_source(self) -> bool:
        """Whether a request may choose the source."""
        return self._place is not None

    def id(self, code: str, path: Path) -> int:
        """Returns the token of a language. Raises InvalidInput for an unknown one."""
        number = self._ids.get(code)
        if number is None:
            start = code.strip("_>").lower()[:2]
            close = get_close_matches(code[:LONGEST], self._ids, NEAR)
            near = [*close, *(name for name in self._ids if name.startswith(start))]
            near.sort(key=lambda name: not name.startswith(start))
            names = [*dict.fromkeys(near)][:NEAR]
            hint = f"near ones: {', '.join(names)}" if names else f"such as {next(iter(self._ids))}"
            raise InvalidInput(path, f"one of the model's {len(self._ids)} languages", describe(code, quote=True), hint)
        return number

    def with_source(self, ids: Sequence[int], source: int) -> tuple[int, ...]:
        """Replaces the default source in the ids of a text with its special tokens."""
        replaced = [*ids]
        if self._place is None or replaced[self._place] not in self._ids.values():
            raise AssertionError("the tokenizer adds no language")
        replaced[self._place] = source
        return tuple(replaced)

    def marked(self, text: str, code: str) -> str:
        """Puts the mark of a target before a text."""
        return f">>{code}<< {text}"
