"""--user_special_tokens for the models of each task, with the texts that these tasks make."""

from __future__ import annotations

from typing import Any

import pytest

from hf_transformer.app.loading import LoadedGenerativeModel, load_model
from hf_transformer.tasks.base import Task
from tests.support.configuring import config
from tests.support.triton_repository import DEMO_MODELS

SEP, MASK = "[SEP]", "[MASK]"
PAIR = {"query": f"a {SEP} b", "texts": [f"c {MASK}{SEP} d"]}
INSTANCES: dict[str, tuple[str, Any]] = {
    "rerank": ("cross", PAIR),
    "rerank with an embedding model": ("minibert_mean", PAIR),
    "question_answering": ("squad", {"question": f"a {SEP} b", "context": f"c {MASK} d"}),
    "zero_shot_classification": ("nli", {"sequence": f"a {SEP} b", "candidate_labels": [f"c {MASK}"]}),
    "text_embedding": ("minibert_mean", f"a {SEP} b {MASK}"),
    "token_classification": ("ner", f"a {SEP} b {MASK}"),
    "sequence_classification": ("sentiment", f"a {SEP} b {MASK}"),
    "fill_mask": ("bert", f"a {SEP} b {MASK}"),
}
PAIRS = ("question_answering", "zero_shot_classification")


def tokens_of(kind: str, *flags: str) -> list[str]:
    """The special tokens of all texts of an instance, beside those that the tokenizer adds."""
    model, instance = INSTANCES[kind]
    task = f"--task={kind.partition(' ')[0]}"
    loaded = load_model(config(f"--model_id={DEMO_MODELS / model}", "--model_name=m", task, *flags))
    assert isinstance(loaded.task, Task)
    options = loaded.task.options({})
    texts = loaded.task.texts(loaded.task.item(instance, ("instances", 0), options), options)
    tokens = []
    for text in texts:
        [encoding] = loaded.tokenizer.encode([text], offsets=True)
        assert encoding.special_mask is not None
        rows = zip(encoding.ids, encoding.special_mask, strict=True)
        tokens += [loaded.tokenizer.id_to_token(number) or "" for number, is_added in rows if not is_added]
    return [token for token in tokens if token in (SEP, MASK)]


@pytest.mark.parametrize("kind", INSTANCES)
def test_defaults(kind: str) -> None:
    are_letters = kind.startswith("rerank") or kind in PAIRS
    assert sorted(set(tokens_of(kind))) == ([] if are_letters else [MASK, SEP])


@pytest.mark.parametrize("kind", INSTANCES)
def test_text_is_letters_except_for_masks(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    assert sorted(set(tokens_of(kind, "--user_special_tokens=text"))) == ([MASK, SEP] if kind == "fill_mask" else [])
    assert ("--user_special_tokens=text has no effect" in caplog.text) == (kind == "fill_mask")


@pytest.mark.parametrize("kind", INSTANCES)
def test_tokens_are_those_of_transformers(kind: str) -> None:
    assert sorted(set(tokens_of(kind, "--user_special_tokens=tokens"))) == [MASK, SEP]


@pytest.mark.parametrize("instance", ["a [SEP]", {"text": "a [SEP]", "spans": [[0, 1]]}], ids=["text", "spans"])
def test_prompts_of_embedding_models_keep_their_tokens(instance: Any) -> None:
    flags = (f"--model_id={DEMO_MODELS / 'minibert_mean'}", "--model_name=m", "--user_special_tokens=text")
    loaded = load_model(config(*flags, "--task=text_embedding"))
    assert isinstance(loaded.task, Task)
    options = loaded.task.options({"prompt": "[MASK] "})
    texts = loaded.task.texts(loaded.task.item(instance, ("instances", 0), options), options)
    [windows] = loaded.tokenizer.encode_windows(texts, loaded.task.tokenization(options))
    names = [loaded.tokenizer.id_to_token(number) for number in windows[0].ids]
    assert (names.count(MASK), names.count(SEP)) == (1, 1)


@pytest.mark.parametrize(
    ("flags", "in_chat", "raw"),
    [
        ((), False, True),
        (("--user_special_tokens=text",), False, False),
        (("--user_special_tokens=tokens",), True, True),
    ],
    ids=["default", "text", "tokens"],
)
def test_prompts_of_a_generative_model(flags: tuple[str, ...], in_chat: bool, raw: bool) -> None:
    loaded = load_model(config(f"--model_id={DEMO_MODELS / 'gpt2'}", "--model_name=m", *flags))
    assert isinstance(loaded, LoadedGenerativeModel) and loaded.chat_template is not None
    tokenizer, end = loaded.tokenizer, "<|endoftext|>"
    number = tokenizer.token_to_id(end)

    def count(text: str) -> int:
        return tokenizer.encode([text])[0].ids.count(number)  # type: ignore[arg-type]

    def prompt(text: str) -> str:
        assert loaded.chat_template is not None
        return loaded.chat_template.render([{"role": "user", "content": text}])

    assert (count(prompt(f"a {end} b")) > count(prompt("a b"))) == in_chat
    assert (count(f"a {end} b") > count("a b")) == raw
    assert str(prompt(f"a {end} b")) == prompt("a b").replace("a b", f"a {end} b")
