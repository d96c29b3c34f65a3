"""Folders of tiny tokenizers for translation, as transformers' own classes save them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.tiny_tokenizers.corpus import CORPUS
from tests.tiny_tokenizers.trained import sentencepiece_model

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
MODEL: dict[str, Any] = {"is_encoder_decoder": True, "decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}


def _config(folder: Path, model_type: str, architecture: str) -> Path:
    config = {**MODEL, "model_type": model_type, "architectures": [architecture], "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def nllb(folder: Path, **options: Any) -> Path:
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made: Any = transformers.NllbTokenizer
    made(vocab=model["vocab"], merges=merges, **options).save_pretrained(folder)
    return _config(folder, "m2m_100", "M2M100ForConditionalGeneration")


def mbart(folder: Path, name: str = "MBartTokenizer", **options: Any) -> Path:
    sentencepiece_model(folder.with_suffix(".spm"), pad_id=-1, eos_id=2, unk_id=0, bos_id=1)
    pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder.with_suffix(".spm")))
    vocabulary = [(token, 0.0) for token in SPECIAL]
    vocabulary += [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(3, pieces.get_piece_size())]
    getattr(transformers, name)(vocab=vocabulary, **options).save_pretrained(folder)
    return _config(folder, "mbart", "MBartForConditionalGeneration")


def m2m100(folder: Path) -> Path:
    folder.mkdir()
    spm = folder / "sentencepiece.bpe.model"
    sentencepiece_model(spm, pad_id=-1, eos_id=2, unk_id=0, bos_id=1)
    pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    tokens = [*SPECIAL, *(pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()))]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer", "src_lang": "en"}))
    return _config(folder, "m2m_100", "M2M100ForConditionalGeneration")


def marian(folder: Path, languages: tuple[str, ...] = ("fra", "deu", "cmn_Hans")) -> Path:
    folder.mkdir()
    for name in ("source.spm", "target.spm"):
        sentencepiece_model(folder / name)
    pieces: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    tokens = ["</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()))]
    tokens += [*(f">>{language}<<" for language in languages), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "mul"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {**MODEL, "model_type": "marian", "architectures": ["MarianMTModel"], "eos_token_id": 0}
    number = len(tokens) - 1
    config |= {"decoder_start_token_id": number, "pad_token_id": number, "max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "nllb": nllb,
    "nllb-legacy": lambda folder: nllb(folder, legacy_behaviour=True),
    "nllb-german": lambda folder: nllb(folder, src_lang="deu_Latn", tgt_lang="fra_Latn"),
    "mbart": mbart,
    "mbart50": lambda folder: mbart(folder, "MBart50Tokenizer", src_lang="de_DE"),
    "m2m100": m2m100,
    "marian": marian,
}
