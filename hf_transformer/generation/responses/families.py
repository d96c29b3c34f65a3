"""Response templates of model families whose checkpoints have none, as data.

A template is made of two parts: how calls are written, and how reasoning is. The markers in the chat template choose
them, not the model's name: it shows the model the same form. vLLM's names of parsers are names of parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hf_transformer.generation.call_forms import HERMES, CallForm
from hf_transformer.generation.responses.template import Program
from hf_transformer.types.request import Json

ANCHORS: Final = (
    "<|im_start|>assistant\n",
    "<|im_start|>assistant",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|header_start|>assistant<|header_end|>\n\n",
    "<|start_of_role|>assistant<|end_of_role|>",
    "<|im_assistant|>assistant<|im_middle|>",
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    "<｜Assistant｜>",
    "<|assistant|>",
    "[/INST]",
    "[/TOOL_RESULTS]",
    "]~b]ai\n",
    "<|turn>model\n",
    "<tool_response|>",
    "<SPECIAL_11>Assistant\n",
    "<extra_id_1>Assistant\n",
    "<[begin▁of▁sentence]>assistant",
    "<seed:bos>assistant\n",
)
"""Beginnings of an assistant's message in prompts. None of them is written within one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How a family writes calls.

    Attributes:
        field: the template's field ``tool_calls``.
        markers: alternatives; the chat template contains all texts of one of them.
        begins: a pattern of the beginning of a call, which ends reasoning, too. Models forget to close it.
        ends: a pattern of texts around content that are not shown.
        anchors: start anchors in place of ANCHORS.
        vllm: names of vLLM's tool parsers.
        strict: the form for grammars, of calls with arguments as JSON.
        reasoning: the part Reasoning that belongs to it; empty to look for one in the chat template.
    """

    field: Mapping[str, Json]
    markers: tuple[tuple[str, ...], ...]
    begins: str = ""
    ends: str = ""
    anchors: tuple[str, ...] = ANCHORS
    vllm: tuple[str, ...] = ()
    strict: CallForm | None = None
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningTexts:
    """Delimiters of reasoning as texts, for grammars.

    Attributes:
        answer: the beginning of the answer after the reasoning.
        direct: the beginning of an answer without reasoning.
    """

    begin: str
    end: str
    answer: str = ""
    direct: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How a family writes reasoning.

    Attributes:
        open: a pattern of its beginning.
        close: a pattern of its end.
        texts: the same as texts.
        markers: as those of Calls.
        ends: a pattern that is not shown in the content: an end without a beginning.
        vllm: names of vLLM's reasoning parsers.
    """

    open: str
    close: str
    texts: ReasoningTexts
    markers: tuple[tuple[str, ...], ...]
    ends: str = ""
    vllm: tuple[str, ...] = ()


def _call(name: str, arguments: str) -> Mapping[str, Json]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


_OBJECT: Final = {"repeats": True, "content": "json", "transform": {"type": "function", "function": "{content}"}}
"""A JSON object with the name and the arguments."""
_LIST: Final = {"content": "json", "transform_each": True, "transform": _call("{name}", "{arguments}")}
"""A JSON list of such objects."""
_ARGUMENTS: Final = {"repeats": True, "content": "json", "transform": _call("{name}", "{content}")}
"""A JSON object with the arguments; the delimiter has the name."""


def _tags(pattern: str) -> Mapping[str, Json]:
    """Tags with the arguments; the delimiter has the name."""
    return {**_ARGUMENTS, "content": "xml-inline", "content_args": {"tag_pattern": pattern}}


_FUNCTION_TAGS: Final = _tags(r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>")

CALLS: Final[Mapping[str, Calls]] = {
    "gpt_oss": Calls(
        markers=(("<|channel|>", "<|start|>"),),
        field={
            "open_pattern": r"(?:<\|start\|>assistant)?(?:<\|channel\|>\w+ to=functions\.(?P<name>[\w.\-]+)"
            r"|<\|start\|>assistant to=functions\.(?P<name>[\w.\-]+)\s*<\|channel\|>\w+)"
            r"\s*(?:<\|constrain\|>\s*\w+\s*|json\s*)?<\|message\|>",
            "close": ["<|call|>", "<|end|>", "<|return|>"],
            **_ARGUMENTS,
        },
        ends=r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)\s*(?:<\|constrain\|>\s*\w+\s*|json\s*)?"
        r"<\|message\|>|<\|end\|>|<\|return\|>|<\|call\|>",
        anchors=("<|end|>", "<|call|>", "<|return|>"),  # <|start|>assistant is a part of the message's delimiters
        vllm=("openai",),
        reasoning="gpt_oss",
        strict=CallForm("<|channel|>commentary to=functions.", "{name} <|constrain|>json<|message|>", "<|call|>"),
    ),
    "gemma4": Calls(
        markers=(("<|tool_call>",), ("<|turn>",)),
        field={
            "open_pattern": r"\s*<\|tool_call>(?:call)?:(?P<name>[\w.\-]+)\s*(?=\{)",
            "close": "<tool_call|>",
            **_ARGUMENTS,
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        },
        begins=r"<\|tool_call>(?:call)?:",
        ends=r"<turn\|>|<\|tool_response>",
        vllm=("gemma4",),
        reasoning="gemma4",
    ),
    "kimi_k2": Calls(
        markers=(("<|tool_calls_section_begin|>",),),
        field={
            "open_pattern": r"\s*(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>\s*"
            r"(?P<id>(?:[\w\-]+\.)*(?P<name>[\w\-]+)(?::\d+)?)\s*<\|tool_call_argument_begin\|>",
            "close_pattern": r"<\|tool_call_end\|>(?:\s*<\|tool_calls_section_end\|>)?",
            **_ARGUMENTS,
            "transform": {"id": "{id}", **_call("{name}", "{content}")},
        },
        begins=r"<\|tool_calls_section_begin\|>",
        vllm=("kimi_k2",),
        strict=CallForm(
            "<|tool_calls_section_begin|>",
            "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>",
            "<|tool_call_end|><|tool_calls_section_end|>",
        ),
    ),
    "deepseek_v32": Calls(
        markers=(("｜DSML｜",),),
        field={
            "open_pattern": r"\s*(?:<｜DSML｜(?:function_calls|tool_calls)>\s*)?"
            r"<｜DSML｜invoke name=\"(?P<name>[^\"]+)\">",
            "close_pattern": r"</｜DSML｜invoke>(?:\s*</｜DSML｜(?:function_calls|tool_calls)>)?",
            **_tags(
                r"<｜DSML｜parameter name=\"(?P<key>[^\"]+)\"(?: string=\"(?:true|(?P<json>false))\")?>"
                r"(?P<value>.*?)</｜DSML｜parameter>"
            ),
        },
        begins=r"<｜DSML｜(?:function_calls|tool_calls)>",
        vllm=("deepseek_v32", "deepseek_v4", "deepseek_v41"),
    ),
    "deepseek_v3": Calls(
        markers=(("<｜tool▁sep｜>", "```json"),),
        field={
            "open_pattern": r"\s*(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\w*<｜tool▁sep｜>"
            r"(?P<name>[^\n]+)\n```json\n",
            "close_pattern": r"\s*```\s*<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?",
            **_ARGUMENTS,
        },
        begins=r"<｜tool▁calls▁begin｜>",
        vllm=("deepseek_v3",),
        strict=CallForm(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n",
            "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ),
    "deepseek_v31": Calls(
        markers=(("<｜tool▁sep｜>",),),
        field={
            "open_pattern": r"\s*(?:<｜tool▁calls▁begin｜>\s*)?<｜tool▁call▁begin｜>\s*"
            r"(?P<name>[^\s<]+)\s*<｜tool▁sep｜>",
            "close_pattern": r"<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?",
            **_ARGUMENTS,
        },
        begins=r"<｜tool▁calls▁begin｜>",
        vllm=("deepseek_v31",),
        strict=CallForm(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
    ),
    "minimax_m2": Calls(
        markers=(("<minimax:tool_call>",),),
        field={
            "open_pattern": r"\s*(?:<minimax:tool_call>\s*)?<invoke name=[\"']?(?P<name>[^\"'>\s]+)[\"']?>",
            "close_pattern": r"</invoke>(?:\s*</minimax:tool_call>)?",
            **_tags(r"<parameter name=[\"']?(?P<key>[^\"'>]+)[\"']?>(?P<value>.*?)</parameter>"),
        },
        begins=r"<minimax:tool_call>",
        vllm=("minimax_m2",),
    ),
    "seed_oss": Calls(
        markers=(("<seed:tool_call>",),),
        field={
            "open_pattern": r"\s*<seed:tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>(?:\s*</seed:tool_call>)?",
            **_FUNCTION_TAGS,
        },
        begins=r"<seed:tool_call>",
        vllm=("seed_oss",),
    ),
    "qwen3_coder": Calls(
        markers=(("<function=",),),
        field={
            "open_pattern": r"\s*(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>(?:\s*</tool_call>)?",
            **_FUNCTION_TAGS,
        },
        begins=r"<tool_call>\s*<function=",
        vllm=("qwen3_coder", "qwen3_xml", "mimo", "step3p5"),
    ),
    "glm45": Calls(
        markers=(("<arg_key>",),),
        field={
            "open_pattern": r"\s*<tool_call>\s*(?P<name>[^\s<{\[]+)\s*(?=<arg_key>|</tool_call>)",
            "close": "</tool_call>",
            **_tags(r"<arg_key>\s*(?P<key>[^<]+?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"),
        },
        begins=r"<tool_call>\s*\w+\s*<arg_key>",
        vllm=("glm45", "glm47", "ling3"),
    ),
    "command_a": Calls(
        markers=(("<|START_ACTION|>",),),
        field={
            "open_pattern": r"\s*<\|START_ACTION\|>",
            "close": "<|END_ACTION|>",
            **_LIST,
            "transform": _call("{tool_name}", "{parameters}"),
        },
        begins=r"<\|START_ACTION\|>",
        ends=r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>",
        vllm=("cohere_command3", "cohere_command4"),
        reasoning="command_a",
        strict=CallForm(
            "<|START_ACTION|>",
            '[\n    {"tool_call_id": "0", "tool_name": "{name}", "parameters": ',
            "}\n]<|END_ACTION|>",
        ),
    ),
    "command_r": Calls(
        markers=(("```json", "Action:"),),
        field={
            "open_pattern": r"\s*Action:\s*```json\s*",
            "close": "```",
            **_LIST,
            "transform": _call("{tool_name}", "{parameters}"),
        },
    ),
    "mistral_v11": Calls(
        markers=(("[TOOL_CALLS]", "[ARGS]"),),
        field={
            "open_pattern": r"\s*\[TOOL_CALLS\]\s*(?P<name>[^\s\[{]+)(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\]\s*|(?=\{))",
            "close_pattern": r"</s>|(?=\[TOOL_CALLS\])",
            **_ARGUMENTS,
        },
        begins=r"\[TOOL_CALLS\]",
        vllm=("mistral",),
        reasoning="mistral",
        strict=CallForm("[TOOL_CALLS]", "{name}[ARGS]", ""),
    ),
    "mistral": Calls(
        markers=(("[TOOL_CALLS]",),),
        field={"open_pattern": r"\s*\[TOOL_CALLS\]\s*(?=[\[{])", "close": "</s>", **_LIST},
        begins=r"\[TOOL_CALLS\]",
        vllm=("mistral",),
        strict=CallForm("[TOOL_CALLS]", ' [{"name": "{name}", "arguments": ', "}]"),
    ),
    "nemotron": Calls(
        markers=(("<TOOLCALL>",),),
        field={"open_pattern": r"\s*<TOOLCALL>", "close": "</TOOLCALL>", **_LIST},
        begins=r"<TOOLCALL>",
        strict=CallForm("<TOOLCALL>", '[{"name": "{name}", "arguments": ', "}]</TOOLCALL>"),
    ),
    "phi4_mini": Calls(
        markers=(("<|/tool_call|>",), ("functools[",), ("<|tool|>", "<|/tool|>")),
        field={
            "open_pattern": r"\s*(?:<\|tool_call\|>\s*|functools\s*)(?=[\[{])",
            "close": "<|/tool_call|>",
            **_LIST,
        },
        vllm=("phi4_mini_json",),
        strict=CallForm("<|tool_call|>", '[{"name": "{name}", "arguments": ', "}]<|/tool_call|>"),
    ),
    "granite": Calls(
        markers=(("<|start_of_role|>", "<|tool_call|>"),),
        field={"open_pattern": r"\s*(?:<\|tool_call\|>|<tool_call>)\s*(?=[\[{])", "close": "</tool_call>", **_LIST},
        vllm=("granite",),
        strict=CallForm("<|tool_call|>", '[{"name": "{name}", "arguments": ', "}]"),
    ),
    "pythonic": Calls(
        markers=(("<|python_start|>",), ("<|header_start|>",), ("[func_name1(",), ("<|python_tag|>", "[func")),
        field={
            "open_pattern": r"\s*(?:<\|python_start\|>|<\|python_tag\|>)?(?=\[\s*[A-Za-z_][\w.\-]*\()",
            "close": ["<|python_end|>", "<|eom_id|>", "<|eot_id|>", "<|eot|>"],
            "content": "python-call-list",
            "transform_each": True,
            "transform": _call("{name}", "{arguments}"),
        },
        ends=r"<\|python_end\|>",
        vllm=("pythonic", "llama4_pythonic"),
    ),
    "llama3_json": Calls(
        markers=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
        field={
            "open_pattern": r"\s*(?:;\s*)?(?:<\|python_tag\|>\s*)?(?=\{\s*\"(?:name|parameters|arguments|type)\"\s*:)",
            "close_pattern": r";|<\|eom_id\|>|<\|eot_id\|>",
            **_OBJECT,
            "transform": _call("{content.name}", "{content.parameters}"),
        },
        vllm=("llama3_json", "llama4_json"),
        strict=CallForm('{"name": ', '"{name}", "parameters": ', "}"),
    ),
    "jamba": Calls(
        markers=(("<tool_calls>",),),
        field={"open_pattern": r"\s*<tool_calls>", "close": "</tool_calls>", **_LIST},
        vllm=("jamba",),
        strict=CallForm("<tool_calls>", '[{"name": "{name}", "arguments": ', "}]</tool_calls>"),
    ),
    "hermes": Calls(
        markers=(("<tool_call>", "</tool_call>"),),
        field={"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", **_OBJECT},
        begins=r"<tool_call>\s*\{",
        vllm=("hermes", "qwen3_json", "granite4", "ernie45"),
        strict=HERMES,
    ),
}
"""The parts for calls, the more special ones first. Hermes' form serves Qwen 2.5 and 3, Granite 4 and SmolLM3, too."""

REASONING: Final[Mapping[str, Reasoning]] = {
    "gpt_oss": Reasoning(
        open=r"(?:<\|start\|>assistant)?<\|channel\|>analysis\s*<\|message\|>",
        close=r"<\|end\|>|<\|return\|>|<\|call\|>",
        texts=ReasoningTexts(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant<|channel|>final<|message|>",
            "<|channel|>final<|message|>",
        ),
        markers=(("<|channel|>", "<|start|>"),),
        vllm=("openai_gptoss",),
    ),
    "gemma4": Reasoning(
        open=r"<\|channel>thought\n?",
        close=r"<channel\|>",
        texts=ReasoningTexts("<|channel>thought\n", "<channel|>"),
        markers=(("<|channel>",),),
        vllm=("gemma4",),
    ),
    "command_a": Reasoning(
        open=r"<\|START_THINKING\|>",
        close=r"<\|END_THINKING\|>",
        texts=ReasoningTexts("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|START_RESPONSE|>"),
        markers=(("<|START_THINKING|>",),),
        vllm=("cohere_command3", "cohere_command4"),
    ),
    "mistral": Reasoning(
        open=r"\[THINK\]",
        close=r"\[/THINK\]",
        texts=ReasoningTexts("[THINK]", "[/THINK]"),
        markers=(("[THINK]",),),
        vllm=("mistral",),
    ),
    "seed_oss": Reasoning(
        open=r"<seed:think>",
        close=r"</seed:think>",
        texts=ReasoningTexts("<seed:think>", "</seed:think>"),
        markers=(("<seed:think>",),),
        vllm=("seed_oss",),
    ),
    "granite": Reasoning(
        open=r"(?:Here's|Here is) my thought process:",
        close=r"(?:Here's|Here is) my response:",
        texts=ReasoningTexts("Here is my thought process:", "Here is my response:"),
        markers=(("my thought process:",),),
        vllm=("granite",),
    ),
    "think": Reasoning(
        open=r"<think>",
        close=r"</think>",
        texts=ReasoningTexts("<think>", "</think>"),
        markers=(("<think>",), ("</think>",)),
        ends=r"\s*</think>",
        vllm=(
            "deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "qwen3", "glm45", "glm47", "kimi_k2",
            "minimax_m2", "minimax_m2_append_think", "nemotron_v3", "granite_thinking_parser", "ernie45", "holo2",
            "ling3", "mimo", "step3", "step3p5", "step5", "olmo3",
        ),
    ),
}  # fmt: skip
"""The parts for reasoning, the more special ones first."""


def find_calls(name: str, chat_template: str = "") -> str | None:
    """The part for calls with our name or vLLM's. Where a name has several forms, the chat template decides."""
    if name in CALLS and name not in CALLS[name].vllm:
        return name
    named = [part for part, calls in CALLS.items() if part == name or name in calls.vllm]
    return next((part for part in named if _has(chat_template, CALLS[part].markers)), named[-1] if named else None)


def find_reasoning(name: str) -> str | None:
    """The part for reasoning with our name or vLLM's."""
    if name in REASONING:
        return name
    return next((part for part, reasoning in REASONING.items() if name in reasoning.vllm), None)


def detect(chat_template: str) -> tuple[str | None, str | None]:
    """The parts for calls and for reasoning that a chat template writes; None for none."""
    calls = next((name for name, part in CALLS.items() if _has(chat_template, part.markers)), None)
    reasoning = next((name for name, part in REASONING.items() if _has(chat_template, part.markers)), None)
    return calls, reasoning


def _has(chat_template: str, markers: tuple[tuple[str, ...], ...]) -> bool:
    return any(all(text in chat_template for text in texts) for texts in markers)


def compose(calls: str | None, reasoning: str | None) -> dict[str, Json]:
    """The response template of two parts."""
    fields: dict[str, Json] = {}
    part = None if calls is None else CALLS[calls]
    thinking = None if reasoning is None else REASONING[reasoning]
    if thinking is not None:
        close = thinking.close if part is None or not part.begins else f"{thinking.close}|(?={part.begins})"
        fields["thinking"] = {"open_pattern": thinking.open, "close_pattern": close, "repeats": True, "join": "\n"}
    if part is not None:
        fields["tool_calls"] = dict(part.field)
    ends = [text for text in (part and part.ends, thinking and thinking.ends) if text]
    fields["content"] = {"repeats": True, "join": "\n", **({"close_pattern": "|".join(ends)} if ends else {})}
    anchors = list(ANCHORS if part is None else part.anchors)
    return {"version": 1, "defaults": {"role": "assistant"}, "start_anchor": anchors, "fields": fields}


def reasoning_texts(program: Program) -> ReasoningTexts | None:
    """The delimiters of a template's reasoning as texts: its literals, or those of the part with its pattern."""
    for item in program.fields:
        if item.role == "reasoning" and item.open is not None and item.close is not None:
            if item.open.literals and item.close.literals:
                return ReasoningTexts(item.open.literals[0], item.close.literals[0])
            pattern = item.open.pattern.pattern
            return next((part.texts for part in REASONING.values() if part.open == pattern), None)
    return None
