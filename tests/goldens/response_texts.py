"""Answers of model families, in the form in which the families' chat templates show calls and reasoning.

``cases`` makes the same messages in the form of each family. tests/goldens/responses.json has the messages that
transformers' executor and vLLM's parsers read from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "note": {"type": "string"}},
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "make",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "number"},
                    "ok": {"type": "boolean"},
                    "none": {"type": "null"},
                    "list": {"type": "array"},
                    "object": {"type": "object"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Family:
    """How a family writes.

    Attributes:
        calls: writes calls.
        ends: the delimiter that ends a call, for a text in which an argument contains it.
        parts: our parts for calls and for reasoning.
        vllm: vLLM's tool parser and reasoning parser; empty for none.
        reasoning: writes reasoning; None if the family has none.
        content: writes content.
        prompt: the end of the prompt.
    """

    calls: Callable[[list[Call]], str]
    ends: str
    parts: tuple[str | None, str | None]
    vllm: tuple[str, str]
    reasoning: Callable[[str], str] | None = None
    content: Callable[[str], str] = str
    prompt: str = "<|im_start|>assistant\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _each(write: Callable[[str, dict[str, Any]], str], between: str = "\n") -> Callable[[list[Call]], str]:
    return lambda calls: between.join(write(name, arguments) for name, arguments in calls)


def _around(begin: str, end: str, write: Callable[[list[Call]], str]) -> Callable[[list[Call]], str]:
    return lambda calls: begin + write(calls) + end


def _object(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return _json({"name": name, key: arguments})


def _list(calls: list[Call], name: str = "name", key: str = "arguments") -> str:
    return _json([{name: called, key: arguments} for called, arguments in calls])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _tags(begin: str, parameter: str, end: str) -> Callable[[str, dict[str, Any]], str]:
    def write(name: str, arguments: dict[str, Any]) -> str:
        parts = [parameter.format(key=key, value=_text(value)) for key, value in arguments.items()]
        return begin.format(name=name) + "".join(parts) + end

    return write


def _dsml(name: str, arguments: dict[str, Any]) -> str:
    parts = [
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">{_text(value)}'
        "</｜DSML｜parameter>\n"
        for key, value in arguments.items()
    ]
    return f'<｜DSML｜invoke name="{name}">\n{"".join(parts)}</｜DSML｜invoke>\n'


def _python_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_python_value(key)}: {_python_value(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_python_value, value)) + "]" if isinstance(value, list) else repr(value)


def _python(calls: list[Call]) -> str:
    texts = [f"{name}({', '.join(f'{k}={_python_value(v)}' for k, v in args.items())})" for name, args in calls]
    return "[" + ", ".join(texts) + "]"


def _gemma_value(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma_value(item)}" for key, item in value.items()) + "}"
    return "[" + ",".join(map(_gemma_value, value)) + "]" if isinstance(value, list) else _json(value)


def _kimi(calls: list[Call]) -> str:
    texts = [
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    ]
    return "<|tool_calls_section_begin|>" + "".join(texts) + "<|tool_calls_section_end|>"


def _harmony(calls: list[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
        for name, arguments in calls
    )


def _think(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


_HERMES: Final = _each(lambda name, arguments: f"<tool_call>\n{_object(name, arguments)}\n</tool_call>")
_DEEPSEEK: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CODER: Final = _each(_tags("<tool_call>\n<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>\n</tool_call>"))  # fmt: skip # noqa: E501

FAMILIES: Final[Mapping[str, Family]] = {
    "hermes": Family(_HERMES, "</tool_call>", ("hermes", None), ("hermes", "")),
    "qwen3": Family(_HERMES, "</tool_call>", ("hermes", "think"), ("hermes", "qwen3"), _think),
    "smollm3": Family(_HERMES, "</tool_call>", ("hermes", "think"), ("hermes", "deepseek_r1"), _think),
    "granite4": Family(_HERMES, "</tool_call>", ("hermes", None), ("granite4", "")),
    "qwen3_coder": Family(_CODER, "</tool_call>", ("qwen3_coder", None), ("qwen3_coder", "")),
    "nemotron3": Family(_CODER, "</tool_call>", ("qwen3_coder", "think"), ("qwen3_coder", "nemotron_v3"), _think),
    "llama3_json": Family(
        _each(lambda name, arguments: _object(name, arguments, "parameters"), "; "),
        "<|eom_id|>", ("llama3_json", None), ("llama3_json", ""),
        prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": Family(
        _python, "<|python_end|>", ("pythonic", None), ("llama4_pythonic", ""),
        prompt="<|header_start|>assistant<|header_end|>\n\n",
    ),
    "pythonic": Family(_python, "]", ("pythonic", None), ("pythonic", "")),
    "mistral": Family(
        lambda calls: "[TOOL_CALLS] " + _list(calls), "</s>", ("mistral", None), ("mistral", ""), prompt="[/INST]"
    ),
    "mistral_v11": Family(
        _each(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}", ""),
        "[TOOL_CALLS]", ("mistral_v11", "mistral"), ("mistral", "mistral"),
        lambda text: f"[THINK]{text}[/THINK]", prompt="[/INST]",
    ),
    "granite3": Family(
        lambda calls: "<|tool_call|>" + _list(calls), "</tool_call>", ("granite", "granite"), ("granite", "granite"),
        lambda text: f"Here is my thought process: {text} Here is my response: ",
        prompt="<|start_of_role|>assistant<|end_of_role|>",
    ),
    "deepseek_r1": Family(
        _around(*_DEEPSEEK, _each(
            lambda name, values: f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(values)}\n```"
            "<｜tool▁call▁end｜>",
        )),
        "<｜tool▁call▁end｜>", ("deepseek_v3", "think"), ("deepseek_v3", "deepseek_r1"), _think,
        prompt="<｜Assistant｜>",
    ),
    "deepseek_v31": Family(
        _around(*_DEEPSEEK, _each(
            lambda name, values: f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(values)}<｜tool▁call▁end｜>", "",
        )),
        "<｜tool▁call▁end｜>", ("deepseek_v31", "think"), ("deepseek_v31", "deepseek_r1"), _think,
        prompt="<｜Assistant｜>",
    ),
    "deepseek_v32": Family(
        _around("<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", _each(_dsml, "")),
        "</｜DSML｜invoke>", ("deepseek_v32", "think"), ("deepseek_v32", "deepseek_r1"), _think,
        prompt="<｜Assistant｜>",
    ),
    "gpt_oss": Family(
        _harmony, "<|call|>", ("gpt_oss", "gpt_oss"), ("openai", "openai_gptoss"),
        lambda text: f"<|channel|>analysis<|message|>{text}<|end|><|start|>assistant",
        lambda text: f"<|channel|>final<|message|>{text}<|end|>", prompt="<|end|><|start|>assistant",
    ),
    "kimi_k2": Family(
        _kimi, "<|tool_call_end|>", ("kimi_k2", "think"), ("kimi_k2", "kimi_k2"),
        lambda text: f"<think>{text}</think>", prompt="<|im_assistant|>assistant<|im_middle|>",
    ),
    "glm45": Family(
        _each(_tags(
            "<tool_call>{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>",
        )),
        "</tool_call>", ("glm45", "think"), ("glm45", "glm45"), _think, prompt="<|assistant|>",
    ),
    "minimax_m2": Family(
        _around("<minimax:tool_call>\n", "</minimax:tool_call>", _each(_tags(
            '<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n",
        ), "")),
        "</minimax:tool_call>", ("minimax_m2", "think"), ("minimax_m2", "minimax_m2"), _think, prompt="]~b]ai\n",
    ),
    "command_a": Family(
        lambda calls: "<|START_ACTION|>" + _json([
            {"tool_call_id": str(index), "tool_name": name, "parameters": arguments}
            for index, (name, arguments) in enumerate(calls)
        ]) + "<|END_ACTION|>",
        "<|END_ACTION|>", ("command_a", "command_a"), ("cohere_command3", "cohere_command3"),
        lambda text: f"<|START_THINKING|>{text}<|END_THINKING|>",
        lambda text: f"<|START_RESPONSE|>{text}<|END_RESPONSE|>",
        prompt="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "command_r": Family(
        lambda calls: "Action: ```json\n" + _list(calls, "tool_name", "parameters") + "\n```",
        "```", ("command_r", None), ("", ""), prompt="<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "phi4_mini": Family(
        lambda calls: "<|tool_call|>" + _list(calls) + "<|/tool_call|>",
        "<|/tool_call|>", ("phi4_mini", None), ("", ""), prompt="<|assistant|>",
    ),
    "phi4_functools": Family(
        lambda calls: "functools" + _list(calls), "]", ("phi4_mini", None), ("phi4_mini_json", ""),
        prompt="<|assistant|>",
    ),
    "gemma4": Family(
        _each(lambda name, arguments: f"<|tool_call>call:{name}{_gemma_value(arguments)}<tool_call|>", ""),
        "<tool_call|>", ("gemma4", "gemma4"), ("gemma4", "gemma4"),
        lambda text: f"<|channel>thought\n{text}<channel|>", prompt="<|turn>model\n",
    ),
    "nemotron": Family(
        lambda calls: "<TOOLCALL>" + _list(calls) + "</TOOLCALL>", "</TOOLCALL>", ("nemotron", "think"), ("", ""),
        _think, prompt="<SPECIAL_11>Assistant\n",
    ),
}  # fmt: skip

PARIS: Final[Call] = ("weather", {"city": "Paris", "days": 3})
TYPES: Final[Call] = (
    "make",
    {"text": "a", "count": 1.5, "ok": True, "none": None, "list": [1, "b", []], "object": {"c": {"d": [{}]}}},
)


def cases(family: Family) -> Iterator[tuple[str, str]]:
    """Names and texts of one family's answers."""
    calls, content = family.calls, family.content
    whole = calls([PARIS])
    after = "<|start|>assistant" if family.parts[0] == "gpt_oss" else ""
    yield "no call", content("It is sunny in Paris.")
    yield "one call", whole
    yield "prose before", content("Let me see.") + after + whole
    yield "prose before and after", content("Let me see.") + after + whole + after + content("Done.")
    yield "two calls", calls([PARIS, ("make", {"text": "x"})])
    yield "three calls in parallel", calls([("weather", {"city": city}) for city in ("Rome", "Oslo", "Kyiv")])
    yield "types", calls([TYPES])
    yield "nested", calls([("make", {"object": {"a": [{"b": {"c": [1, [2, [3]]]}}]}, "list": [[], {}, [{}]]})])
    yield "unicode", calls([("weather", {"city": "Zürich – 東京 🗼", "note": "naïve «quotes» é"})])
    yield "delimiter in a string", calls([("weather", {"city": f"a {family.ends} b"})])
    yield "escapes in a string", calls([("make", {"text": 'say "hi"\n\tC:\\dir\\'})])
    yield "brackets in a string", calls([("make", {"text": "}]) [{( <b> </b> = : ,"})])
    yield "no arguments", calls([("now", {})])
    yield "unknown tool", calls([("delete_all", {"sure": True})])
    yield "cut in an argument", whole[: whole.index("Par") + 3]
    yield "cut in the name", whole[: whole.index("weat") + 4]
    yield "text as number", calls([("weather", {"city": "7", "days": 7})])
    if family.reasoning is not None:
        yield "reasoning", family.reasoning("Hm, sunny?") + content("It is sunny.")
        yield "reasoning and call", family.reasoning("I need the weather.") + whole
        yield "empty reasoning", family.reasoning("") + content("It is sunny.")
        yield "cut in the reasoning", (text := family.reasoning("Hm, sunny?"))[: text.index("sunny") + 3]
        yield "reasoning with brackets", family.reasoning('{"name": "weather"} <b> [x(')[:] + content("Yes.")
