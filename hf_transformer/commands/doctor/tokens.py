"""Check of the served token ids against those of tokenizer.json, on texts that tokenizers split differently.

transformers builds most tokenizers from the class in tokenizer_config.json and only the vocabulary of tokenizer.json.
Where class and file differ, a model that was trained with the one gets other tokens from the other, without any error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import orjson
from tokenizers import Tokenizer as RustTokenizer

from hf_transformer.commands.doctor.examination import Finding, Subject, ok, skipped, warning
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tokenizer.cache_check import HARD_TEXTS
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.load import without_lower_case
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import PromptText, Tokenization

SHOWN = 8
"""Maximum number of ids of a text in a finding."""
PLAIN, SPECIAL = (Tokenization(whole=True, special_tokens=special) for special in (False, None))


async def tokens(subject: Subject) -> list[Finding]:
    """Compares the ids of HARD_TEXTS. Raises LoadError and RequestError."""
    return await asyncio.to_thread(_compare, subject)


def _compare(subject: Subject) -> list[Finding]:
    tokenizer, config = subject.loaded.tokenizer, subject.config
    if tokenizer.file is None:
        return skipped(f"there is no tokenizer.json to compare with; the ids are those of {tokenizer.source}")
    try:
        file = _as_it_is(tokenizer.file, config.max_model_file_bytes, lower_case=not config.disable_lower_case)
    except Exception as error:  # the Rust library raises bare Exception
        found = f"tokenizer.json can't be loaded by itself ({' '.join(str(error).split())[:100]})"
        return skipped(f"{found}; the ids are those of {tokenizer.source}")
    different = _different(tokenizer, file, PLAIN, special=False)
    # A reranker's template replaces the special tokens, and --disable_special_tokens leaves them out.
    if not different and not config.disable_special_tokens and not isinstance(subject.loaded.task, Rerank):
        different = _different(tokenizer, file, SPECIAL, special=True)
    if not different:
        return ok(f"{len(HARD_TEXTS)} hard texts have the ids of tokenizer.json ({tokenizer.source})")
    text, served, alone = min(different, key=lambda row: len(row[0]))
    return warning(
        f"{len(different)} of {len(HARD_TEXTS)} hard texts have other ids than tokenizer.json gives: {text!r} has "
        f"{_shown(served)}, and {_shown(alone)} by the file alone. The ids are those of {tokenizer.source}",
        'ask how the model was trained; "tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json serves '
        "tokenizer.json as it is",
    )


def _as_it_is(path: Path, limit: int, *, lower_case: bool) -> RustTokenizer:
    document = read_json(path, required=True, limit=limit, flag="--max_model_file_bytes")
    if not lower_case:
        document["normalizer"] = without_lower_case(document.get("normalizer"))
    file = RustTokenizer.from_buffer(orjson.dumps(document))
    file.no_padding()
    file.no_truncation()
    return file


def _different(
    tokenizer: Tokenizer, file: RustTokenizer, options: Tokenization, *, special: bool
) -> list[tuple[str, list[int], list[int]]]:
    """Returns the texts with other ids, with those that are served and those of the file."""
    # As prompts of the operator, whose special tokens are tokens whatever --user_special_tokens says.
    encoded = tokenizer.encode_windows([PromptText(text) for text in HARD_TEXTS], options)
    served = [list(windows[0].ids) for windows in encoded]
    alone = [file.encode(text, add_special_tokens=special).ids for text in HARD_TEXTS]
    return [row for row in zip(HARD_TEXTS, served, alone, strict=True) if row[1] != row[2]]


def _shown(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:SHOWN]))
    return f"[{shown}, ...]" if len(ids) > SHOWN else f"[{shown}]"
