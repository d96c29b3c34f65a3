"""Train and export the generative test models: one shaped like GPT-2, one like T5.

Run it in an environment with torch, transformers, sentencepiece, onnx and onnxruntime, from anywhere:

    python scripts/models/train_generation.py          both of them, about seven minutes
    python scripts/models/train_generation.py t5       only this one

It writes deploy/model_repository/<gpt2, t5> (config.json, generation_config.json, the tokenizer's files and
1/model.onnx), the demo's models, whose weights the generative models of the tests share. One thread and fixed seeds:
the same library versions on the same kind of processor give the same weights. Ends with an error if a model does not
know its facts. The goldens in tests/goldens are made from what this writes, so make them again afterwards.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import generation_sentences as worlds
import torch
from generation_onnx import CausalWithPast, EncoderDecoder, export
from generation_tokenizers import END, IM_END, byte_level_bpe, save, unigram
from playground_texts import write_playground
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

ROOT: Final = Path(__file__).resolve().parents[2]
SEED: Final = 7
BATCH_SIZE: Final = 48
PEAK_LEARNING_RATE: Final = 4e-3
SMOOTHING: Final = 0.01
"""Leaves other tokens than the likeliest one a chance, so that sampled texts differ."""
IGNORED: Final = -100
STEPS: Final = {"gpt2": 3500, "t5": 3000}

Row = tuple[list[int], list[int]]
"""The ids of a text, and of those that are learned the ids again, else IGNORED."""


def train(model: PreTrainedModel, steps: int, batches: Iterator[dict[str, torch.Tensor]]) -> None:
    """Train in place; every batch is the arguments of the model's forward, and labels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)
    started = time.monotonic()
    for step in range(1, steps + 1):
        batch = next(batches)
        labels = batch.pop("labels")
        logits = model(**batch, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=SMOOTHING
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}  {time.monotonic() - started:.0f} s", flush=True)
    model.train(False)


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """INT64 [rows, longest]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def new_gpt2(tokenizer: PreTrainedTokenizerBase) -> GPT2LMHeadModel:
    """Untrained, of about 170,000 parameters."""
    end, im_end = tokenizer.convert_tokens_to_ids([END, IM_END])
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=256,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
        initializer_range=0.1,
    )
    model = GPT2LMHeadModel(config)
    config.architectures = ["GPT2LMHeadModel"]
    # Two ends, as chat models have: that of a text and that of a turn.
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=[end, im_end], pad_token_id=end)
    return model


def gpt2_batches(tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, torch.Tensor]]:
    """Texts, and every fourth batch chats, of which the answers are learned."""
    rng = random.Random(SEED)
    end = tokenizer.convert_tokens_to_ids(END)
    for number in range(10**9):
        if number % 4 == 3:
            made = worlds.tool_chat if number % 8 == 7 else worlds.chat
            rows = [chat_row(tokenizer, made(rng)) for _ in range(BATCH_SIZE // 2)]
        else:
            texts = [worlds.text(rng) for _ in range(BATCH_SIZE)]
            rows = [(ids, ids) for ids in ([*tokenizer.encode(text), end] for text in texts)]
        ids, labels = zip(*rows, strict=True)
        # Of a row, what follows each token is learned; padding goes to the right, so no mask is needed.
        yield {
            "input_ids": padded([row[:-1] for row in ids], end),
            "labels": padded([row[1:] for row in labels], IGNORED),
        }


def chat_row(tokenizer: PreTrainedTokenizerBase, chat: worlds.Chat) -> Row:
    """A chat as the template renders it. The model learns the assistant's words and the end of its turn."""
    marker = "<|im_start|>assistant\n"
    text = tokenizer.apply_chat_template(list(chat.messages), tools=list(chat.tools) or None, tokenize=False)
    ids: list[int] = []
    labels: list[int] = []
    asked, *answers = text.split(marker)
    for number, part in enumerate([asked, *answers]):
        said, ended, rest = part.partition(IM_END) if number else ("", "", part)
        for piece, learned in ((marker if number else "", False), (said + ended, True), (rest, False)):
            new = tokenizer.encode(piece)
            ids += new
            labels += new if learned else [IGNORED] * len(new)
    return ids, labels


def check_gpt2(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The model's wrong answers, each beside its fact."""
    asked = {f"The capital of {country} is": f" {capital}." for country, capital in worlds.FACTS.items()}
    asked |= {f"The flag of {country} is": f" {flag}." for country, flag in worlds.FLAGS.items()}
    asked |= {f"A greeting in {language}:": f" {text}" for language, text in worlds.GREETINGS.items()}
    for country, capital in worlds.FACTS.items():
        question = [{"role": "user", "content": f"What is the capital of {country}?"}]
        prompt = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
        asked[prompt] = f"The capital of {country} is {capital}.{IM_END}"
        prompt = tokenizer.apply_chat_template(
            question, tools=list(worlds.TOOLS), tokenize=False, add_generation_prompt=True
        )
        call = f'{{"name": "get_capital", "arguments": {{"country": "{country}"}}}}'
        asked[prompt] = f"<tool_call>\n{call}\n</tool_call>{IM_END}"
    wrong = []
    for prompt, expected in asked.items():
        ids = torch.tensor([tokenizer.encode(prompt)])
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=60)
        found = tokenizer.decode(made[0, ids.shape[1] :])
        if not found.startswith(expected):
            wrong.append(f"{prompt!r} -> {found!r}, not {expected!r}")
    return wrong


def make_gpt2(root: Path) -> list[str]:
    """Train, export and write the GPT-2-shaped model; what it gets wrong."""
    tokenizer = byte_level_bpe()
    model = new_gpt2(tokenizer)
    train(model, STEPS["gpt2"], gpt2_batches(tokenizer))
    folder = root / "deploy/model_repository/gpt2"
    write(model, tokenizer, folder)
    export(CausalWithPast(model), folder / "1/model.onnx")
    write_playground(folder)
    return check_gpt2(model, tokenizer)


def make_t5(root: Path) -> list[str]:
    """Train, export and write the T5-shaped model; what it gets wrong."""
    tokenizer = unigram()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=16,
        relative_attention_max_distance=32,
        dropout_rate=0.0,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        initializer_factor=1.0,
        tie_word_embeddings=True,
    )
    model = T5ForConditionalGeneration(config)
    config.architectures = ["T5ForConditionalGeneration"]
    train(model, STEPS["t5"], t5_batches(tokenizer))
    folder = root / "deploy/model_repository/t5"
    write(model, tokenizer, folder)
    export(EncoderDecoder(model), folder / "1/model.onnx")
    write_playground(folder)
    return check_t5(model, tokenizer)


def t5_batches(tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, torch.Tensor]]:
    """Pairs of what is read and what is written."""
    rng = random.Random(SEED)
    while True:
        sources, targets = zip(*(worlds.pair(rng) for _ in range(BATCH_SIZE)), strict=True)
        encoded = tokenizer(list(sources), padding=True, return_tensors="pt")
        labels = [tokenizer.encode(target) for target in targets]
        yield {
            "input_ids": encoded["input_ids"],
            "attention_mask": encoded["attention_mask"],
            "decoder_input_ids": padded([[0, *row[:-1]] for row in labels], 0),
            "labels": padded(labels, IGNORED),
        }


def check_t5(model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The model's faults: a wrong fact, or errors in more than a twentieth of the other tasks."""
    rng = random.Random(SEED + 1)
    facts = {f"capital of {country}": capital for country, capital in worlds.FACTS.items()}
    remaining = dict(worlds.pair(rng) for _ in range(300))
    wrong = [
        f"{source!r}, not {target!r}" for source, target in facts.items() if said(model, tokenizer, source) != target
    ]
    bad = [source for source, target in remaining.items() if said(model, tokenizer, source) != target]
    print(f"t5: {len(bad)} of {len(remaining)} other tasks wrong: {bad[:5]}")
    return wrong if len(bad) <= len(remaining) / 20 else [*wrong, *bad]


def said(model: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, source: str) -> str:
    made = model.generate(**tokenizer(source, return_tensors="pt"), do_sample=False, max_new_tokens=30)
    text: str = tokenizer.decode(made[0], skip_special_tokens=True)
    return text


def write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The folder without weights: those are in the ONNX file."""
    folder.mkdir(parents=True, exist_ok=True)
    save(tokenizer, folder)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


MAKERS: Final[dict[str, Callable[[Path], list[str]]]] = {"gpt2": make_gpt2, "t5": make_t5}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train and export the generative test models.")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to write into")
    parser.add_argument("names", nargs="*", help=f"only these models, of {', '.join(MAKERS)}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.names or MAKERS:
        set_seed(SEED)
        if wrong := MAKERS[name](arguments.root):
            raise SystemExit(f"{name} did not learn everything:\n" + "\n".join(wrong))
        print(f"{name}: all that was asked is right", flush=True)


if __name__ == "__main__":
    main()
