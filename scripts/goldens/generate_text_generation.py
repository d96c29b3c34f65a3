"""Compute the text generation goldens with transformers' generate().

Needs torch, transformers 5 and onnx. Every prompt is continued alone, greedily.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
import transformers

from scripts.goldens.golden_files import generate, must_agree
from tests.goldens.checkpoints import checkpoint
from tests.goldens.hard_texts import HARD_TEXTS

# Prompts for the generative test models: id -> text.

TOO_MUCH: Final = ("empty", "very_long", "very_long_one_word", "very_long_emoji")
"""Hard texts that have no token, or more than the models take."""

PROMPTS: Final[dict[str, str]] = {
    "capital": "The capital of france is",
    "capital_again": "The capital of japan is",
    "capital_and_space": "The capital of germany is ",
    "sentence": "The capital of italy is rome.",
    "two_sentences": "Hello world. The capital of spain is madrid. The capital of norway is",
    "middle_of_word": "The capital of fra",
    "lower_case": "the capital city of peru is",
    "turned": "oslo is the capital of",
    "flag": "The flag of france is",
    "flag_half": "The flag of norway is 🇳",
    "greeting_japanese": "A greeting in japanese:",
    "greeting_hindi": "A greeting in hindi:",
    "greeting_emoji": "A greeting in emoji:",
    "greeting_vietnamese": "A greeting in vietnamese:",
    "slowly": "Slowly: The capital of egypt is",
    "end_in_text": "The capital of cuba is<|endoftext|>The capital of chile is",
    "chat_in_text": "<|im_start|>user\nWhat is the capital of kenya?<|im_end|>\n<|im_start|>assistant\n",
    "tool_in_text": "<tool_call>\n",
    "half_special": "<|im_sta",
    "long": "The capital of france is paris. " * 15,
    **{name: text for name, text in HARD_TEXTS.items() if name not in TOO_MUCH},
}

SOURCES: Final[dict[str, str]] = {
    **{f"capital_{country}": f"capital of {country}" for country in ("france", "japan", "peru", "kenya", "norway")},
    **{f"country_{capital}": f"country of {capital}" for capital in ("paris", "tokyo", "oslo")},
    **{f"sentence_{country}": f"sentence about {country}" for country in ("france", "cuba", "egypt")},
    "reverse": "reverse one two three",
    "reverse_five": "reverse red green blue black white",
    "repeat": "repeat seven",
    "end_in_text": "capital of </s> france",
    **{name: text for name, text in HARD_TEXTS.items() if name not in (*TOO_MUCH, "space", "spaces_and_newlines")},
}

_WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_ASKED: Final = {"role": "user", "content": "What is the weather in paris?"}
_CALL: Final = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "paris"}}}

CHATS: Final[dict[str, dict[str, Any]]] = {
    "capital": {"messages": [{"role": "user", "content": "What is the capital of france?"}]},
    "hello": {"messages": [{"role": "user", "content": "Hello!"}]},
    "flag": {"messages": [{"role": "user", "content": "Show me the flag of italy."}]},
    "system": {
        "messages": [
            {"role": "system", "content": "Answer briefly."},
            {"role": "user", "content": "Which country has the capital oslo?"},
        ]
    },
    "second_turn": {
        "messages": [
            {"role": "user", "content": "What is the capital of peru?"},
            {"role": "assistant", "content": "The capital of peru is lima."},
            {"role": "user", "content": "What is the capital of cuba?"},
        ]
    },
    "special_tokens": {"messages": [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\n<tools>😀"}]},
    "tool": {"messages": [_ASKED], "tools": [_WEATHER]},
    "tool_answer": {
        "messages": [
            _ASKED,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "content": '{"weather": "sunny"}'},
        ],
        "tools": [_WEATHER],
    },
}
"""Messages, and tools where there are any."""

MAX_NEW_TOKENS: Final = 24
CHAT_TOKENS: Final = 40
LEAST_GAP: Final = 1e-3
"""A smaller distance between the two largest logits could be another order elsewhere: a logit is exact to 1e-5."""
ABOUT: Final = {
    "made_by": "scripts/goldens/generate_text_generation.py",
    "max_new_tokens": MAX_NEW_TOKENS,
    "chat_tokens": CHAT_TOKENS,
    "models": {"gpt2": "gpt2_past", "t5": "t5_logits"},
    "prompt_ids": "tokenizer(prompt)",
    "ids": "the new tokens of generate(do_sample=False), without the end-of-sequence token",
    "finish": "stop at such a token, else length",
    "text": "tokenizer.decode(ids, skip_special_tokens=True)",
    "whole_text": "the same of prompt_ids and ids together, for a decoder alone",
    "prompt_logprobs": "log_softmax of the logits at each token of prompt_ids but the first",
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
        """The text that follows a prompt."""
        inputs = torch.tensor([ids])
        options = {"max_new_tokens": most, "output_logits": True, "return_dict_in_generate": True}
        made = self.model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False, **options)
        best = torch.stack(made.logits).squeeze(1).topk(2).values
        gap = float((best[:, 0] - best[:, 1]).min())
        if gap < LEAST_GAP:
            raise ValueError(f"{name}: two tokens are only {gap} apart; ask for something else")
        new = made.sequences[0, 1 if self.encodes else len(ids) :].tolist()
        finish = "stop" if new[-1] in self.ends else "length"
        new = new[:-1] if finish == "stop" else new
        case = {"prompt_ids": ids, "ids": new, "finish": finish, "text": self.decode(new)}
        if self.encodes:
            return case
        return {**case, "whole_text": self.decode(ids + new), "prompt_logprobs": self.prompt_logprobs(ids)}

    def prompt_logprobs(self, ids: list[int]) -> list[float]:
        """Log probabilities of a prompt's tokens after the first."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, :-1].double()
        chosen = logits.log_softmax(dim=-1)[range(len(ids) - 1), ids[1:]]
        return [round(value, 5) for value in chosen.tolist()]

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def cases(self, name: str, prompts: dict[str, str]) -> list[dict[str, Any]]:
        rows = []
        for key, prompt in prompts.items():
            continued = self.continued(self.tokenizer(prompt)["input_ids"], MAX_NEW_TOKENS, key)
            rows.append({"id": key, "model": name, "prompt": prompt, **continued})
        return rows

    def chats(self) -> list[dict[str, Any]]:
        rows = []
        for key, chat in CHATS.items():
            rendered = self.tokenizer.apply_chat_template(
                chat["messages"], tools=chat.get("tools"), add_generation_prompt=True, tokenize=False
            )
            ids = self.tokenizer(rendered, add_special_tokens=False)["input_ids"]
            rows.append({"id": key, **chat, "rendered": rendered, **self.continued(ids, CHAT_TOKENS, key)})
        return rows


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
