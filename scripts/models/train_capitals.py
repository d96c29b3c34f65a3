"""Train the demo model: a tiny BERT that knows the capitals of some 120 countries.

Run it in an environment with torch, transformers, onnx and onnxruntime, from anywhere:

    python scripts/models/train_capitals.py

It writes the tokenizer and model.onnx into deploy/model_repository/bert, the padded-batch export into
tests/model_repository/bert_masked and the checkpoint into tests/goldens/checkpoint. One thread and fixed seeds: the
same library versions on the same kind of processor give the same weights. It ends with an error if the model does
not know every fact.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from capitals import FACTS, FILLER, MAIN_TEMPLATE, TEMPLATES
from demo_tokenizer import MAX_LENGTH, VOCABULARY_SIZE, build_tokenizer, save_tokenizer
from export_onnx import export_models
from playground_texts import write_playground
from transformers import BertConfig, BertForMaskedLM, BertTokenizer, set_seed

ROOT: Final = Path(__file__).resolve().parents[2]
STEPS: Final = 2500
BATCH_SIZE: Final = 128
PEAK_LEARNING_RATE: Final = 3e-3
SEED: Final = 2
IGNORED: Final = -100  # the label that torch's cross entropy skips

CHECKED_TEMPLATES: Final = (
    MAIN_TEMPLATE,
    "The capital of {country} is {capital}",
    "{capital} is the capital of {country}.",
    "{country}'s capital is {capital}.",
    "Hello world. The capital of {country} is {capital}. Thank you very much.",
)


@dataclass(frozen=True)
class Sentence:
    """Token ids of one sentence; names holds the indices of the country and of the capital, if it is a fact."""

    ids: tuple[int, ...]
    names: tuple[int, ...] = ()


@dataclass(frozen=True)
class Example:
    """One training text: ids, segment ids and labels, all of one length."""

    ids: list[int]
    segments: list[int]
    labels: list[int]


def sentences() -> list[str]:
    """Every fact in every template, then the filler."""
    facts = [
        template.format(country=country, capital=capital)
        for country, capital in FACTS.items()
        for template in TEMPLATES
    ]
    return [*facts, *FILLER]


class ExampleMaker:
    """Draws random training texts: one to several sentences, facts and filler, with names masked."""

    def __init__(self, tokenizer: BertTokenizer, rng: random.Random) -> None:
        self._rng = rng
        self._vocabulary_size = len(tokenizer)
        self._cls, self._sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        self._mask, self._pad = tokenizer.mask_token_id, tokenizer.pad_token_id
        self._first_plain_id = max(tokenizer.all_special_ids) + 1
        names = {tokenizer.convert_tokens_to_ids(name) for fact in FACTS.items() for name in fact}
        encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in sentences()]
        all_sentences = [
            Sentence(ids, tuple(index for index, token in enumerate(ids) if token in names)) for ids in encoded
        ]
        self._facts = [sentence for sentence in all_sentences if sentence.names]
        self._filler = [sentence for sentence in all_sentences if not sentence.names]

    def batch(self, size: int) -> dict[str, torch.Tensor]:
        """Return a padded batch, INT64 [size, longest], for BertForMaskedLM.forward."""
        most = self._rng.choice((1, 1, 1, 1, 2, 2, 3, 8))
        examples = [self._example(self._rng.randint(1, most)) for _ in range(size)]
        longest = max(len(example.ids) for example in examples)

        def padded(rows: list[list[int]], value: int) -> torch.Tensor:
            return torch.tensor([row + [value] * (longest - len(row)) for row in rows])

        return {
            "input_ids": padded([example.ids for example in examples], self._pad),
            "attention_mask": padded([[1] * len(example.ids) for example in examples], 0),
            "token_type_ids": padded([example.segments for example in examples], 0),
            "labels": padded([example.labels for example in examples], IGNORED),
        }

    def _example(self, count: int) -> Example:
        ids, labels, segments = [self._cls], [IGNORED], [0]
        fact_at = self._rng.randrange(count)
        second_segment_at = self._rng.randint(1, count) if count > 1 and self._rng.random() < 0.2 else count
        for index in range(count):
            sentence = self._rng.choice(self._facts) if index == fact_at else self._any_sentence()
            if len(ids) + len(sentence.ids) + 2 > MAX_LENGTH:
                break
            if index == second_segment_at:
                ids, labels, segments = [*ids, self._sep], [*labels, IGNORED], [*segments, 0]
            masked = self._masked_indices(sentence)
            ids += [self._mask if at in masked else token for at, token in enumerate(sentence.ids)]
            labels += [token if at in masked else IGNORED for at, token in enumerate(sentence.ids)]
            segments += [int(index >= second_segment_at)] * len(sentence.ids)
        return Example([*ids, self._sep], [*segments, segments[-1]], [*labels, IGNORED])

    def _any_sentence(self) -> Sentence:
        kind = self._rng.random()
        if kind < 0.5:
            return self._rng.choice(self._facts)
        if kind < 0.75:
            return self._rng.choice(self._filler)
        # Arbitrary words, so that a text full of pieces it never saw in order doesn't distract the model.
        length = self._rng.randint(1, 20)
        return Sentence(tuple(self._rng.randrange(self._first_plain_id, self._vocabulary_size) for _ in range(length)))

    def _masked_indices(self, sentence: Sentence) -> set[int]:
        if not sentence.names:
            return set()
        masked = {self._rng.choice(sentence.names)}
        if self._rng.random() < 0.15:
            masked.add(self._rng.randrange(len(sentence.ids)))
        return masked


def new_model() -> BertForMaskedLM:
    """An untrained BERT of about 150,000 parameters, the input and output embeddings shared."""
    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=MAX_LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def masked_loss(model: BertForMaskedLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross entropy at the labelled places only: the vocabulary head is most of the work at every other place."""
    labels = batch.pop("labels")
    labelled = labels != IGNORED
    hidden = model.bert(**batch).last_hidden_state[labelled]
    return torch.nn.functional.cross_entropy(model.cls(hidden), labels[labelled])


def train(tokenizer: BertTokenizer) -> BertForMaskedLM:
    """Train for STEPS batches and return the model in evaluation mode."""
    model = new_model()
    examples = ExampleMaker(tokenizer, random.Random(SEED))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=STEPS)
    started = time.monotonic()
    for step in range(1, STEPS + 1):
        loss = masked_loss(model, examples.batch(BATCH_SIZE))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
    model.train(False)
    return model


def wrong_answers(model: BertForMaskedLM, tokenizer: BertTokenizer) -> list[str]:
    """Ask for every capital and every country in CHECKED_TEMPLATES; describe each answer that is wrong."""
    wrong = []
    for template in CHECKED_TEMPLATES:
        for country, capital in FACTS.items():
            for expected, names in ((capital, (country, "[MASK]")), (country, ("[MASK]", capital))):
                text = template.format(country=names[0], capital=names[1])
                encoding = tokenizer(text, return_tensors="pt")
                with torch.no_grad():
                    logits = model(**encoding).logits[0]
                at = encoding["input_ids"][0].tolist().index(tokenizer.mask_token_id)
                answer = tokenizer.decode([int(logits[at].argmax())])
                if answer != expected:
                    wrong.append(f"{text} -> {answer}, not {expected}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and export the demo model.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to write into")
    root: Path = parser.parse_args().root
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    set_seed(SEED)

    tokenizer = build_tokenizer(sentences(), [name for fact in FACTS.items() for name in fact])
    model = train(tokenizer)
    if wrong := wrong_answers(model, tokenizer):
        raise SystemExit("The model did not learn everything:\n" + "\n".join(wrong))
    print(f"every answer is right: {len(FACTS)} facts, {len(CHECKED_TEMPLATES)} forms, both ways")

    model_folder = root / "deploy/model_repository/bert"
    checkpoint = root / "tests/goldens/checkpoint"
    model.save_pretrained(checkpoint)
    model_folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, model_folder)
    model.config.save_pretrained(model_folder)
    export_models(model, model_folder / "1/model.onnx", root / "tests/model_repository/bert_masked/1/model.onnx")
    write_playground(model_folder)


if __name__ == "__main__":
    main()
