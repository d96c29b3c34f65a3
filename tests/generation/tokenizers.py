"""Tokenizers with byte fallback, as in Llama and Gemma, which tests/tiny_tokenizers lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from hf_transformer.tokenizer import tokenizer
from tests.tiny_tokenizers.corpus import CORPUS
from tests.tiny_tokenizers.folders import BY_TRANSFORMERS, FOLDERS
from tests.tiny_tokenizers.trained import byte_level, save

SPECIAL = ["<unk>", "<s>", "</s>"]
GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def with_byte_fallback(*, strips: bool) -> Tokenizer:
    """BPE over characters with a token per byte; ``strips`` drops the first space of a text, as Llama does."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    space = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *space] if strips else space)
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made.train_from_iterator(
        [text for text in CORPUS if text.isascii()],
        trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *bytes_], show_progress=False),
    )
    # The trainer wrongly marks the byte tokens as special.
    document = json.loads(made.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in SPECIAL]
    plain = Tokenizer.from_str(json.dumps(document))
    plain.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return plain


def llama(folder: Path) -> Path:
    return save(folder, with_byte_fallback(strips=True), settings=GENERIC, config={"model_type": "llama"})


def gemma(folder: Path) -> Path:
    return save(folder, with_byte_fallback(strips=False), settings=GENERIC, config={"model_type": "gemma3"})


def bytes_in_a_row(folder: Path) -> Path:
    """Byte-level BPE whose decoder is wrapped in a sequence."""
    made = byte_level(["<|endoftext|>"])
    made.decoder = decoders.Sequence([decoders.ByteLevel()])
    return save(folder, made, settings={"tokenizer_class": "PreTrainedTokenizerFast"}, config={})


def without_unknown(folder: Path, letters: str = "ACGT", *, drops: bool = False) -> Path:
    """Vocabulary of single letters without an unknown token, as in genome models.

    Other text can't be encoded, or is dropped with ``drops``.
    """
    words = {word: number for number, word in enumerate([*SPECIAL[1:], *letters])}
    made = Tokenizer(models.BPE(words, []) if drops else models.WordLevel(words))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL[1:])
    settings = {name: value for name, value in GENERIC.items() if name != "unk_token"}
    return save(folder, made, settings=settings, config={"model_type": "gpt2"})


BYTE_TOKENS = ("llama-", "idefics2", "mistral", "internlm2")
"""Beginnings of the names of FOLDERS whose tokenizers have a token for each byte."""
FALLBACK: dict[str, Callable[[Path], Path]] = {"llama": llama, "gemma": gemma} | {
    name: make for name, make in FOLDERS.items() if name.startswith(BYTE_TOKENS) and name != "llama-byte-level"
}
ALL: dict[str, Callable[[Path], Path]] = FOLDERS | BY_TRANSFORMERS | FALLBACK | {"bytes-in-a-row": bytes_in_a_row}


def load(folder: Path) -> tokenizer.Tokenizer:
    """Loads the service's tokenizer of a folder."""
    config = folder / "config.json"
    return tokenizer.load_tokenizer(folder, json.loads(config.read_text()) if config.exists() else {}, max_model_len=64)
