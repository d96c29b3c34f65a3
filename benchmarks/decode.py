"""What it costs to make an answer of one instance's logits, per task.

    python benchmarks/decode.py [--seconds 0.005] [--rounds 200]

Logits are made up, of the size that a usual model has; the vocabulary is the bert-base one in size (30,522 tokens, with
made-up words). What is timed is Task.decode and Task.answer of one instance, all of the work between the predictor's
response and the writing of JSON; where an instance has several texts, of all of them. Prints one Markdown table with
the best of many short rounds: what else the machine does only ever adds to it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from hf_transformer.tasks.base import Task, TaskSettings
from hf_transformer.tasks.feature_extraction import FeatureExtraction
from hf_transformer.tasks.fill_mask import FillMask
from hf_transformer.tasks.question_answering import QuestionAnswering
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_classification import ZeroShotClassification
from hf_transformer.tokenizer.engine import RustEngine
from hf_transformer.tokenizer.load import LoadedTokenizer
from hf_transformer.tokenizer.tokenizer import Tokenizer as OurTokenizer
from hf_transformer.types import Array

VOCABULARY = 30_522
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENS = 128
LABELS = ("O", *(f"{prefix}-{name}" for name in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))
"""The nine of CoNLL 2003."""
SENTIMENT = ("negative", "neutral", "positive")
ENTAILMENT = ("contradiction", "neutral", "entailment")
PACKAGES = ("hf-transformer", "tokenizers", "numpy")
NOTE = """
The target of token_classification is for the kserve form and the strategies none and simple, which take the best
label of each token. first, average and max have no target, and cost more: they choose a label per word, and so gather
the tokens and scores of every word, O or not, before entities are grouped."""
ENTITY_EVERY, ENTITY_LENGTH = 13, 2
"""In tokens: about as many names as a news text has."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table. ``target`` is in microseconds, None where there is none; ``labels`` the model's."""

    name: str
    task: type[Task[Any, Any, Any]]
    instance: Any
    parameters: Mapping[str, Any]
    logits: Callable[[int], Mapping[str, Array]]
    target: float | None = None
    labels: Sequence[str] = LABELS


def fill_mask_logits(tokens: int) -> Mapping[str, Array]:
    """[tokens, vocabulary]: one token is likely, as with a trained model."""
    return {"logits": np.random.default_rng(1).normal(0, 2, (tokens, VOCABULARY)).astype(np.float32)}


def token_logits(tokens: int) -> Mapping[str, Array]:
    """[tokens, labels]: an entity of two tokens in every 13 tokens, the rest O."""
    logits = np.random.default_rng(2).normal(0, 0.5, (tokens, len(LABELS))).astype(np.float32)
    logits[:, 0] += 8
    for number, start in enumerate(range(2, tokens - ENTITY_LENGTH - 1, ENTITY_EVERY)):
        begin = 1 + 2 * (number % 4)
        logits[start, begin] += 16
        logits[start + 1 : start + ENTITY_LENGTH, begin + 1] += 16
    return {"logits": logits}


def span_logits(tokens: int) -> Mapping[str, Array]:
    """Twice [tokens]: a likely answer of three tokens in the middle."""
    start, end = np.random.default_rng(3).normal(-4, 2, (2, tokens)).astype(np.float32)
    start[tokens // 2] = end[tokens // 2 + 2] = 8
    return {"start_logits": start, "end_logits": end}


def token_vectors(tokens: int) -> Mapping[str, Array]:
    """[tokens, 384], by the names of both tasks that read such."""
    vectors = np.random.default_rng(4).normal(0, 1, (tokens, 384)).astype(np.float32)
    return {"sentence_embedding": vectors, "last_hidden_state": vectors}


def text_logits(labels: int) -> Callable[[int], Mapping[str, Array]]:
    """[labels], whatever the text is."""
    values = np.random.default_rng(6).normal(0, 2, labels).astype(np.float32)
    return lambda tokens: {"logits": values}


def pooled_vector(tokens: int) -> Mapping[str, Array]:
    """[384]"""
    return {"sentence_embedding": np.random.default_rng(5).normal(0, 1, 384).astype(np.float32)}


def words(count: int) -> str:
    return " ".join(f"word{number % 9}" for number in range(count))


NER_TEXT = words(TOKENS - 2)
MASKED_TEXT = words(13) + " [MASK]"
QUESTION = {"question": words(8), "context": words(384 - 8 - 3)}
"""One whole window of question answering."""
PIPELINE = {"output_format": "pipeline"}
RANKED = {"query": words(8), "texts": [words(20 + number % 10) for number in range(100)]}
ZERO_SHOT = {"sequence": words(20), "candidate_labels": [f"word{number}" for number in range(10)]}
CASES: Sequence[Case] = (
    Case("fill_mask, kserve", FillMask, MASKED_TEXT, {}, fill_mask_logits),
    Case("fill_mask, pipeline, top_k 5", FillMask, MASKED_TEXT, PIPELINE, fill_mask_logits, 100),
    Case("token_classification, kserve", TokenClassification, NER_TEXT, {}, token_logits, 50),
    *(
        Case(
            f"token_classification, pipeline, {strategy}",
            TokenClassification,
            NER_TEXT,
            PIPELINE | {"aggregation_strategy": strategy},
            token_logits,
            target,
        )
        for strategy, target in (("none", 50), ("simple", 50), ("first", None), ("average", None), ("max", None))
    ),
    Case(
        "sequence_classification, kserve",
        SequenceClassification,
        NER_TEXT,
        {},
        text_logits(3),
        labels=SENTIMENT,
    ),
    Case(
        "sequence_classification, pipeline, all of 3 labels",
        SequenceClassification,
        NER_TEXT,
        PIPELINE | {"top_k": None},
        text_logits(3),
        labels=SENTIMENT,
    ),
    Case("rerank, 100 texts", Rerank, RANKED, {}, text_logits(1), labels=("score",)),
    Case(
        "zero_shot_classification, 10 labels", ZeroShotClassification, ZERO_SHOT, {}, text_logits(3), labels=ENTAILMENT
    ),
    Case("question_answering", QuestionAnswering, QUESTION, {}, span_logits),
    Case("question_answering, top_k 5", QuestionAnswering, QUESTION, {"top_k": 5}, span_logits),
    Case("text_embedding, mean, 384 dimensions", TextEmbedding, NER_TEXT, {}, token_vectors),
    Case("text_embedding, cut to 128 dimensions", TextEmbedding, NER_TEXT, {"dimensions": 128}, token_vectors),
    Case("text_embedding, pooled by the model", TextEmbedding, NER_TEXT, {}, pooled_vector),
    Case("feature_extraction, 384 dimensions", FeatureExtraction, NER_TEXT, {}, token_vectors),
)
"""Tasks that are added get their lines here."""


def made_up_tokenizer() -> OurTokenizer:
    """WordPiece with as many tokens as bert-base has."""
    vocab = {token: number for number, token in enumerate(SPECIAL)}
    while len(vocab) < VOCABULARY:
        vocab[f"word{len(vocab) - len(SPECIAL)}"] = len(vocab)
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.add_special_tokens(list(SPECIAL))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    backend.decoder = decoders.WordPiece()
    named = {"mask_token": "[MASK]", "cls_token": "[CLS]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    loaded = LoadedTokenizer(backend, VOCABULARY, named, "right", "right", 512, cleans_up=False)
    engine = RustEngine(backend, 512, special_tokens=True, truncation_side="right")
    return OurTokenizer(loaded, engine, 512)


def cost(case: Case, tokenizer: OurTokenizer, seconds: float, rounds: int) -> tuple[int, float]:
    """How many tokens the instance has, and how many microseconds it takes."""
    config = {"vocab_size": VOCABULARY, "id2label": dict(enumerate(case.labels))}
    task = case.task(TaskSettings(model_config=config, vocabulary=tokenizer))
    options = task.options(case.parameters)
    item = task.item(case.instance, "instances[0]", options)
    texts = tokenizer.encode_windows(task.texts(item, options), task.tokenization(options))
    # A list per text, with the outputs of each of its windows.
    outputs = [[case.logits(len(window)) for window in windows] for windows in texts]

    def run() -> Any:
        parts = [
            [task.decode(item, window, rows, options) for window, rows in zip(windows, mine, strict=True)]
            for windows, mine in zip(texts, outputs, strict=True)
        ]
        return task.answer(item, parts, options)

    timer = timeit.Timer(run)
    number = max(1, int(seconds / (timer.timeit(20) / 20)))
    length = sum(len(window) for windows in texts for window in windows)
    return length, min(timer.repeat(rounds, number)) / number * 1e6


def main() -> None:
    """Measures the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.005, help="of one round")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    tokenizer = made_up_tokenizer()
    print(f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES) + "\n")
    print("| answer | tokens | microseconds | at most |\n|---|---:|---:|---:|")
    for case in CASES:
        length, found = cost(case, tokenizer, options.seconds, options.rounds)
        print(f"| {case.name} | {length} | {found:.0f} | {case.target or ''} |")
    print(NOTE)


if __name__ == "__main__":
    main()
