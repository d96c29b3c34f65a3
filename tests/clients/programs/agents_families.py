"""pydantic-ai and openai-agents with models of several families, with their default settings, as openai_families.py."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from task import answer

CALLED: list[Any] = []


def get_weather(city: str) -> str:
    """The weather in a city."""
    CALLED.append(["get_weather", {"city": city}])
    return "sunny"


async def pydantic_ai(base: str, name: str, question: str, chats: bool, stream: bool) -> str:
    provider = OpenAIProvider(base_url=base, api_key="none")
    model = (OpenAIChatModel if chats else OpenAIResponsesModel)(name, provider=provider)
    agent = Agent(model, tools=[get_weather])
    if not stream:
        return str((await agent.run(question)).output)
    async with agent.run_stream(question) as run:
        return "".join([piece async for piece in run.stream_text(delta=True)])


async def openai_agents(base: str, name: str, question: str, chats: bool, stream: bool) -> str:
    client = AsyncOpenAI(base_url=base, api_key="none", max_retries=0)
    model = (agents.OpenAIChatCompletionsModel if chats else agents.OpenAIResponsesModel)(name, client)
    agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(get_weather)])
    if not stream:
        return str((await agents.Runner.run(agent, question)).final_output)
    run = agents.Runner.run_streamed(agent, question)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


async def use(task: dict[str, Any]) -> dict[str, Any]:
    agents.set_tracing_disabled(True)
    results: dict[str, Any] = {}
    for name, address in task["families"].items():
        for library in (pydantic_ai, openai_agents):
            for way in ("chat", "responses"):
                for stream in (False, True):
                    CALLED.clear()
                    base = f"http://{address}/openai/v1"
                    text = await library(base, task["family_model"], task["question"], way == "chat", stream)
                    key = f"{name} {library.__name__} {way} {'streamed' if stream else 'whole'}"
                    results[key] = [*CALLED[0], None, text] if len(CALLED) == 1 else [*CALLED, text]
    return results


answer(lambda task: asyncio.run(use(task)))
