"""Training text for tiny tokenizers, and texts to encode with them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

CORPUS = """
Paris is the capital of France. The capital of Italy is Rome, and Berlin is the capital of Germany.
The quick brown fox jumps over the lazy dog; 12,345 dogs didn't mind. "Why?" she asked. It's 3.14 o'clock!
Das Mädchen aß Äpfel in Köln. L'élève a été à l'hôtel près de la forêt. El niño comió piñas en España.
Наш дом. 東京は日本の首都です。 北京是中国的首都。 서울은 한국의 수도이다.
Tokenizers split words into pieces: unbelievable, tokenization, transformers, internationalization, restarting.
I can't, you won't, they've gone, we're here, he's late, I'm fine, she'd know, who'll come?
email@example.com visited https://example.com/a?b=c&d=e on 2024-01-31 at 10:30 (UTC+02:00).
""".strip().splitlines()

TEXTS = [
    "",
    " ",
    "   \t\n ",
    "a",
    "Paris",
    "paris is the capital of france .",
    "The CAPITAL of Germany is BERLIN!",
    "  leading and trailing spaces  ",
    "two  spaces   three\tTabs\nnew\r\nlines",
    "unbelievable internationalization retokenizations",
    "Äpfel élève niño Über Straße İstanbul ǅ ﬁ ﬀ",
    "A\u0308pfel e\u0301le\u0300ve n\u0303o \u0301\u0302 combining",
    "東京 is 日本 and 서울 한국 مرحبا עברית हिन्दी ไทย",
    "Наш Город ЖИВ",
    "emoji 😀 👩‍👩‍👧‍👦 🇫🇷 ❤️ 👍🏽 end",
    "control \x00 \x01 \x7f \x85 chars \u200b zero \u200d width \ufeff bom \ufffd replaced \ue000 private",
    "\u00a0no\u2003break\u3000space\u2028line\u2029para",
    "[CLS] inside [SEP] the [MASK] text [PAD] [UNK]",
    "<s>inside</s> the <mask> text <pad> <unk> <|endoftext|> <extra_id_0>",
    "the[MASK]glued<mask>tokens [mask] < mask >",
    "  [MASK]  spaces  <mask>  around  ",
    "new_token in NEW_TOKEN and newtoken, [ENT] and <ent> [ent]",
    "``quotes'' and ''others`` ' n't 's 've",
    "can't won't they've I'm he's we're didn't . , ? !",
    "1234567890 3.14 1,000,000 10% $5 #tag @user",
    "https://example.com/a?b=c&d=e#f user@example.com",
    "▁meta ▁▁space _ under_score",
    "x" * 150,
    "word " * 80,
    "Ünïcödé " * 40,
    "😀" * 60,
    "\U0001f600a\U00010348b\U0001f1e6",
    "ﷺ ㍿ ½ ² ①",
    "a.b.c...d,,e;;f::g--h__i",
    "\\ / | < > { } ( ) [ ] ^ ~ `",
]

PAIRS = [
    ("Paris is the capital.", "Is it?"),
    ("", ""),
    ("", "second only"),
    ("first only", ""),
    ("word " * 60, "short"),
    ("short", "word " * 60),
    ("left side " * 40, "right side " * 40),
    ("emoji 😀 [SEP]", "niño </s> Köln"),
]


def grid() -> list[str]:
    """About two hundred texts: TEXTS and the corpus, also joined, in upper case and in title case."""
    mixed = [*TEXTS, *CORPUS]
    joined = [f"{first} {second}" for first, second in zip(mixed, reversed(mixed), strict=True)]
    return [*mixed, *joined, *(text.upper() for text in mixed), *(text.title() for text in mixed)]


# Pieces of texts for hypothesis: spaces, added tokens and odd characters

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
    """Any Unicode text, and texts made of pieces, many of them repeated."""
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
