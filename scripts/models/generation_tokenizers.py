"""The tokenizers of the generative test models: GPT-2's byte-level BPE and T5's Unigram."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Final

import generation_sentences as worlds
import sentencepiece
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, PreTrainedTokenizerBase, T5Tokenizer

BPE_SIZE: Final = 768
UNIGRAM_SIZE: Final = 480
END: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
TOOL_TOKENS: Final = ("<tool_call>", "</tool_call>")
"""Tokens of their own that are no special ones: they stay when a text is decoded without those."""
CHAT_TEMPLATE: Final = Path(__file__).with_name("chat_template.jinja")


def byte_level_bpe() -> PreTrainedTokenizerBase:
    """GPT-2's, trained on everything but other scripts: their characters are two to four tokens each."""
    rng = random.Random(0)
    texts = [worlds.fact(rng, country) for country in worlds.FACTS for _ in range(8)]
    texts += [line for drawn in (worlds.chat, worlds.tool_chat) for _ in range(300) for line in _lines(drawn(rng))]
    texts = [text for text in texts if text.isascii()]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = [END, IM_START, IM_END, *TOOL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    document = json.loads(trained.to_str())["model"]
    tokenizer = GPT2Tokenizer(
        vocab=document["vocab"], merges=[tuple(merge) for merge in document["merges"]], model_max_length=256
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [IM_START, IM_END]})
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in TOOL_TOKENS])
    tokenizer.chat_template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    if len(tokenizer) != BPE_SIZE:
        raise ValueError(f"the vocabulary has {len(tokenizer)} tokens, not {BPE_SIZE}")
    return tokenizer


def _lines(chat: worlds.Chat) -> list[str]:
    """The texts of a chat without what the template puts around them."""
    lines = [json.dumps(tool) for tool in chat.tools]
    for message in chat.messages:
        lines.append(message["content"])
        lines += [json.dumps({"name": "", **call["function"]}) for call in message.get("tool_calls", ())]
    template = CHAT_TEMPLATE.read_text(encoding="utf-8")
    return [*lines, *template.split("'")[1::2]]


def unigram() -> PreTrainedTokenizerBase:
    """T5's, trained by SentencePiece: the trainer of tokenizers gives other pieces at every run."""
    rng = random.Random(0)
    texts = [text for _ in range(4000) for text in worlds.pair(rng)]
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=written,
        vocab_size=UNIGRAM_SIZE,
        model_type="unigram",
        character_coverage=1.0,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(trained.IdToPiece(number), round(trained.GetScore(number), 6)) for number in range(3, len(trained))]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=128)


def save(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, the chat template in the latter."""
    tokenizer.save_pretrained(folder)
    template = folder / "chat_template.jinja"
    if template.exists():
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["chat_template"] = template.read_text(encoding="utf-8")
        path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        template.unlink()
