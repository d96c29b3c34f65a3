"""Texts of all kinds for hypothesis: of a vocabulary's pieces, added tokens, odd characters and all sorts of space."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

SPACES = (
    *(" ",) * 12, "  ", "   ", "\t", "\n", "\r\n", " \n ", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\u00a0", "\u1680",
    "\u180e", "\u2003", "\u200b", "\u2028", "\u2029", "\u202f", "\u3000", "\ufeff", "",
)  # fmt: skip
ADDED = (
    "[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[mask]", "<mask>", "<s>", "</s>", "<|endoftext|>", "[ENT]", "<ent>",
    "new_token", "NEW_TOKEN", "newtoken", "zoë", "Zoë", "a-b", "A-b",
)  # fmt: skip
ODD = (
    "\x00", "\x01", "\x7f", "\ufffd", "\ue000", "\u0301", "\u0308", "\u0338", "\u0345", "\u200d", "é", "E\u0301", "İ",
    "ß", "ﬁ", "ǅ", "Σ", "ς", "ΟΔΟΣ", "中", "国文", "東京", "\uf900", "한국", "ห", "ำ", "हिन्दी", "مرحبا", "עברית", "😀",
    "👩‍👩‍👧‍👦", "🇫🇷", "½", "²", "①", "ﷺ", "´", "¨", "\u1fee", "…", "—", "“why”", "¿", "€", "don't", "'s", "'LL", "’s",
    "``x''", "e.g.", "(see", "it's.", "a/b?c=d&e_f", "1,000.5", "x" * 33, "y" * 101, "\U0001f3fd", "\U0010ffff",
)  # fmt: skip


def any_texts(vocabulary: Sequence[str]) -> st.SearchStrategy[str]:
    """Any Unicode text, and texts made of pieces, many of which occur again and again."""
    pieces = st.one_of(
        st.sampled_from(sorted(vocabulary)),
        st.sampled_from(ADDED),
        st.sampled_from(ODD),
        st.text(st.characters(codec="utf-8"), max_size=3),
        st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=5),
    )
    usual = st.lists(pieces, max_size=12).map(" ".join)
    mixed = st.lists(st.tuples(pieces, st.sampled_from(SPACES)), max_size=12)
    return st.one_of(
        usual,
        mixed.map(lambda parts: "".join(piece + space for piece, space in parts)),
        mixed.map(lambda parts: "".join(space + piece for piece, space in parts)),
        st.text(st.characters(codec="utf-8"), max_size=40),
    )
