"""Chats whose prompt would be far longer than they are: each is refused, and others are answered meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from hf_transformer.commands.child_process import poll
from tests.integration.conftest import Serve
from tests.integration.generating import CHAT_COMPLETIONS
from tests.integration.hostile.conftest import MAX_GROWTH_BYTES
from tests.support.polling import SECONDS
from tests.support.service import Service

TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson(indent=4) }}{% endfor -%}
{%- for message in messages %}{{ message.role + ': ' + message.content }}
{%- for call in message.tool_calls or [] %}{{ call.function.arguments | tojson(indent=4) }}{% endfor %}{% endfor -%}
"""
"""Indents JSON, as that of Llama 3.1 does."""
MESSAGES = [{"role": "user", "content": "What?"}]


@pytest.fixture(scope="module")
def service(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    template: Path = tmp_path_factory.mktemp("chat") / "template.jinja"
    template.write_text(TEMPLATE)
    with serve.own("gpt2_logits", "v2", f"--chat_template={template}") as running:
        yield running.wait_until("/v1/models/gpt2_logits")


def nested(depth: int, width: int) -> dict[str, Any]:
    """Objects within each other, with so many values within the last."""
    value: Any = list(range(width))
    for _ in range(depth):
        value = {"a": value}
    return {"type": "object", "properties": value}


def of_tools(schema: dict[str, Any], tools: int = 1) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}] * tools}


def of_arguments(schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "f", "arguments": json.dumps(schema)}
    call = {"id": "1", "type": "function", "function": function}
    return {"messages": [*MESSAGES, {"role": "assistant", "content": "", "tool_calls": [call]}]}


CHATS = {
    "tools, 900 deep": (of_tools(nested(900, 50), 80), 413),
    "arguments, 900 deep": (of_arguments(nested(900, 2000)), 413),
    "tools, 60 deep and wide": (of_tools(nested(58, 5000), 10), 413),
    "arguments, 60 deep and wide": (of_arguments(nested(58, 80_000)), 413),
    "a few levels": (of_arguments(nested(1, 1)), 200),
}


@pytest.mark.parametrize("name", [*CHATS])
def test_a_chat_whose_json_expands_in_the_template_is_refused(name: str, service: Service) -> None:
    fields, status = CHATS[name]
    body = {"model": service.model, "messages": MESSAGES, "max_tokens": 1, **fields}
    usual = {"model": service.model, "messages": MESSAGES, "max_tokens": 1}

    def ask(body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{service.url}{CHAT_COMPLETIONS}", json=body, timeout=SECONDS, trust_env=False, verify=False)

    assert ask(usual).status_code == 200  # the first answer takes memory of its own
    before = service.resident_bytes
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, [body] * 7 + [usual]))
    assert [one.status_code for one in answers] == [status] * 7 + [200], answers[0].text
    assert poll(lambda: service.resident_bytes - before < MAX_GROWTH_BYTES, SECONDS)
