"""Which tokenizers are taken apart at spaces, and which are left to the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from hf_transformer.tokenizer.words import AsciiWords, WordCache, separable
from tests.tiny_tokenizers.trained import byte_level, roberta, unigram, wordpiece

Change = Callable[[Tokenizer], object]


def bert() -> Tokenizer:
    return wordpiece(lowercase=True)


def gpt2() -> Tokenizer:
    return byte_level(["<|endoftext|>"])


class Reversing:
    """A normalizer written in Python."""

    def normalize(self, normalized: Any) -> None:
        normalized.map(lambda char: char)


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=single, pair="$A $B:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("[MASK]", 4)]
    )


def part(name: str, value: Any) -> Change:
    return lambda backend: setattr(backend, name, value)


def normalized_by(*steps: normalizers.Normalizer) -> Change:
    return part("normalizer", normalizers.Sequence([*steps]))


def adding(content: str, **flags: bool) -> Change:
    return lambda backend: backend.add_tokens([AddedToken(content, **flags)])


METASPACE = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
OUTSIDE: dict[str, tuple[Callable[[], Tokenizer], Change]] = {
    "strip": (bert, normalized_by(normalizers.Strip())),
    "replace": (bert, normalized_by(normalizers.Replace(Regex(" +"), " "))),
    "prepend": (bert, normalized_by(normalizers.Lowercase(), normalizers.Prepend("x"))),
    "nested": (bert, normalized_by(normalizers.Sequence([normalizers.Strip()]))),
    "python normalizer": (bert, lambda b: setattr(b, "normalizer", normalizers.Normalizer.custom(Reversing()))),
    "no pre-tokenizer": (bert, part("pre_tokenizer", None)),
    "metaspace": (bert, part("pre_tokenizer", pre_tokenizers.Metaspace())),
    "sequence": (bert, part("pre_tokenizer", METASPACE)),
    "own pattern": (gpt2, part("pre_tokenizer", pre_tokenizers.Split(Regex(r"\s+"), "isolated"))),
    "bytes without a pattern": (gpt2, part("pre_tokenizer", pre_tokenizers.ByteLevel(use_regex=False))),
    "digits": (bert, part("pre_tokenizer", pre_tokenizers.Digits())),
    "unigram": (bert, part("model", models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))),
    "dropout": (gpt2, lambda backend: setattr(backend.model, "dropout", 0.5)),
    "type ids": (bert, part("post_processor", template("[CLS] $A [SEP]:2"))),
    "type id of the text": (bert, part("post_processor", template("[CLS] $A:1 [SEP]"))),
    "text twice": (bert, part("post_processor", template("[CLS] $A [SEP] $A"))),
    "no text": (bert, part("post_processor", template("[CLS] [SEP]"))),
    "token with a space": (bert, adding("two words")),
    "token of a space": (gpt2, adding("  ", normalized=False)),
    "token with a line end": (bert, adding("a\nb", normalized=False)),
    "token that becomes spaces": (bert, adding("中")),
    "token that becomes nothing": (bert, adding("\u0301")),
    "token that takes the space behind it": (gpt2, adding("<x>", rstrip=True)),
    "accents of bytes": (gpt2, normalized_by(normalizers.StripAccents())),
    "compatibility of bytes": (gpt2, normalized_by(normalizers.NFKC())),
    "bert's normalizer of bytes": (gpt2, normalized_by(normalizers.BertNormalizer())),
}


@pytest.mark.parametrize(("make", "change"), OUTSIDE.values(), ids=OUTSIDE)
def test_what_is_not_certain_is_left_to_the_library(make: Callable[[], Tokenizer], change: Change) -> None:
    backend = make()
    assert WordCache.of(backend, True) is not None, "without the change"
    change(backend)
    assert WordCache.of(backend, True) is None


@pytest.mark.parametrize("backend", [unigram(["<unk>"]), Tokenizer(models.BPE())], ids=["sentencepiece", "bare"])
def test_other_models_are_not_separable(backend: Tokenizer) -> None:
    assert separable(backend) is None


@pytest.mark.parametrize(
    ("make", "processor", "before", "after"),
    [
        (bert, None, (), ()),
        (bert, template("$A"), (), ()),
        (bert, template("[CLS] $A [SEP]"), (2,), (3,)),
        (bert, template("[CLS] [MASK] $A:0 [SEP]:0 [SEP]"), (2, 4), (3, 3)),
        (bert, processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)), (2,), (3,)),
        (bert, processors.Sequence([processors.ByteLevel(), template("[CLS] $A")]), (2,), ()),
        (roberta, processors.RobertaProcessing(("</s>", 2), ("<s>", 0)), (0,), (2,)),
        (gpt2, processors.ByteLevel(), (), ()),
    ],
)
def test_special_tokens_around(
    make: Callable[[], Tokenizer], processor: Any, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    backend = make()
    backend.post_processor = processor
    how = separable(backend)
    assert how is not None and (how.before, how.after) == (before, after)
    for special in (True, False):
        words = WordCache.of(backend, special)
        encoded = backend.encode("Paris is the capital", add_special_tokens=special)
        assert words is not None and words.ids("Paris is the capital") == encoded.ids
        assert encoded.type_ids == [0] * len(encoded.ids)


@pytest.mark.parametrize(
    ("content", "plain"), [("[X]", True), ("x_y", True), ("œuf", True), ("zoë", False), ("ing", False), ("2", False)]
)
def test_only_words_that_hold_no_added_token_are_put_together(content: str, plain: bool) -> None:
    backend = bert()  # for which zoë is zoe
    backend.add_tokens([content])
    how = separable(backend)
    words = None if how is None else AsciiWords.of(backend, how)
    assert (words is not None) == plain, "a token of letters alone may be in any word"
    for chunk in (content, f"a{content}b", "", "é", "a b", "a\n", "\x7f", "x" * 33):
        assert words is None or words.ids(chunk, False) is None
    assert words is None or words.ids("Paris.", False) == (*backend.encode("Paris.", add_special_tokens=False).ids,)
