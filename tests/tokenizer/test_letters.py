"""Special tokens in texts of users are letters, and those of templates stay tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from hf_transformer.tokenizer.letters import control_tokens
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tokenization import PLAIN, FramedPair, PromptText, Tokenization, Words

NAMES = ["bert", "bert-extra", "roberta", "gpt2", "qwen", "llama", "mistral", "xlm-roberta", "albert", "t5", "byt5"]
"""WordPiece, byte-level BPE, BPE with Metaspace, Unigram, and a tokenizer in Python."""
FAST = NAMES[:-1]
TEXTS = ["", "the house", "The HOUSE is small, 123!", "über große Straße   x", "日本 house", "a < b and [c]"]


def loaded(folders: Any, name: str, scope: Any = "all", template: str = "", **options: Any) -> Tokenizer:
    """A tokenizer of its own, since the scope changes it."""
    path = folders(name) / "config.json"
    made = load_tokenizer(folders(name), json.loads(path.read_text()) if path.exists() else {}, **options)
    made.user_tokens_as_letters(scope, template)
    return made


def special(tokenizer: Tokenizer) -> list[str]:
    return [token for token, is_special in tokenizer.control_tokens("").items() if is_special]


def steering(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """The special tokens among ids. Unknown characters are no special text."""
    known = {tokenizer.token_to_id(token) for token in special(tokenizer)} - {tokenizer.unk_id}
    return [number for number in ids if number in known]


@pytest.mark.parametrize("name", NAMES)
def test_ordinary_texts_have_the_tokens_of_transformers(folders: Any, auto: Any, name: str) -> None:
    tokenizer = loaded(folders, name)
    for text in TEXTS:
        assert tokenizer.encode([text])[0].ids == auto(name)(text)["input_ids"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "form",
    ["{}", "the {} house", "the{}house {}{}", "{} {}\n{}", "house {}", "{}the"],
    ids=["alone", "between", "joined", "lines", "end", "start"],
)
def test_no_special_token_comes_from_a_text(folders: Any, name: str, form: str) -> None:
    tokenizer = loaded(folders, name)
    usual = steering(tokenizer, tokenizer.encode([""])[0].ids)
    for token in special(tokenizer):
        [encoding] = tokenizer.encode([form.replace("{}", token)])
        assert steering(tokenizer, encoding.ids) == usual
        assert len(encoding) > len(usual) + 1


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("scope", ["all", "pairs"])
def test_other_spellings_make_no_special_token(folders: Any, name: str, scope: str) -> None:
    """Full-width letters and control characters, which some normalizers change to plain letters."""
    tokenizer = loaded(folders, name, scope)
    usual = steering(tokenizer, tokenizer.encode([("", "")])[0].ids)
    for token in special(tokenizer):
        wide = "".join(chr(ord(letter) + 0xFEE0) if letter.isascii() else letter for letter in token)
        for text in (
            wide,
            f"a {wide}",
            f"{token[0]}\x01{token[1:]}",
            token.lower(),
            token.upper(),
            f"{token[0]}{token}",
        ):
            [encoding] = tokenizer.encode([("the house", text)])
            assert steering(tokenizer, encoding.ids) == usual


@pytest.mark.parametrize("name", FAST)
def test_letters_decode_to_the_text(folders: Any, name: str) -> None:
    tokenizer = loaded(folders, name, special_tokens=False)
    for token in special(tokenizer):
        if name not in ("bert", "bert-extra", "xlm-roberta", "albert", "t5", "llama", "mistral"):
            assert (
                tokenizer.decode(tokenizer.encode([f"the {token}"])[0].ids, skip_special_tokens=True) == f"the {token}"
            )
        [encoding] = tokenizer.encode([f"the {token} house"], offsets=True)
        assert encoding.offsets is not None
        covered = {index for start, end in encoding.offsets for index in range(start, end)}
        assert covered >= set(range(5, 3 + len(token)))  # each letter of the token belongs to a token


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_of_a_template_stay_tokens(folders: Any, auto: Any, name: str) -> None:
    tokenizer = loaded(folders, name, "none")
    token = special(tokenizer)[0]
    trusted, user = f"the {token} house{token}", f" x{token}y"
    wanted = auto(name)(trusted, add_special_tokens=False)["input_ids"]
    prompt = PromptText(trusted + user, ((len(trusted), len(trusted + user)),))
    options = Tokenization(whole=True, special_tokens=False)
    [[encoding]] = tokenizer.encode_windows([prompt], options)
    assert encoding.ids[: len(wanted)] == wanted
    assert steering(tokenizer, encoding.ids) == steering(tokenizer, wanted)
    [[plain]] = tokenizer.encode_windows([trusted + user], options)  # a raw prompt has tokens
    assert plain.ids == auto(name)(trusted + user, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", FAST)
def test_offsets_are_those_of_the_text(folders: Any, name: str) -> None:
    tokenizer = loaded(folders, name, "none")
    token = special(tokenizer)[0]
    prompt = PromptText.around(f"{token}the house{token}", f"small {token}")
    [encoding] = tokenizer.encode([prompt], offsets=True)
    assert encoding.offsets is not None and encoding.special_mask is not None
    own = tokenizer.token_to_id(token)
    rows = zip(encoding.ids, encoding.offsets, encoding.special_mask, strict=True)
    spans = [span for number, span, is_added in rows if number == own and not is_added]
    assert [prompt[start:end] for start, end in spans[:2]] == [token, token]
    assert max(end for _, end in encoding.offsets) == len(prompt)


def test_scopes(folders: Any) -> None:
    sep = 3
    single, pair = "a [SEP] b", ("a [SEP] b", "c [SEP]")
    counts = {
        scope: [loaded(folders, "bert", scope).encode([text])[0].ids.count(sep) for text in (single, pair)]
        for scope in ("none", "pairs", "all")
    }
    assert counts == {"none": [2, 4], "pairs": [2, 2], "all": [1, 2]}
    words = Words(("a", "[SEP]", "[CLS]x"))
    assert loaded(folders, "bert").encode([words])[0].ids.count(sep) == 1
    assert loaded(folders, "bert", "pairs").encode([words])[0].ids.count(sep) == 2


def test_added_tokens_of_the_template_are_letters_and_others_stay_tokens(folders: Any) -> None:
    """new_token is not special. A template that writes it makes it a token that steers the model."""
    text, name = "the new_token [ENT]", "generic-wordpiece-added"
    number = loaded(folders, name).token_to_id("new_token")
    assert number in loaded(folders, name).encode([text])[0].ids
    assert number not in loaded(folders, name, template="{{ x }}new_token").encode([text])[0].ids


def test_white_space_and_words_that_a_template_has_too_stay_tokens() -> None:
    """Gemma's vocabulary adds line breaks, and templates have empty lines and words."""
    added = ["\n\n", "    ", " for ", "user", "<turn>"]
    backend = Backend(BPE())
    backend.add_tokens([AddedToken(token, normalized=False) for token in added])
    template = "{% for m in messages %}\n\n    {{ '<turn>' + m.user }}{% endfor %}"
    assert [token.content for token in control_tokens(backend, template).values()] == ["<turn>"]


@pytest.mark.parametrize("options", [PLAIN, Tokenization(windows=True, stride=1), Tokenization(max_length=6)])
def test_truncation_and_windows_keep_their_limits(folders: Any, options: Tokenization) -> None:
    tokenizer = loaded(folders, "bert", max_model_len=8)
    [windows] = tokenizer.encode_windows(["the [SEP] house [MASK] " * 4], options)
    limit = options.max_length or 8
    assert all(len(window) <= limit for window in windows)
    assert all(window.ids.count(3) == 1 and 4 not in window.ids for window in windows)
    assert (len(windows) > 1) == options.windows


def test_a_cached_word_is_no_way_around(folders: Any) -> None:
    """Texts that teach the word cache don't change what other texts become."""
    for name in ("bert", "xlm-roberta"):
        tokenizer = loaded(folders, name, "pairs")
        token = special(tokenizer)[0]
        for _ in range(3):
            tokenizer.encode([f"the {token} house", "the house"])
        usual = steering(tokenizer, tokenizer.encode([("", "")])[0].ids)
        for _ in range(3):
            assert steering(tokenizer, tokenizer.encode([("the house", f"the {token} house")])[0].ids) == usual


def test_long_texts_keep_their_letters(folders: Any) -> None:
    tokenizer = loaded(folders, "bert", "pairs", max_model_len=64)
    for text in ("the [SEP] " * 9000, "house " * 9000 + "[SEP]"):
        [encoding] = tokenizer.encode([(PromptText.around("[MASK] ", text), "small")])
        assert (encoding.ids.count(4), encoding.ids.count(3), len(encoding)) == (1, 2, 64)


def test_parts_of_pairs_with_a_template(folders: Any) -> None:
    tokenizer = loaded(folders, "bert")
    [encoding] = tokenizer.encode_windows([FramedPair("[MASK] ", "a [SEP] b", " [MASK]", "c [MASK]", 4)], PLAIN)[0]
    assert encoding.ids.count(4) == 2


def test_texts_for_models_that_tokenize_themselves(folders: Any) -> None:
    tokenizer = loaded(folders, "bert", "none")
    prompt = PromptText.around("[CLS]", "[SEP] x", "[SEP]")
    assert tokenizer.broken(prompt) == "[CLS][\u200bSEP] x[SEP]"
    assert tokenizer.broken("[SEP]") == "[SEP]"
    assert loaded(folders, "bert").broken("[SEP]") == "[\u200bSEP]"


def test_the_secret_names_are_not_in_the_vocabulary(folders: Any) -> None:
    names = [loaded(folders, "bert")._engine._letters._names for _ in range(2)]  # type: ignore[attr-defined]
    assert names[0].keys() == names[1].keys()
    assert not set(names[0].values()) & set(names[1].values())
