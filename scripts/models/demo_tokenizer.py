"""The demo model's vocabulary: a lower-casing WordPiece one, trained on the model's own sentences."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertTokenizer

VOCABULARY_SIZE: Final = 1024
MAX_LENGTH: Final = 128
SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS: Final = string.ascii_lowercase + string.digits + "ßæøłđœþð"


def train_vocabulary(
    sentences: Iterable[str], *, size: int = VOCABULARY_SIZE, letters: str = _LETTERS, lowercase: bool = True
) -> dict[str, int]:
    """Train a WordPiece vocabulary of that many pieces; the same sentences give the same ids.

    Every letter is given to the trainer up front, alone and as a continuation (##a). So any Latin text
    tokenizes; and the result is reproducible: pieces that the trainer finds by itself get their ids in the order of a
    hash map, which changes from run to run and decides ties between merges.
    """
    trained = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    trained.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces = [*SPECIAL_TOKENS, *string.punctuation, *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(vocab_size=size, min_frequency=1, special_tokens=pieces, show_progress=False)
    trained.train_from_iterator(sentences, trainer)
    return dict(sorted(trained.get_vocab().items(), key=lambda item: item[1]))


def build_tokenizer(sentences: Iterable[str], whole_words: Iterable[str]) -> BertTokenizer:
    """Return an uncased BERT tokenizer for the sentences.

    Raises ValueError if the vocabulary has another size than VOCABULARY_SIZE (which the Triton configurations state)
    or if one of whole_words is not a single token.
    """
    vocabulary = train_vocabulary(sentences)
    if len(vocabulary) != VOCABULARY_SIZE:
        raise ValueError(f"the vocabulary has {len(vocabulary)} pieces, not {VOCABULARY_SIZE}")
    if split := [word for word in whole_words if word not in vocabulary]:
        raise ValueError(f"these names are not whole tokens: {', '.join(split)}")
    return BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=MAX_LENGTH)


def save_tokenizer(tokenizer: BertTokenizer, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and vocab.txt (one piece per line, in the order of ids)."""
    tokenizer.save_pretrained(folder)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
