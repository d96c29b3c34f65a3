"""langchain-openai with models of several families, as openai_families.py."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from task import answer


def asked(model: Any, messages: list[Any], stream: bool) -> Any:
    if not stream:
        return model.invoke(messages)
    whole = None
    for chunk in model.stream(messages):
        whole = chunk if whole is None else whole + chunk
    return whole


def use(task: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, address in task["families"].items():
        for way in ("chat", "responses"):
            model = ChatOpenAI(
                base_url=f"http://{address}/openai/v1",
                api_key="none",
                model=task["family_model"],
                max_retries=0,
                use_responses_api=way == "responses",
            ).bind_tools([task["tool"]])
            for stream in (False, True):
                question = HumanMessage(task["question"])
                first = asked(model, [question], stream)
                [call] = first.tool_calls
                result = ToolMessage("sunny", tool_call_id=call["id"])
                second = asked(model, [question, first, result], stream)
                key = f"{name} {way} {'streamed' if stream else 'whole'}"
                results[key] = [call["name"], call["args"], None, second.text]
    return results


answer(use)
