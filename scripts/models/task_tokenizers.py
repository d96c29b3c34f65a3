"""The tokenizers of the predictive test models, one of each common kind."""

from __future__ import annotations

import io
import json
import string
from collections.abc import Callable
from typing import Final

import sentencepiece
from demo_tokenizer import train_vocabulary
from task_sentences import pieces
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, RobertaTokenizer, XLMRobertaTokenizer

SIZE: Final = 900
ROBERTA_TOKENS: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
LOWER: Final = string.ascii_lowercase + string.digits + "ßæøłđœþðαθ北京東日本"


def uncased() -> PreTrainedTokenizerBase:
    """BERT's WordPiece, lower-casing and without accents."""
    return BertTokenizer(vocab=train_vocabulary(pieces(), size=SIZE, letters=LOWER), do_lower_case=True)


def cased() -> PreTrainedTokenizerBase:
    """BERT's WordPiece, case and accents kept."""
    letters = LOWER + string.ascii_uppercase + "éüãëôçÉÜß"
    letters = "".join(dict.fromkeys(letters))
    vocabulary = train_vocabulary(pieces(), size=SIZE, letters=letters, lowercase=False)
    return BertTokenizer(vocab=vocabulary, do_lower_case=False)


def byte_level() -> PreTrainedTokenizerBase:
    """RoBERTa's byte-level BPE, where a word at the start differs from the same word after a space."""
    return _roberta(prefix=False)


def byte_level_prefixed() -> PreTrainedTokenizerBase:
    """The same with a space put before the first word: what models for pre-split words use."""
    return _roberta(prefix=True)


def unigram() -> PreTrainedTokenizerBase:
    """XLM-R's Unigram model, trained by SentencePiece: the trainer of tokenizers gives other pieces at every run."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pieces()),
        model_writer=written,
        vocab_size=SIZE - 2,
        model_type="unigram",
        character_coverage=1.0,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    plain = [number for number in range(len(trained)) if not (trained.IsControl(number) or trained.IsUnknown(number))]
    scores = [(trained.IdToPiece(number), round(trained.GetScore(number), 6)) for number in plain]
    return XLMRobertaTokenizer(vocab=[*((token, 0.0) for token in ROBERTA_TOKENS), *scores])


def _roberta(prefix: bool) -> PreTrainedTokenizerBase:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=list(ROBERTA_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(pieces(), trainer)
    document = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in document["merges"]]
    return RobertaTokenizer(vocab=document["vocab"], merges=merges, add_prefix_space=prefix)


TOKENIZERS: Final[dict[str, Callable[[], PreTrainedTokenizerBase]]] = {
    "uncased": uncased,
    "cased": cased,
    "byte_level": byte_level,
    "byte_level_prefixed": byte_level_prefixed,
    "unigram": unigram,
}
"""Name of a folder under tests/task_models/tokenizers -> what makes the tokenizer in it."""
