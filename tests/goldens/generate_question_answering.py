"""Compute the question_answering goldens with the pipeline of transformers 4, since 5 has none.

    python tests/goldens/generate_question_answering.py            writes question_answering.json
    python tests/goldens/generate_question_answering.py --check    ends with 1 if it would change

Needs an environment of its own: torch, "transformers>=4.57,<5" and onnx.
"""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import tokenizers
import transformers
from checkpoints import checkpoint
from golden_files import TOLERANCE, generate, must_agree, near_tie
from question_texts import CONTEXTS, SENSIBLE, VARIANTS, questions

TOP: Final = 8
ABOUT: Final = {
    "made_by": "tests/goldens/generate_question_answering.py, with transformers 4",
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
