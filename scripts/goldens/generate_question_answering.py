"""Compute the question_answering goldens with the pipeline of transformers 4, since 5 has none.

Needs an environment of its own: torch, "transformers>=4.57,<5" and onnx.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers

from scripts.goldens.golden_files import TOLERANCE, generate, must_agree, near_tie
from tests.goldens.checkpoints import checkpoint
from tests.goldens.hard_texts import HARD_TEXTS

# The questions and contexts of the question_answering goldens.

_PARIS: Final = "The capital of France is Paris."
_THERE: Final = "It was in 1984. Anna Smith works there. The house is near Berlin."
_FILLER: Final = "There are many countries and many cities, some large and some small. "

SENSIBLE: Final[tuple[tuple[str, str, str], ...]] = (
    ("What is the capital of France?", _PARIS, "Paris"),
    ("what is the capital of japan", "Hello world. Tokyo is the capital of Japan.", "Tokyo"),
    ("Who works there?", _THERE, "Anna Smith"),
    ("Where is it?", _THERE, "Berlin"),
    ("When was it?", _THERE, "1984"),
)
"""(question, context, answer that must come out)."""

CONTEXTS: Final[dict[str, tuple[str, str]]] = {
    **{f"trained_{index}": (question, context) for index, (question, context, _) in enumerate(SENSIBLE)},
    "two_capitals": ("What is the capital of Italy?", "The capital of Spain is Madrid. The capital of Italy is Rome."),
    "no_answer": ("When was it?", "Thank you very much."),
    "accents": ("Who works there?", "It was in 1984. Zoe\u0308 Mu\u0308ller works there, e\u0301."),
    "turkish_dotted_i": ("Where is it?", "\u0130\u0130\u0130 \u0130van. It is in \u0130stanbul."),
    "emoji": ("Who works there? 😀", "👩‍👩‍👧‍👦 Anna Smith 👩🏽‍💻 works there 🎉. It was in 2001."),
    "chinese": ("Where is it?", "It is in 北京. 我爱北京天安门。"),
    "word_of_pieces": ("Who works there?", "Xqzvwkalomi Rutenbarvos works there."),
    "same_answer_twice": ("Where is it?", "It is in Berlin. We live in BERLIN. The house is near berlin."),
    "newlines": ("When\nwas it?", "It\nwas\tin\r\n\n1984.\n"),
    "cls_in_context": ("Where is it?", "[CLS] It is in [SEP] Berlin [MASK]."),
    "hyphens": ("Who is it?", "It was Anna Tanaka-Rossi, not Liam O'Brien."),
    "one_word": ("Who?", "Anna"),
    "long": ("What is the capital of France?", _FILLER * 12 + _PARIS + " " + _FILLER * 12),
    "long_answer_first": ("Who works there?", "Anna Smith works there. " + _FILLER * 20),
    "long_answer_last": ("When was it?", _FILLER * 20 + "It was in 1984."),
    "long_answer_twice": ("Where is it?", f"It is in Oslo. {_FILLER * 9}It is in Oslo. {_FILLER * 9}It is in Oslo."),
    "long_no_answer": ("Who works there?", _FILLER * 25),
    "long_question": ("What is it, " + "and what is it, " * 12 + "and where is it?", "It is in Berlin. " + _FILLER * 6),
    "long_unicode": ("Where is it?", "😀 \u0130van e\u0301 北京 " * 30 + "It is in \u0130stanbul. " + "👩‍👩‍👧‍👦 " * 40),
    "long_word": ("Where is it?", "a" * 101 + " It is in Berlin. " + "b" * 90),
}
"""id -> (question, context), besides the hard texts."""

VARIANTS: Final[dict[str, dict[str, object]]] = {
    "top_5": {"top_k": 5},
    "impossible": {"handle_impossible_answer": True},
    "impossible_top_3": {"handle_impossible_answer": True, "top_k": 3},
    "short_answers": {"max_answer_len": 2},
    "one_token": {"max_answer_len": 1, "top_k": 2},
    "not_aligned": {"align_to_words": False, "top_k": 3},
    "small_windows": {"max_seq_len": 48, "doc_stride": 16},
    "small_windows_top_4": {"max_seq_len": 64, "doc_stride": 8, "top_k": 4},
    "no_overlap": {"max_seq_len": 80, "doc_stride": 0, "handle_impossible_answer": True},
}
"""Name -> the pipeline's parameters."""


def questions() -> dict[str, tuple[str, str]]:
    """Every input: id -> (question, context). The hard texts are contexts, and some of them questions too."""
    hard = {name: ("Who lives in Berlin?", text) for name, text in HARD_TEXTS.items() if text}
    asked = {
        f"question_{name}": (text, _THERE)
        for name, text in HARD_TEXTS.items()
        if text and not name.startswith(("very_long", "long"))
    }
    return CONTEXTS | hard | asked


TOP: Final = 8
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_question_answering.py, with transformers 4",
    "tolerance": {"score_absolute": TOLERANCE},
    "model": "squad",
    "cases": "one per question and context",
    "default": 'pipeline("question-answering")(question=..., context=...)',
    "other keys": "the same with the parameters of that name under variants; only for the inputs of our own",
    "near_tie": "the keys whose order, or best answer, a difference of the scores within the tolerance would change",
    "error": "the pipeline raises; the service answers 400",
}


class Goldens:
    """The pipeline."""

    def __init__(self, folder: Path) -> None:
        path = str(checkpoint("squad", folder))
        self.pipeline = transformers.pipeline("question-answering", path, device="cpu")

    def everything(self) -> dict[str, Any]:
        """The contents of question_answering.json."""
        for question, context, expected in SENSIBLE:
            must_agree(question, self.ask(question, context)["answer"], expected)
        cases = [self.case(name, question, context) for name, (question, context) in questions().items()]
        return {"about": ABOUT, "variants": VARIANTS, "cases": cases}

    def ask(self, question: str, context: str, **parameters: Any) -> Any:
        """Call the pipeline."""
        return self.pipeline(question=question, context=context, **parameters)

    def case(self, name: str, question: str, context: str) -> dict[str, Any]:
        """One input with every form of its answer."""
        case: dict[str, Any] = {"id": name, "question": question, "context": context}
        variants = {"default": {}, **(VARIANTS if name in CONTEXTS else {"top_5": VARIANTS["top_5"]})}
        unsure = []
        for variant, parameters in variants.items():
            try:
                case[variant] = self.ask(question, context, **parameters)
            except BaseException as error:
                # A panic of the tokenizers library is no Exception.
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                if variant == "default":
                    return case | {"error": str(error)}
                case[variant] = {"error": str(error)}
                continue
            if self.unsure(question, context, parameters):
                unsure.append(variant)
        return case | ({"near_tie": unsure} if unsure else {})

    def unsure(self, question: str, context: str, parameters: dict[str, Any]) -> bool:
        """Whether the answers, or the last of them and the first one that was left out, are too near each other."""
        top = parameters.get("top_k", 1)
        # align_to_words makes the number of candidates depend on top_k, but the scores of the best don't change.
        answers = self.ask(question, context, **{**parameters, "top_k": max(TOP, top + 1)})
        answers = answers if isinstance(answers, list) else [answers]
        return near_tie([answer["score"] for answer in answers][: top + 1])


if __name__ == "__main__":
    generate("question_answering", lambda folder: Goldens(folder).everything(), transformers, tokenizers)
