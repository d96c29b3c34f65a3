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
from hf_transformer.tokenizer.files import read_json
from hf_transformer.tokenizer.load import without_lower_case
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.tokenization import Tokenization

HARD_TEXTS = (
    "2023",
    "On 2023-11-28 it cost 1234567.89 or 1,234 or 3,14.",
    "a1b22c333 4x4 H2O 007",
    "don't can't I'LL we've O'Neill's rock'n'roll",
    "two  spaces   three\tand a tab",
    " a space before, and after ",
    "a line\nand another\n\n\nand a last\r\n",
    "def f(x):\n    if x:\n        return {'a': [1, 2]}  # done",
    "https://example.com/a_b-c?d=e&f=%20#g user.name+tag@example.org",
    "Hello, World! HELLO hello HeLLo",
    "``quoted'' \u201cquoted\u201d \u00abquoted\u00bb 'quoted' \u2026 \u2013 \u2014",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m \u0130stanbul stra\u00dfe",
    "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "\u6771\u4eac\u90fd\u306b\u4f4f\u3093\u3067\u3044\u307e\u3059\u3002 \u4f60\u597d\uff0c\u4e16\u754c\uff01",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \uc548\ub155\ud558\uc138\uc694",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f \U0001f1e9\U0001f1ea",
    "\uff26\uff55\uff4c\uff4c \uff12\uff10\uff12\uff13 \ufb01ne \u00bd \u2167 \u2460 x\u00b2",
    "no\u00a0break zero\u200bwidth soft\u00adhyphen \ufeffmark",
    "\u2211 x\u1d62 \u2265 0 \u2227 \u2202f/\u2202x \u2192 \u221e $a_1^2$",
    "snake_case camelCase SCREAMING_CASE kebab-case",
    "[CLS] [SEP] [MASK] <s> </s> <unk> <|endoftext|>",
    "a\u2581b \u0120c ##d @@ e",
    "supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft",
)
"""Texts with digits, white space, accents, scripts, emoji, forms for compatibility, and marks of vocabularies."""
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
        file = _as_it_is(tokenizer.file, lower_case=not config.disable_lower_case)
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


def _as_it_is(path: Path, *, lower_case: bool) -> RustTokenizer:
    document = read_json(path, required=True)
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
    encoded = tokenizer.encode_windows(HARD_TEXTS, options)
    served = [list(windows[0].ids) for windows in encoded]
    alone = [file.encode(text, add_special_tokens=special).ids for text in HARD_TEXTS]
    return [row for row in zip(HARD_TEXTS, served, alone, strict=True) if row[1] != row[2]]


def _shown(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:SHOWN]))
    return f"[{shown}, ...]" if len(ids) > SHOWN else f"[{shown}]"
