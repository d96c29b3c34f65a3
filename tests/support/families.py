"""A scripted model that writes as model families do: its answers, and a chat template for each family.

The model ``gpt2_families`` of the test Triton writes them. A question with a tool is answered with reasoning, if the
family has any, and CALL; the tool's result with reasoning and AFTER; and any other question with reasoning and TEXT:

    serve("gpt2_families", "grpc-v2", *family_flags("gpt_oss", tmp_path))
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.goldens.response_texts import FAMILIES, Call

MODEL: Final = "gpt2_families"
GPT2: Final = Path(__file__).resolve().parents[2] / "deploy" / "model_repository" / "gpt2"
LENGTH: Final = 8192
"""Tokens that the model takes: clients write long prompts."""
NAMES: Final = ("qwen3", "llama3_json", "mistral_v11", "gpt_oss", "deepseek_v31")
"""Five families with different forms; qwen3 writes Hermes' calls, with <think>."""
CALL: Final[Call] = ("get_weather", {"city": "paris </tool_call> \u2013 z\u00fcrich"})
"""The name and the arguments of the call. A delimiter is in the string."""
TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION: Final = "What is the weather in paris?"
THOUGHT, SECOND_THOUGHT = "I have to look at the weather.", "Now I know."
AFTER, TEXT = "It is sunny in paris.", "Hello there."

_MARKERS: Final[Mapping[str, str]] = {
    "qwen3": "<tool_call> </tool_call> <think>",
    "llama3_json": '<|start_header_id|> "parameters"',
    "mistral_v11": "[TOOL_CALLS] [ARGS] [THINK]",
    "gpt_oss": "<|channel|> <|start|>",
    "deepseek_v31": "<\uff5ctool\u2581sep\uff5c> <think>",
}
"""Texts by which the service knows the family from its chat template."""
_TEMPLATE: Final = r"""{#- MARKERS -#}
NAME
{%- for tool in tools or [] %}{{ '\nTOOL: ' }}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{{ '\nRESULT: ' + message.content }}
    {%- else %}
        {{- '\n' + message.role + ': ' + message.content }}
        {%- if message.reasoning_content %}{{ '\nTHOUGHT: ' + message.reasoning_content }}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\nCALL: ' + call.function.name + ' ' }}{{ call.function.arguments | tojson }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '\n' + END }}{% endif %}
"""


def has_reasoning(name: str) -> bool:
    return FAMILIES[name].reasoning is not None


def answers(name: str) -> dict[str, str]:
    """The model's texts for one family."""
    family = FAMILIES[name]
    think = family.reasoning or (lambda text: "")
    return {
        "call": think(THOUGHT) + family.calls([CALL]),
        "after": think(SECOND_THOUGHT) + family.content(AFTER),
        "text": think(SECOND_THOUGHT) + family.content(TEXT),
    }


def chat_template(name: str) -> str:
    """A chat template with the family's markers, whose prompts begin with its name and end as the family's do."""
    text = _TEMPLATE.replace("MARKERS", _MARKERS[name]).replace("NAME", name, 1)
    return text.replace("END", json.dumps(FAMILIES[name].prompt, ensure_ascii=False))


def family_flags(name: str, folder: Path) -> tuple[str, ...]:
    """Flags of a service for the model; ``folder`` gets a tokenizer for long prompts, and the chat template."""
    path = folder / name
    if not path.exists():
        shutil.copytree(GPT2, path, ignore=shutil.ignore_patterns("1", "configs"))
        for file, key in (("config.json", "n_positions"), ("tokenizer_config.json", "model_max_length")):
            values = json.loads((path / file).read_text(encoding="utf-8"))
            (path / file).write_text(json.dumps({**values, key: LENGTH}), encoding="utf-8")
        (path / "chat_template.jinja").write_text(chat_template(name), encoding="utf-8")
    return (f"--model_dir={path}",)
