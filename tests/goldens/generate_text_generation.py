"""Compute the text generation goldens with transformers' generate().

    python tests/goldens/generate_text_generation.py            writes text_generation.json
    python tests/goldens/generate_text_generation.py --check    ends with 1 if it would change

Needs torch, transformers 5 and onnx. Every prompt is continued alone, greedily.
"""

# mypy: ignore-errors

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers
from checkpoints import checkpoint
from generation_prompts import CHATS, PROMPTS, SOURCES
from golden_files import generate, must_agree

MAX_NEW_TOKENS: Final = 24
CHAT_TOKENS: Final = 40
LEAST_GAP: Final = 1e-3
"""A smaller distance between the two largest logits could be another order elsewhere: a logit is exact to 1e-5."""
ABOUT: Final = {
    "made_by": "tests/goldens/generate_text_generation.py",
    "max_new_tokens": MAX_NEW_TOKENS,
    "chat_tokens": CHAT_TOKENS,
    "models": {"gpt2": "gpt2_past", "t5": "t5_logits"},
    "prompt_ids": "tokenizer(prompt)",
    "ids": "the new tokens of generate(do_sample=False), without the end-of-sequence token",
    "finish": "stop at such a token, else length",
    "text": "tokenizer.decode(ids, skip_special_tokens=True)",
    "whole_text": "the same of prompt_ids and ids together, for a decoder alone",
    "rendered": "apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)",
}


class Model:
    """One checkpoint and its tokenizer."""

    def __init__(self, name: str, folder: Path) -> None:
        path = checkpoint(name, folder)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        config = transformers.AutoConfig.from_pretrained(path)
        self.encodes = config.is_encoder_decoder
        kind = transformers.AutoModelForSeq2SeqLM if self.encodes else transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(path)
        ends = self.model.generation_config.eos_token_id
        self.ends = set(ends if isinstance(ends, list) else [ends])

    def continued(self, ids: list[int], most: int, name: str) -> dict[str, Any]:
        """What follows a prompt."""
        inputs = torch.tensor([ids])
        made = self.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=most,
            output_logits=True,
            return_dict_in_generate=True,
        )
        best = torch.stack(made.logits).squeeze(1).topk(2).values
        gap = float((best[:, 0] - best[:, 1]).min())
        if gap < LEAST_GAP:
            raise ValueError(f"{name}: two tokens are only {gap} apart; ask for something else")
        new = made.sequences[0, 1 if self.encodes else len(ids) :].tolist()
        finish = "stop" if new[-1] in self.ends else "length"
        new = new[:-1] if finish == "stop" else new
        case = {"prompt_ids": ids, "ids": new, "finish": finish, "text": self.decode(new)}
        return case if self.encodes else {**case, "whole_text": self.decode(ids + new)}

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def cases(self, name: str, prompts: dict[str, str]) -> list[dict[str, Any]]:
        return [
            {
                "id": key,
                "model": name,
                "prompt": prompt,
                **self.continued(self.tokenizer(prompt)["input_ids"], MAX_NEW_TOKENS, key),
            }
            for key, prompt in prompts.items()
        ]

    def chats(self) -> list[dict[str, Any]]:
        found = []
        for key, chat in CHATS.items():
            rendered = self.tokenizer.apply_chat_template(
                chat["messages"], tools=chat.get("tools"), add_generation_prompt=True, tokenize=False
            )
            ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
            found.append({"id": key, **chat, "rendered": rendered, **self.continued(ids, CHAT_TOKENS, key)})
        return found


def everything(folder: Path) -> dict[str, Any]:
    """The contents of text_generation.json."""
    gpt2, t5 = Model("gpt2_past", folder), Model("t5_logits", folder)
    cases = [*gpt2.cases("gpt2", PROMPTS), *t5.cases("t5", SOURCES)]
    texts = {(case["model"], case["id"]): case["text"] for case in cases}
    must_agree("capital of France", texts["gpt2", "capital"].split(".")[0], " paris")
    must_agree("capital of France", texts["t5", "capital_france"], "paris")
    must_agree("flag of France", texts["gpt2", "flag"].split(".")[0], " 🇫🇷")
    return {"about": ABOUT, "cases": cases, "chats": gpt2.chats()}


if __name__ == "__main__":
    generate("text_generation", everything, transformers)
