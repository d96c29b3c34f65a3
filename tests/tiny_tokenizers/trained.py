"""Tiny trained tokenizers, and their files in the layout of a model repository."""

from __future__ import annotations

import io
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.tiny_tokenizers.corpus import CORPUS

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def wordpiece(*, lowercase: bool, strip_accents: bool | None = None) -> Tokenizer:
    """A tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=400, special_tokens=BERT, show_progress=False)
    )
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )
    return tokenizer


def byte_level(special: list[str], *, prefix: bool = False, words: str | None = None) -> Tokenizer:
    """A tokenizer like GPT-2's, or like Qwen's with the pattern ``words``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if words is not None:
        parts = [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(prefix, use_regex=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta(*, prefix: bool = False) -> Tokenizer:
    """A byte-level tokenizer with <s> and </s>, whose <mask> takes the space before it."""
    tokenizer = byte_level(ROBERTA[:4], prefix=prefix)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    return tokenizer


def llama(*, prefix: bool = True) -> Tokenizer:
    """A tokenizer with the stages of Llama 2's file: SentencePiece's BPE with byte tokens, <s> before a text."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
        ),
    )
    bare = json.loads(tokenizer.to_str())
    bare["added_tokens"] = [token for token in bare["added_tokens"] if token["content"] in special]
    tokenizer = Tokenizer.from_str(json.dumps(bare))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def unigram(special: list[str], unk: str = "<unk>") -> Tokenizer:
    """A SentencePiece-like tokenizer with the pipeline of XLM-R's file."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=300, special_tokens=special, unk_token=unk, show_progress=False),
    )
    return tokenizer


def xlm_roberta() -> Tokenizer:
    """A tokenizer with XLM-RoBERTa's stages: SentencePiece's normalizer nmt_nfkc, and words separated by whitespace."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(charsmap())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(vocab_size=300, special_tokens=ROBERTA[:4], unk_token="<unk>", show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@cache
def charsmap() -> bytes:
    """SentencePiece's character replacement table nmt_nfkc, which most of its models contain."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        sentencepiece_model(path)
        model: Any = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())  # type: ignore[attr-defined]
    table: bytes = model.normalizer_spec.precompiled_charsmap
    return table


def sentencepiece_model(path: Path, **options: Any) -> None:
    """Trains a SentencePiece Unigram model with T5's layout of special ids, and writes it to a file."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=writer,
        vocab_size=170,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, **options},
    )
    path.write_bytes(writer.getvalue())


def save(
    folder: Path,
    tokenizer: Tokenizer | None,
    *,
    settings: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    **files: Any,
) -> Path:
    """Writes tokenizer.json, tokenizer_config.json, config.json and others (``vocab_txt=...`` is vocab.txt)."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config_json": settings, "config_json": config, **files}.items():
        if content is not None:
            stem, _, suffix = name.rpartition("_")
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{stem}.{suffix}").write_text(text, encoding="utf-8")
    return folder
