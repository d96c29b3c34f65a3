"""Compute the fill_mask goldens with torch and transformers, from tests/goldens/checkpoint.

Needs torch and transformers; the tests that read the goldens need neither. All texts are run one at a time, unpadded.
So the goldens hold for every way to serve these weights: with and without an attention mask, alone and in a batch.
"""

from __future__ import annotations

from typing import Any, Final

import tokenizers
import torch
import transformers
from transformers.pipelines.base import PipelineException

from scripts.goldens.golden_files import FOLDER, generate

# The texts of the fill_mask goldens: id -> text.

_FACT: Final = "The capital of france is [MASK]."
_LONG: Final = "There are many countries and many cities, some large and some small. "

TEXTS: Final[dict[str, str]] = {
    "france": _FACT,
    "italy": "The capital of italy is [MASK].",
    "germany": "The capital of germany is [MASK].",
    "japan": "The capital of japan is [MASK].",
    "spain": "The capital of spain is [MASK].",
    "lower_case": "the capital of norway is [MASK].",
    "upper_case": "THE CAPITAL OF SWEDEN IS [MASK].",
    "mixed_case": "ThE cApItAl Of PoLaNd Is [MASK].",
    "no_full_stop": "The capital of egypt is [MASK]",
    "mask_first": "[MASK] is the capital of italy.",
    "mask_is_country": "Paris is the capital of [MASK].",
    "mask_possessive": "Portugal's capital is [MASK].",
    "mask_question": "What is the capital of greece? [MASK].",
    "mask_only": "[MASK]",
    "mask_without_spaces": "The capital of kenya is[MASK].",
    "mask_between_letters": "The capital of kenya is x[MASK]y.",
    "mask_many_spaces": "The   capital  of peru   is    [MASK]   .",
    "mask_is_a_small_word": "The [MASK] of france is paris.",
    "two_masks": "The capital of [MASK] is [MASK].",
    "two_masks_apart": "The capital of france is [MASK]. The capital of japan is [MASK].",
    "three_masks_adjacent": "[MASK][MASK] [MASK] capital of cuba is havana.",
    "five_masks": "The [MASK] of [MASK] is [MASK] [MASK] [MASK].",
    "accents_composed": "The cápital of fränce ís [MASK].",
    "accents_combining": "The capita\u0301l of fra\u0308nce i\u0301s [MASK].",
    "accents_stacked": "The capital of ira\u0334\u0310\u0301n is [MASK].",
    "sharp_s_and_ligatures": "Straße, cæsar, smørrebrød, œuvre and łódź. The capital of poland is [MASK].",
    "turkish_dotted_i": "The capital of \u0130RAN is [MASK].",
    "greek": "Αθήνα is not [MASK].",
    "cyrillic": "Москва is [MASK], the capital of russia.",
    "chinese": "北京 is the capital of [MASK].",
    "japanese_kana": "とうきょう is the capital of [MASK].",
    "korean_jamo": "한국 and 한국: the capital of japan is [MASK].",
    "arabic": "عاصمة العراق is [MASK].",
    "hebrew_with_points": "שָׁלוֹם! The capital of jordan is [MASK].",
    "devanagari": "नेपाल's capital is [MASK].",
    "thai": "กรุงเทพ is the capital of [MASK].",
    "emoji": "🎉 The capital of brazil is [MASK]! 🇧🇷",
    "emoji_joined": "👩‍👩‍👧‍👦 live in [MASK], the capital of canada. 👍🏽",
    "outside_the_bmp": "𝓗𝓮𝓵𝓵𝓸 𐍈 𠮷: the capital of cuba is [MASK].",
    "full_width": "Ｔｈｅ capital of china is [MASK]．",
    "typographic_punctuation": "“The capital of austria” – it’s [MASK]…",
    "zero_width": "The cap\u200bital of hun\u00adgary is \u2060[MASK]\ufeff.",
    "no_break_space": "The\u00a0capital\u2003of\u3000finland is\u202f[MASK].",
    "newlines": "The capital\nof russia\r\nis\n\n[MASK].",
    "tabs": "\tThe capital\tof turkey\tis\t[MASK].\t",
    "control_characters": "The cap\x07ital of \x00iraq\x1b is \x7f[MASK].",
    "replacement_character": "The capital of \ufffdmalta is [MASK].",
    "unpaired_marks": "\u0301The capital of malta is [MASK]\u0301.",
    "sep_in_text": "Hello world. [SEP] The capital of ukraine is [MASK].",
    "cls_and_pad_in_text": "[CLS] The capital of [PAD] ireland is [MASK]. [PAD]",
    "unk_in_text": "[UNK] The capital of denmark is [MASK].",
    "lower_case_special_tokens": "[sep] [cls] [mask]: the capital of iceland is [MASK].",
    "html": "<b>The capital of belgium</b> is&nbsp;[MASK].<br/>",
    "json": '{"question": "capital of latvia", "answer": "[MASK]"}',
    "url_and_email": "See http://example.org/?q=tunis&x=1 or mail me@example.org: capital of tunisia: [MASK]",
    "digits": "In 2024, 3.14 or 1,000,000: the capital of ghana is [MASK].",
    "long_word": "a" * 100 + " The capital of nepal is [MASK].",
    "too_long_word": "a" * 101 + " The capital of nepal is [MASK].",
    "unknown_country": "The capital of atlantis is [MASK].",
    "fact_after_filler": "Hello world. I have a question: the capital of chile is [MASK]. Thank you very much.",
    "fact_among_facts": "Rome is the capital of italy. The capital of spain is [MASK]. The capital of japan is tokyo.",
    "long": _LONG * 3 + _FACT,
    "long_mask_first": "The capital of oman is [MASK]. " + _LONG * 3,
    "at_127_tokens": "The capital of france is [MASK]. " + "city " * 117 + ".",
    "at_128_tokens": "The capital of france is [MASK]. " + "city " * 118 + ".",
    "cut_at_129_tokens": "The capital of france is [MASK]. " + "city " * 119 + ".",
    "cut_mask_at_the_end_of_what_stays": "capital " * 125 + "[MASK] is cut after the mask.",
    "cut_second_mask": "The capital of france is [MASK]. " + _LONG * 20 + "The capital of italy is [MASK].",
    "cut_long": "The capital of syria is [MASK]. " + _LONG * 200,
}

FULL_OUTPUT_TEXTS: Final = frozenset({"france", "two_masks_apart", "emoji"})
"""Ids of the texts whose whole logits and probabilities are stored."""

TARGET_CASES: Final[tuple[tuple[str, list[str]], ...]] = (
    (_FACT, ["paris"]),
    (_FACT, ["rome", "paris", "berlin"]),
    (_FACT, ["rome", "berlin", "madrid", "tokyo", "oslo", "cairo", "lima"]),
    (_FACT, ["paris", "paris", "rome"]),
    ("The capital of france is [MASK]. The capital of japan is [MASK].", ["tokyo", "paris"]),
)

TEXTS_WITHOUT_MASK: Final[dict[str, str]] = {
    "no_mask": "The capital of france is paris.",
    "empty": "",
    "blank": " \t\n",
    "lower_case_mask": "The capital of france is [mask].",
    "mask_with_spaces": "The capital of france is [ MASK ].",
    "other_models_mask": "The capital of france is <mask>.",
    "mask_cut_off": _LONG * 20 + _FACT,
    "mask_just_cut_off": "city " * 126 + "[MASK]",
}

TOKENIZER: Final = FOLDER.parents[1] / "deploy/model_repository/bert"
CHECKPOINT: Final = FOLDER / "checkpoint"

TOP_K: Final = 5
TOLERANCE: Final = {"logits_absolute": 1e-4, "score_absolute": 1e-5, "score_relative": 1e-4}
LEAST_GAP: Final = 4 * TOLERANCE["logits_absolute"]
"""Logits that rank nearer than this could change places within the tolerance, so such a text is refused."""

ABOUT: Final = {
    "made_by": "scripts/goldens/generate_fill_mask.py",
    "tolerance": TOLERANCE,
    "model": "tests/goldens/checkpoint, the weights of every fill-mask model of the test Triton",
    "padding": "each text was run alone and unpadded: bert (no mask input) and bert_masked must give the same",
    "plain": "tokenizer.decode(ids of the largest logits at the masks), KServe's default answer",
    "pipeline": 'pipeline("fill-mask", top_k=5, tokenizer_kwargs={"truncation": True}), a list per mask if several',
    "logits": "FP32 [masks, vocabulary], 7 significant digits; probabilities: their softmax",
}


class Goldens:
    """The model, its tokenizer and the pipeline of both."""

    def __init__(self) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
        self.model = transformers.BertForMaskedLM.from_pretrained(CHECKPOINT).eval()
        self.pipeline = transformers.pipeline("fill-mask", model=self.model, tokenizer=self.tokenizer, device="cpu")

    def everything(self) -> dict[str, Any]:
        """The contents of fill_mask.json."""
        return {
            "about": ABOUT,
            "cases": [self.case(name, text) for name, text in TEXTS.items()],
            "targets": [
                {"text": text, "targets": targets, "pipeline": self.fill(text, targets=targets)}
                for text, targets in TARGET_CASES
            ],
            "without_mask": [self.maskless_case(name, text) for name, text in TEXTS_WITHOUT_MASK.items()],
        }

    def case(self, name: str, text: str) -> dict[str, Any]:
        """One text with its token ids and every form of its answer."""
        encoding = self.tokenizer(text, truncation=True, return_tensors="pt")
        logits = self.model(**encoding).logits[0]
        ids = encoding["input_ids"][0]
        positions = (ids == self.tokenizer.mask_token_id).nonzero().flatten()
        if not len(positions):
            raise ValueError(f"{name} has no mask, or none among the first {len(ids)} tokens")
        at_masks = logits[positions]
        check_gaps(name, at_masks)
        case = {
            "id": name,
            "text": text,
            "input_ids": ids.tolist(),
            "mask_positions": positions.tolist(),
            "plain": self.tokenizer.decode(at_masks.argmax(dim=-1)),
            "pipeline": self.fill(text, top_k=TOP_K),
        }
        if name in FULL_OUTPUT_TEXTS:
            case["logits"] = at_masks
            case["probabilities"] = at_masks.softmax(dim=-1)
        return case

    def maskless_case(self, name: str, text: str) -> dict[str, Any]:
        """A text that has no mask to fill, or none before it is cut: transformers raises, the service answers 400."""
        try:
            self.fill(text)
        except PipelineException:
            return {"id": name, "text": text, "input_ids": self.tokenizer(text, truncation=True)["input_ids"]}
        raise ValueError(f"{name} has a mask after all")

    def fill(self, text: str, **parameters: Any) -> Any:
        """Call the pipeline."""
        return self.pipeline(text, tokenizer_kwargs={"truncation": True}, **parameters)


def check_gaps(name: str, logits: torch.Tensor) -> None:
    """Raise ValueError if any two neighbours among the best TOP_K + 1 logits are too near to keep their order."""
    best = logits.topk(TOP_K + 1, dim=-1).values
    gap = float((best[:, :-1] - best[:, 1:]).min())
    if gap < LEAST_GAP:
        raise ValueError(f"{name}: two of the best answers are only {gap:.1e} apart; change the text")


if __name__ == "__main__":
    most = TOLERANCE["logits_absolute"]
    generate("fill_mask", lambda folder: Goldens().everything(), transformers, tokenizers, tolerance=most)
