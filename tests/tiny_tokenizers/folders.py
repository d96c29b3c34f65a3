"""Model folders with tiny tokenizers, in the layouts of published models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, normalizers, pre_tokenizers, processors

from tests.tiny_tokenizers.trained import (
    BERT,
    ROBERTA,
    byte_level,
    llama,
    roberta,
    save,
    sentencepiece_model,
    unigram,
    wordpiece,
)

GENERIC = {"tokenizer_class": "PreTrainedTokenizerFast"}
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

LLAMA3_WORDS = QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def bert(settings: dict[str, Any] | None = None, *, lowercase: bool = True, **files: Any) -> Callable[[Path], Path]:
    files = {"config": {"model_type": "bert", "max_position_embeddings": 512}} | files
    return lambda folder: save(folder, wordpiece(lowercase=lowercase), settings=settings, **files)


def old_bert(folder: Path) -> Path:
    """Files as in 2020: no type of the model, truncation without a direction, padding to 128."""
    tokenizer = wordpiece(lowercase=True)
    tokenizer.enable_padding(length=128)
    document = json.loads(tokenizer.to_str())
    document["truncation"] = {"max_length": 128, "strategy": "LongestFirst", "stride": 0}
    del document["model"]["type"]
    return save(folder, None, settings={"do_lower_case": True}, config={"model_type": "bert"}, tokenizer_json=document)


def old_gpt2(folder: Path) -> Path:
    """Merges as lines of text, not as pairs."""
    document = json.loads(byte_level(["<|endoftext|>"]).to_str())
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]
    return save(folder, None, config={"model_type": "gpt2"}, tokenizer_json=document)


def albert_with_post_processor(folder: Path) -> Path:
    tokenizer = unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP] [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return save(folder, tokenizer, settings={"add_prefix_space": False}, config={"model_type": "albert"})


def added_to_bert(folder: Path) -> Path:
    """Added tokens of each kind, two of them outside the vocabulary."""
    tokenizer = wordpiece(lowercase=True)
    tokenizer.add_tokens([AddedToken("new_token"), AddedToken("newtoken", single_word=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("[ENT]", lstrip=True, rstrip=True)])
    return save(folder, tokenizer, settings={**GENERIC, "mask_token": "[MASK]"}, config={"model_type": "modernbert"})


def added_decoder(folder: Path) -> Path:
    """added_tokens_decoder as in save_pretrained, with ids after the vocabulary's end."""
    tokenizer = wordpiece(lowercase=True)
    size = tokenizer.get_vocab_size()
    flags = {"lstrip": False, "rstrip": False, "single_word": False}
    decoder = {
        str(number): {"content": token, "normalized": False, "special": True, **flags}
        for number, token in enumerate(BERT)
    }
    decoder[str(size)] = {"content": "new_token", "normalized": True, "special": False, **flags}
    decoder[str(size + 3)] = {"content": "[ENT]", "normalized": False, "special": True, **flags}
    settings = {"tokenizer_class": "BertTokenizer", "added_tokens_decoder": decoder, "do_lower_case": True}
    return save(folder, tokenizer, settings=settings, config={"model_type": "bert"})


def special_map(folder: Path) -> Path:
    """Files of older versions: special_tokens_map.json and added_tokens.json."""
    tokenizer = wordpiece(lowercase=True)
    mask = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    return save(
        folder,
        tokenizer,
        settings={"tokenizer_class": "BertTokenizer"},
        special_tokens_map_json={"mask_token": mask, "additional_special_tokens": ["[ENT]", "<ent>"]},
        added_tokens_json={"[ENT]": tokenizer.get_vocab_size()},
        config={"model_type": "bert"},
    )


def generic_roberta(folder: Path) -> Path:
    settings = {**GENERIC, "mask_token": "<mask>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return save(folder, roberta(), settings=settings, config={"model_type": "modernbert"})


def of_roberta(settings: dict[str, Any], *, model_type: str = "roberta") -> Callable[[Path], Path]:
    config = {"model_type": model_type, "max_position_embeddings": 514, "pad_token_id": 1}
    return lambda folder: save(folder, roberta(), settings=settings, config=config)


def of_bytes(settings: dict[str, Any], model_type: str, *, words: str | None = None) -> Callable[[Path], Path]:
    special, config = ["<|endoftext|>", "<|padding|>"], {"model_type": model_type}
    return lambda folder: save(folder, byte_level(special, words=words), settings=settings, config=config)


def of_llama(settings: dict[str, Any], model_type: str = "llama") -> Callable[[Path], Path]:
    settings = {"tokenizer_class": "LlamaTokenizer", **settings}
    return lambda folder: save(folder, llama(), settings=settings, config={"model_type": model_type})


def without_post_processor(folder: Path) -> Path:
    tokenizer = byte_level(["<|endoftext|>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.NFC()])
    tokenizer.enable_truncation(7, direction="left")
    tokenizer.enable_padding(direction="left", pad_id=0, pad_token="<|endoftext|>")
    document = {**json.loads(tokenizer.to_str()), "post_processor": None}
    return save(folder, None, settings=GENERIC, config={}, tokenizer_json=document)


def of_unigram(
    settings: dict[str, Any], model_type: str, special: list[str], unk: str = "<unk>"
) -> Callable[[Path], Path]:
    return lambda folder: save(folder, unigram(special, unk), settings=settings, config={"model_type": model_type})


def generic_unigram(folder: Path) -> Path:
    tokenizer = unigram(ROBERTA)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return save(folder, tokenizer, settings={**GENERIC, "pad_token": "<pad>", "mask_token": "<mask>"}, config={})


BERT_CLASS = {"tokenizer_class": "BertTokenizer"}
QWEN = of_bytes({"tokenizer_class": "Qwen2Tokenizer", "bos_token": None}, "qwen3", words=QWEN_WORDS)
DEBERTA = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]

FOLDERS: dict[str, Callable[[Path], Path]] = {
    "bert": bert({**BERT_CLASS, "do_lower_case": True}),
    "bert-no-settings": bert(),
    "bert-old-file": old_bert,
    "bert-no-config": bert({"tokenizer_class": "BertTokenizerFast"}, config=None),
    "bert-neither": bert(config=None),
    "bert-cased": bert({**BERT_CLASS, "do_lower_case": False}, lowercase=False),
    "bert-cased-over-lowercasing-file": bert({**BERT_CLASS, "do_lower_case": False}),
    "bert-lowercasing-over-cased-file": bert({**BERT_CLASS, "do_lower_case": True}, lowercase=False),
    "bert-keep-accents": bert({**BERT_CLASS, "strip_accents": False}),
    "bert-strip-cased": bert({**BERT_CLASS, "strip_accents": True, "do_lower_case": False}),
    "bert-chinese-whole": bert({**BERT_CLASS, "tokenize_chinese_chars": False}),
    "bert-left": bert({**BERT_CLASS, "padding_side": "left", "truncation_side": "left"}),
    "bert-clean-up": bert({**BERT_CLASS, "clean_up_tokenization_spaces": True}),
    "bert-extra": bert({**BERT_CLASS, "extra_special_tokens": ["[ENT]", "<ent>"], "image_token": "<image>"}),
    "bert-extra-named": bert({**BERT_CLASS, "extra_special_tokens": {"entity": "[ENT]"}}),
    "bert-additional": bert({**BERT_CLASS, "additional_special_tokens": ["[ENT]", "<ent>"]}),
    "bert-other-mask": bert({**BERT_CLASS, "mask_token": "<mask>"}),
    "bert-split-special": bert({**BERT_CLASS, "split_special_tokens": True}),
    "bert-added-decoder": added_decoder,
    "bert-special-map": special_map,
    "distilbert": bert({"tokenizer_class": "DistilBertTokenizer"}, config={"model_type": "distilbert"}),
    "electra": bert({"tokenizer_class": "ElectraTokenizer"}, config={"model_type": "electra"}),
    "mpnet": bert(
        {"tokenizer_class": "MPNetTokenizer", "bos_token": "[CLS]", "cls_token": "[CLS]", "mask_token": "<mask>"},
        config={"model_type": "mpnet", "max_position_embeddings": 514},
    ),
    "generic-wordpiece-added": added_to_bert,
    "roberta": of_roberta({"tokenizer_class": "RobertaTokenizer"}),
    "roberta-no-class": of_roberta({}),
    "roberta-prefix-space": of_roberta({"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    "roberta-untrimmed": of_roberta({"tokenizer_class": "RobertaTokenizer", "trim_offsets": False}),
    "bart": of_roberta({"tokenizer_class": "BartTokenizer"}, model_type="bart"),
    "generic-roberta": generic_roberta,
    "gpt2": of_bytes({"tokenizer_class": "GPT2Tokenizer"}, "gpt2"),
    "gpt2-prefix-space": of_bytes({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, "gpt2"),
    "gpt2-clean-up": of_bytes({"clean_up_tokenization_spaces": True}, "gpt2"),
    "gpt2-old-file": old_gpt2,
    "gpt-neox": of_bytes({"tokenizer_class": "GPTNeoXTokenizer"}, "gpt_neox"),
    "qwen": QWEN,
    "qwen-of-another-file": of_bytes({"tokenizer_class": "Qwen2Tokenizer"}, "qwen3"),
    "llama": of_llama({"add_bos_token": True, "add_eos_token": False}),
    "llama-fast": of_llama({"tokenizer_class": "LlamaTokenizerFast", "pad_token": "</s>"}),
    "llama-legacy": of_llama({"legacy": True}),
    "llama-legacy-null": of_llama({"legacy": None}),
    "llama-no-prefix-space": of_llama({"add_prefix_space": False}),
    "llama-clean-up": of_llama({"clean_up_tokenization_spaces": True}),
    "llama-no-class": of_llama({"tokenizer_class": None}),
    "llama-byte-level": of_bytes({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "llama"),
    "idefics2": of_llama({}, "idefics2"),
    "mistral": of_llama({}, "mistral"),
    "mixtral-byte-level": of_bytes({"tokenizer_class": "LlamaTokenizerFast"}, "mixtral"),
    "granite": of_bytes({"tokenizer_class": "GPT2Tokenizer"}, "granite"),
    "granite-llama-class": of_bytes({"tokenizer_class": "LlamaTokenizerFast"}, "granite"),
    "olmo2": of_bytes({"tokenizer_class": "GPT2Tokenizer"}, "olmo2"),
    "olmo-llama-class": of_bytes({"tokenizer_class": "LlamaTokenizer"}, "olmo"),
    "hyperclovax": of_bytes({"tokenizer_class": "GPT2Tokenizer"}, "hyperclovax"),
    "hyperclovax-vision-llama-class": of_bytes({"tokenizer_class": "LlamaTokenizer"}, "hyperclovax_vision_v2"),
    "internlm2-llama-class": of_llama({}, "internlm2"),
    "deberta": of_bytes({"tokenizer_class": "DebertaTokenizer"}, "deberta"),
    "generic-bytes-no-post-processor": without_post_processor,
    "xlm-roberta": of_unigram({"tokenizer_class": "XLMRobertaTokenizer"}, "xlm-roberta", ROBERTA),
    "camembert": of_unigram({"tokenizer_class": "CamembertTokenizer"}, "camembert", ROBERTA),
    "albert": of_unigram({}, "albert", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]),
    "albert-cased": of_unigram(
        {"do_lower_case": False, "keep_accents": True}, "albert", ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    ),
    "albert-own-post-processor": albert_with_post_processor,
    "t5": of_unigram({"tokenizer_class": "T5Tokenizer", "extra_ids": 4}, "t5", ["<pad>", "</s>", "<unk>"]),
    "xlnet": of_unigram(
        {"tokenizer_class": "XLNetTokenizer"},
        "xlnet",
        ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"],
    ),
    "deberta-v2": of_unigram({"split_by_punct": True}, "deberta-v2", DEBERTA, "[UNK]"),
    "generic-unigram": generic_unigram,
}
"""Functions that write a folder with a tokenizer.json, by name."""


def vocab_txt_only(folder: Path) -> Path:
    vocab = wordpiece(lowercase=True).get_vocab()
    lines = "".join(f"{token}\n" for token in sorted(vocab, key=lambda token: vocab[token]))
    return save(folder, None, settings=BERT_CLASS, config={"model_type": "bert"}, vocab_txt=lines)


def vocab_and_merges_only(folder: Path) -> Path:
    save(folder, None, settings={"tokenizer_class": "RobertaTokenizer"}, config={"model_type": "roberta"})
    byte_level(ROBERTA).model.save(str(folder))
    return folder


def sentencepiece_only(folder: Path) -> Path:
    save(folder, None, settings={"tokenizer_class": "T5Tokenizer"}, config={"model_type": "t5"})
    sentencepiece_model(folder / "spiece.model")
    return folder


def rare_class(folder: Path) -> Path:
    """A class without a recipe: BigBird builds its own pipeline."""
    special = ["<pad>", "</s>", "<s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    settings = {"tokenizer_class": "BigBirdTokenizer"}
    return save(folder, unigram(special), settings=settings, config={"model_type": "big_bird"})


def byt5(folder: Path) -> Path:
    """A tokenizer written in Python, without a vocabulary file."""
    return save(folder, None, settings={"tokenizer_class": "ByT5Tokenizer"}, config={"model_type": "byt5"})


BY_TRANSFORMERS: dict[str, Callable[[Path], Path]] = {
    "vocab.txt": vocab_txt_only,
    "vocab.json-and-merges.txt": vocab_and_merges_only,
    "spiece.model": sentencepiece_only,
    "rare-class": rare_class,
    "byt5": byt5,
}
"""Functions that write a folder which only transformers can load, by name."""
