"""Compute the logits_processors goldens with transformers' own logits processors.

Needs torch and transformers 5. Every case's processors are those that generate() itself would make of its parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from scripts.goldens.golden_files import generate

VOCABULARY: Final = 40
EOS: Final = (3, 7)
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_logits_processors.py",
    "tolerance": {"score_absolute": 1e-4},
    "eos_ids": EOS,
    "logits": "rows of random logits, by number",
    "cases": "parameters in transformers' names; the row's number; the prompt, and what was generated before; then "
    "every token's score, null for one that can't be chosen",
}
ALONE: Final = (
    {},
    *({"temperature": value} for value in (0.3, 1.7, 0.001)),
    *({"top_k": value} for value in (1, 5, 39, 400)),
    *({"top_p": value} for value in (0.05, 0.5, 0.95, 0.999)),
    *({"min_p": value} for value in (0.02, 0.3, 1.0)),
    *({"repetition_penalty": value} for value in (1.3, 0.7)),
    *({"min_new_tokens": value} for value in (3, 5)),
    {"sequence_bias": [[[4], 2.5], [[9], -100.0], [[3], 7.0]]},
)
TOGETHER: Final = (
    {"temperature": 0.7, "top_k": 10},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.5, "top_p": 0.9, "min_p": 0.2, "repetition_penalty": 1.2},
    {"top_p": 0.6, "min_p": 0.5, "min_new_tokens": 5},
    {"repetition_penalty": 1.5, "sequence_bias": [[[4], 2.5], [[12], -3.0]], "min_new_tokens": 5, "top_k": 7},
    {"do_sample": False, "repetition_penalty": 1.5, "sequence_bias": [[[4], 2.5]], "min_new_tokens": 5},
)
HISTORIES: Final = (([5, 12, 5, 3], [4, 9, 4, 4]), ([30], []))


def everything(folder: Path) -> dict[str, Any]:
    """The contents of logits_processors.json."""
    generator = torch.Generator().manual_seed(11)
    rows = [(torch.randn(VOCABULARY, generator=generator) * scale).tolist() for scale in (1.0, 3.0, 8.0)]
    ties = [round(value) for value in rows[1]]
    rows.append([float(value) for value in ties])
    # Of 7 digits, as they are written: what is compared has to begin with the same numbers.
    rows = [[float(f"{value:.7g}") for value in row] for row in rows]
    sizes = {"vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    cases = []
    for parameters in (*ALONE, *TOGETHER):
        for number, row in enumerate(rows):
            if number == 3 and ({"top_p", "min_p"} & parameters.keys()):
                continue  # which of equal tokens are in the nucleus is up to the sorting
            for prompt, generated in HISTORIES:
                found = processed(model, parameters, row, prompt, generated)
                scores = [None if score == float("-inf") else score for score in found]
                case = {"parameters": parameters, "row": number, "prompt": prompt, "generated": generated}
                cases.append({**case, "scores": scores})
    return {"about": ABOUT, "logits": rows, "cases": cases}


def processed(
    model: GPT2LMHeadModel, parameters: dict[str, Any], row: list[float], prompt: list[int], generated: list[int]
) -> list[float]:
    """One row's scores, after all processors."""
    given = {**({} if "do_sample" in parameters else {"do_sample": True, "top_k": 0}), **parameters}
    if bias := given.pop("sequence_bias", None):
        given["sequence_bias"] = {tuple(ids): value for ids, value in bias}
    config = GenerationConfig(**given, eos_token_id=list(EOS), pad_token_id=0)
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device="cpu")
    processors = model._get_logits_processor(config, input_ids_seq_length=len(prompt))
    ids = torch.tensor([prompt + generated])
    return processors(ids, torch.tensor([row]))[0].tolist()


if __name__ == "__main__":
    generate("logits_processors", everything, transformers)
