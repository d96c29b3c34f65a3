"""Batches, losses and the training loop of the predictive test models."""

from __future__ import annotations

import random
import time
from typing import Any, Final

import task_sentences as worlds
import torch
from task_models import TaskModel
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, normalize
from transformers import PreTrainedModel, PreTrainedTokenizerBase

BATCH_SIZE: Final = 48
PEAK_LEARNING_RATE: Final = 4e-3
SMOOTHING: Final = 0.04
"""Keeps the logits small. So the scores of the goldens are not all 0.9999, and FP32 holds them to 1e-5."""
IGNORED: Final = -100
TEMPERATURE: Final = 0.1


def train(spec: TaskModel, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> float:
    """Train the model in place and return the loss of the last tenth of the steps."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=spec.steps)
    started, last = time.monotonic(), []
    for step in range(spec.steps):
        loss = meaning_loss(model, tokenizer, rng) if spec.draw is None else task_loss(spec, model, tokenizer, rng)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step >= spec.steps * 9 // 10:
            last.append(loss.item())
        if (step + 1) % 500 == 0:
            print(f"{spec.name}: step {step + 1}, loss {loss.item():.3f}", flush=True)
    model.train(False)
    mean = sum(last) / len(last)
    print(f"{spec.name}: {spec.steps} steps, loss {mean:.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return mean


def task_loss(
    spec: TaskModel, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rng: random.Random
) -> torch.Tensor:
    """The loss over one batch of examples."""
    assert spec.draw is not None
    examples = [spec.draw(rng) for _ in range(BATCH_SIZE)]
    pairs = [example.pair for example in examples]
    encoding = tokenizer(
        [example.text for example in examples],
        None if pairs[0] is None else pairs,
        padding=True,
        truncation=True,
        max_length=spec.max_length,
        return_tensors="pt",
    )
    output = model(**encoding)
    if spec.learns == "span":
        starts, ends = torch.tensor([answer_tokens(encoding, i, example) for i, example in enumerate(examples)]).T
        return cross_entropy(output.start_logits, starts, label_smoothing=SMOOTHING / 4) + cross_entropy(
            output.end_logits, ends, label_smoothing=SMOOTHING / 4
        )
    if spec.learns == "tokens":
        labels = torch.tensor([token_labels(encoding, i, example) for i, example in enumerate(examples)])
        return cross_entropy(
            output.logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING, ignore_index=IGNORED
        )
    targets = torch.tensor([example.target for example in examples])
    if spec.learns == "number":
        return mse_loss(output.logits[:, 0], targets)
    if spec.learns == "flags":
        return binary_cross_entropy_with_logits(output.logits, targets * (1 - SMOOTHING) + SMOOTHING / 2)
    return cross_entropy(output.logits, targets, label_smoothing=SMOOTHING)


def token_labels(encoding: Any, index: int, example: worlds.Example) -> list[int]:
    """A label per token: B- for the first piece of an entity, I- for all others, IGNORED for special tokens."""
    item = encoding.encodings[index]
    labels = []
    begun: set[int] = set()
    for (start, end), special in zip(item.offsets, item.special_tokens_mask, strict=True):
        if special:
            labels.append(IGNORED)
            continue
        label = "O"
        for number, (first, last, kind) in enumerate(example.target):
            if start < last and end > first:
                label = f"{'I' if number in begun else 'B'}-{kind}"
                begun.add(number)
        labels.append(worlds.ENTITY_LABELS.index(label))
    return labels


def answer_tokens(encoding: Any, index: int, example: worlds.Example) -> tuple[int, int]:
    """The first and the last token of the answer; both 0, the [CLS] token, where there is none or it was cut off."""
    if example.target is None:
        return 0, 0
    first = encoding.char_to_token(index, example.target[0], sequence_index=1)
    last = encoding.char_to_token(index, example.target[1] - 1, sequence_index=1)
    return (0, 0) if first is None or last is None else (first, last)


def meaning_loss(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rng: random.Random) -> torch.Tensor:
    """Sentences of the same meaning near each other, those of others away: cross entropy over cosines."""
    drawn = {number: (first, second) for number, first, second in (worlds.similar(rng) for _ in range(40))}
    texts = [pair[side] for side in (0, 1) for pair in drawn.values()]
    encoding = tokenizer(texts, padding=True, return_tensors="pt")
    hidden = model(**encoding).last_hidden_state
    mask = encoding["attention_mask"][..., None]
    pooled = normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
    count = len(drawn)
    return cross_entropy(pooled[:count] @ pooled[count:].T / TEMPERATURE, torch.arange(count))
