"""Anthropic's requests as prompts and sampling: blocks, tools, reasoning, and the refusals that name their field."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.api.anthropic.asking import COUNT, PATH, QUESTION, SCHEMA, TOOL, asked, body_of, message, refused
from tests.api.generating import ServedModel, answer_of, post, served_model

TEMPLATE = """{% for message in messages %}[{{ message.role }}:{{ message.content }}
{%- if message.reasoning_content %}|thought {{ message.reasoning_content }}{% endif %}
{%- for call in message.tool_calls or [] %}|{{ call.id }} {{ call.function.name }}
{{- ' ' }}{{ call.function.arguments | tojson }}{% endfor %}
{%- if message.tool_call_id %}|{{ message.tool_call_id }}{% endif %}]{% endfor %}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- if enable_thinking is defined %}{think {{ enable_thinking }}}{% endif %}
{%- if reasoning_effort is defined %}{effort {{ reasoning_effort }}}{% endif %}
{%- if add_generation_prompt %}[assistant:{% endif %}"""
SYSTEM_FIRST = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system prompt has to be first') }}{% endif %}[{{ message.role }}:{{ message.content }}]"
    "{% endfor %}[assistant:"
)
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}


def text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": [*blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": [*blocks]}


CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({}, "[user:Where?][assistant:"),
    "system": ({"system": "Be brief."}, "[system:Be brief.][user:Where?][assistant:"),
    "system blocks": (
        {"system": [text("Be ", cache_control={"type": "ephemeral"}), text("brief.")]},
        "[system:Be brief.][user:Where?][assistant:",
    ),
    "billing": (
        {"system": [text("x-anthropic-billing-header: a=1;"), text("Be brief.")]},
        "[system:Be brief.][user:Where?][assistant:",
    ),
    "blocks of text": ({"messages": [user(text("One."), text("Two."))]}, "[user:One.\nTwo.][assistant:"),
    "one role in a row": (
        {"messages": [QUESTION, user(text("When?")), QUESTION]},
        "[user:Where?\nWhen?\nWhere?][assistant:",
    ),
    "a late system prompt": (
        {"messages": [QUESTION, {"role": "system", "content": [text("Now ")]}, QUESTION]},
        "[user:Where?][system:Now ][user:Where?][assistant:",
    ),
    "calls and results": (
        {
            "messages": [
                QUESTION,
                assistant(
                    *({"type": "thinking", "thinking": "Hm.", "signature": ""}, text("Well."), USE),
                    *({"type": "redacted_thinking", "data": "x"}, {**USE, "id": "b", "caller": {"type": "direct"}}),
                ),
                user({**RESULT, "content": "sunny"}, {**RESULT, "tool_use_id": "b", "content": [text("a"), text("b")]}),
                user(text("And?")),
            ],
        },
        '[user:Where?][assistant:Well.|thought Hm.|toolu_1 weather {"city": "Paris"}|b weather {"city": "Paris"}]'
        "[tool:sunny|toolu_1][tool:a\nb|b][user:And?][assistant:",
    ),
    "an error": (
        {"messages": [QUESTION, assistant(USE), user({**RESULT, "content": "no city", "is_error": True}, text("So?"))]},
        '[user:Where?][assistant:|toolu_1 weather {"city": "Paris"}][tool:Error: no city|toolu_1][user:So?][assistant:',
    ),
    "an empty result": (
        {"messages": [QUESTION, assistant(USE), user(RESULT)]},
        '[user:Where?][assistant:|toolu_1 weather {"city": "Paris"}][tool:|toolu_1][assistant:',
    ),
    "tools": (
        {"tools": [{"input_schema": SCHEMA, "name": "weather", "type": "custom", "cache_control": None}]},
        '[user:Where?]{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", '
        '"properties": {"city": {"type": "string"}}, "required": ["city"]}}}[assistant:',
    ),
    "no choice of tools": ({"tools": [TOOL], "tool_choice": {"type": "none"}}, "[user:Where?][assistant:"),
    "thinking": ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "[user:Where?]{think True}[assistant:"),
    "adaptive": ({"thinking": {"type": "adaptive"}}, "[user:Where?]{think True}[assistant:"),
    "no thinking": ({"thinking": {"type": "disabled"}}, "[user:Where?]{think False}[assistant:"),
    "the template's variable": (
        {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}},
        "[user:Where?]{think False}[assistant:",
    ),
    "effort": ({"output_config": {"effort": "low"}}, "[user:Where?]{think True}{effort low}[assistant:"),
    "effort without thinking": (
        {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
        "[user:Where?]{think False}{effort low}[assistant:",
    ),
}


@pytest.mark.parametrize("name", CHATS)
async def test_a_conversation_as_a_prompt(name: str) -> None:
    fields, expected = CHATS[name]
    async with served_model(template=TEMPLATE) as made:
        answer = await message(made, **fields)
        assert asked(made) == expected
        counted = await answer_of(made, COUNT, body_of(max_tokens=None, **fields))
        assert counted == {"input_tokens": answer["usage"]["input_tokens"]}


async def test_thinking_is_the_variable_that_the_template_has() -> None:
    async with served_model(template="{{ messages[0].content }}{think {{ thinking }}}") as made:
        await message(made, thinking={"type": "enabled"})
        assert asked(made) == "Where?{think True}"


async def test_system_prompts_go_first_where_the_template_takes_no_others() -> None:
    late = {"role": "system", "content": "Now "}
    for template in (SYSTEM_FIRST, "[{{ messages[0].content }}]{% for one in messages[1:] %}[{{ one.content if "
                     "one.role != 'system' }}]{% endfor %}"):  # fmt: skip
        async with served_model(template=template) as made:
            await message(made, system="Be ", messages=[QUESTION, late, {**late, "content": "brief."}, QUESTION])
            assert "Be Now brief." in asked(made), template


async def test_sampling(made: ServedModel) -> None:
    await message(made, temperature=0.5, top_p=0.5, top_k=7, stop_sequences=["a", "b"], max_tokens=9)
    [(_, sampling)] = made.generator.asked
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.5, 7)
    assert (sampling.stop, sampling.max_tokens, sampling.constraint) == (("a", "b"), 9, None)
    await message(made, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    await message(made, output_format={"type": "json_schema", "schema": SCHEMA})
    [first, second] = [sampling.constraint for _, sampling in made.generator.asked[-2:]]
    assert first == second and first is not None and first.kind == "json_schema"


async def test_fields_without_effect(made: ServedModel) -> None:
    """Claude Code sends such requests, with more and longer ones of these."""
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = body_of(
        metadata={"user_id": "user_1_account__session_2"},
        service_tier="auto",
        system=[text("You are Claude Code.", **cached), text("Be brief.", citations=None)],
        messages=[user(text("<system-reminder>a</system-reminder>"), text("Where?", **cached))],
        tools=[{**TOOL, **cached, "eager_input_streaming": True, "defer_loading": False, "strict": None}],
        thinking={"type": "adaptive"},
        output_config={"effort": "medium"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        **cached,
        temperature=1,
        mcp_servers=[],
        no_such_beta={"a": 1},
    )
    status, answer = await post(made, f"{PATH}", body, anthropic_beta="claude-code-20250219,other", user_agent="a")
    assert status == 200 and answer["content"]
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "metadata", "temperature")}
    assert (await answer_of(made, COUNT, counted))["input_tokens"] == answer["usage"]["input_tokens"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens: expected a whole number, got nothing"),
    ({"max_tokens": -1}, "max_tokens: "),
    ({"temperature": -1}, "temperature: "),
    ({"messages": []}, "messages: expected a list of messages"),
    ({"messages": ["a"]}, "messages[0]: expected an object"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: expected one of user, assistant, system"),
    ({"messages": [{"role": "user"}]}, "messages[0].content: expected a string or a list of blocks"),
    ({"messages": [QUESTION, user(text("a"), {"type": "text"})]}, "messages[1].content[1].text: "),
    ({"messages": [user(1)]}, "messages[0].content[0]: expected a block"),
    ({"messages": [user({})]}, "messages[0].content[0].type: expected one of the types text, tool_result, got nothing"),
    ({"messages": [user({"type": 5})]}, "messages[0].content[0].type: "),
    ({"messages": [user({"type": "image", "source": {}})]}, "got 'image'; the model reads text only"),
    ({"messages": [user({"type": "document", "source": {}})]}, "got 'document'; the model reads text only"),
    ({"messages": [user({**RESULT, "content": [{"type": "image"}]})]}, "messages[0].content[0].content[0].type: "),
    ({"messages": [user(RESULT | {"tool_use_id": 5})]}, "messages[0].content[0].tool_use_id: expected a string"),
    ({"messages": [user(USE)]}, "messages[0].content[0].type: expected one of the types text, tool_result"),
    ({"messages": [QUESTION, assistant({**USE, "input": "{}"})]}, "messages[1].content[0].input: expected an object"),
    ({"messages": [QUESTION, assistant({"type": "server_tool_use"})]}, "the service runs no tools"),
    ({"messages": [QUESTION, assistant({"type": "web_search_tool_result"})]}, "the service runs no tools"),
    ({"messages": [QUESTION, assistant(USE)]}, "messages: expected a last message without tool_use"),
    ({"messages": [{"role": "system", "content": [text("x-anthropic-billing-header: a")]}]}, "messages: "),
    ({"system": [{"type": "image"}]}, "system[0].type: expected one of the types text"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema: expected an object, got nothing"),
    ({"tools": [{**TOOL, "name": ""}]}, "tools[0].name: expected a string that is not empty"),
    (
        {"tools": [TOOL, {"type": "bash_20250124", "name": "bash"}]},
        "tools[1].type: expected custom, got 'bash_20250124'",
    ),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "the service runs no tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice: expected no choice without tools, got 'any'; add tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type: expected one of auto, any, tool, none"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name: expected the name of a tool, got nothing"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "a"}}, "tool_choice.name: expected one of weather"),
    ({"tools": [TOOL, TOOL], "tool_choice": {"type": "any"}}, "tools: expected tools with different names"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: expected a JSON schema"),
    ({"thinking": {"type": "on"}}, "thinking.type: expected one of enabled, disabled, adaptive"),
    ({"mcp_servers": [{"url": "a"}]}, "mcp_servers: expected []"),
    ({"container": "a"}, "container: expected no such field"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages: expected no such variable"),
]


@pytest.mark.parametrize(("fields", "expected"), REFUSED, ids=[one[1] for one in REFUSED])
async def test_a_refusal_names_the_clients_field(made: ServedModel, fields: dict[str, Any], expected: str) -> None:
    assert expected in await refused(made, **{"model": "gpt2", **fields})
    assert not made.generator.asked


LARGE = {"type": "object", "description": "a" * 2**18}
FORM = {"type": "json_schema", "schema": LARGE}
LIMITS: list[tuple[dict[str, Any], int, str]] = [
    ({"stop_sequences": ["a"] * 17}, 413, "stop_sequences: expected at most 16 strings, got 17"),
    ({"stop_sequences": ["a" * 1001]}, 413, "stop_sequences[0]: expected at most 1000 characters, got 1001"),
    ({"tools": [{**TOOL, "name": f"a{number}"} for number in range(129)]}, 413, "tools: expected at most 128 tools"),
    ({"tools": [{**TOOL, "strict": True, "input_schema": LARGE}]}, 413, "tools[0].input_schema: "),
    ({"output_config": {"format": FORM}}, 413, "output_config.format.schema: "),
    ({"output_format": FORM}, 413, "output_format.schema: "),
]


@pytest.mark.parametrize(("fields", "status", "expected"), LIMITS, ids=[one[2] for one in LIMITS])
async def test_a_limit(made: ServedModel, fields: dict[str, Any], status: int, expected: str) -> None:
    assert (await refused(made, status, **fields)).startswith(expected)


LONG = "a" * 50
HOSTILE: dict[str, dict[str, Any]] = {
    "messages": {"messages": [QUESTION] * 20_000},
    "turns": {"messages": [QUESTION, {"role": "assistant", "content": "a"}] * 8_000},
    "blocks": {"messages": [user(*[text("a")] * 20_000)]},
    "results": {"messages": [user(*[{**RESULT, "content": "a"}] * 10_000)]},
    "texts of a result": {"messages": [user({**RESULT, "content": [text("a")] * 20_000})]},
    "calls": {"messages": [QUESTION, assistant(*[USE] * 8_000), user(RESULT)]},
    "thoughts": {"messages": [QUESTION, assistant(*[{"type": "thinking", "thinking": LONG}] * 9_000), QUESTION]},
    "system": {"system": [text("a")] * 20_000},
    "late system prompts": {"messages": [QUESTION, *[{"role": "system", "content": "a"}] * 15_000]},
    "fields": {"messages": [{**QUESTION, **{f"a{number}": 1 for number in range(50_000)}}]},
    "an input": {
        "messages": [QUESTION, assistant({**USE, "input": {f"a{n}": n for n in range(50_000)}}), user(RESULT)]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_long_list_costs_no_more_than_its_bytes(name: str) -> None:
    """All are refused by a limit, in a time that grows with the size of the body: seconds would be its square."""
    async with served_model(template=TEMPLATE) as made:
        for path, limit in ((PATH, {}), (COUNT, {"max_tokens": None})):
            body, start = body_of(**HOSTILE[name], **limit), time.perf_counter()
            status, _ = await post(made, path, body)
            assert status in (200, 400, 413) and time.perf_counter() - start < 5, (path, status)
