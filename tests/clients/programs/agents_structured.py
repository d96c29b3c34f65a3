"""An agent of openai-agents with a tool that has to be called, and a type of its output, in both of OpenAI's APIs."""

from __future__ import annotations

from typing import Any, Literal

import agents
from openai import AsyncOpenAI
from pydantic import BaseModel
from task import answer


class Visit(BaseModel):
    kind: Literal["city", "river"]
    alone: bool


@agents.function_tool
def weather(place: Literal["paris", "rome"]) -> str:
    """The weather."""
    return f"sunny in {place}"


def use(task: dict[str, Any]) -> dict[str, Any]:
    agents.set_tracing_disabled(True)
    results: dict[str, Any] = {}
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        client = AsyncOpenAI(base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0)
        agent = agents.Agent(
            name="a",
            model=kind(task["model"], client),
            tools=[weather],
            output_type=Visit,
            model_settings=agents.ModelSettings(tool_choice="required", parallel_tool_calls=False),
            tool_use_behavior="stop_on_first_tool",
        )
        result = agents.Runner.run_sync(agent, task["message"], max_turns=1)
        results[kind.__name__] = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    return results


answer(use)
