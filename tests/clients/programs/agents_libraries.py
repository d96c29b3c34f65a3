"""Libraries of agents and of other servers, with their default settings wherever those can be kept.

Answers with what each one got: ["answered", text] or [the error's class, its message].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import agents
import cohere
from huggingface_hub import InferenceClient
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from smolagents import OpenAIServerModel
from task import answer

BRIEF = "Be brief."


def weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


class Libraries:
    def __init__(self, given: dict[str, Any]) -> None:
        self._model, self._message = given["model"], given["message"]
        self._root = f"http://{given['http']}"
        self._base = f"{self._root}/openai/v1"
        agents.set_tracing_disabled(True)

    def openai_agents(self, *tools: Any, chats: bool = True) -> str:
        client = AsyncOpenAI(base_url=self._base, api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if chats else agents.OpenAIResponsesModel
        agent = agents.Agent(name="a", instructions=BRIEF, model=kind(self._model, client), tools=[*tools])
        return str(agents.Runner.run_sync(agent, self._message, max_turns=1).final_output)

    def openai_agents_stream(self, *, chats: bool = True) -> str:
        client = AsyncOpenAI(base_url=self._base, api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if chats else agents.OpenAIResponsesModel
        model = kind(self._model, client)

        async def read() -> str:
            run = agents.Runner.run_streamed(agents.Agent(name="a", instructions=BRIEF, model=model), self._message)
            async for _ in run.stream_events():
                pass
            return str(run.final_output)

        return asyncio.run(read())

    def pydantic_ai(self, *tools: Any, kind: Any = OpenAIChatModel, **profile: Any) -> str:
        provider = OpenAIProvider(base_url=self._base, api_key="none")
        model = kind(self._model, provider=provider, profile=OpenAIModelProfile(**profile))
        return str(Agent(model, instructions=BRIEF, tools=tools).run_sync(self._message).output)

    def smolagents(self) -> str:
        model = OpenAIServerModel(model_id=self._model, api_base=self._base, api_key="none")
        return str(model([{"role": "user", "content": [{"type": "text", "text": self._message}]}]).content)

    def huggingface_hub(self) -> str:
        client = InferenceClient(base_url=self._base, api_key="none")
        messages = [{"role": "user", "content": self._message}]
        return str(client.chat_completion(messages, model=self._model, max_tokens=8).choices[0].message.content)

    def huggingface_hub_root(self) -> str:
        return str(InferenceClient(self._root).text_generation(self._message))

    def cohere_v2(self) -> str:
        client = cohere.ClientV2(api_key="none", base_url=self._root)
        return str(client.rerank(model=self._model, query="a", documents=["b"]))


def got(ask: Callable[[], str]) -> list[str]:
    try:
        return ["answered", ask()]
    except Exception as error:
        return [type(error).__name__, str(error)]


def main(given: dict[str, Any]) -> dict[str, list[str]]:
    made = Libraries(given)
    loose = agents.function_tool(weather, strict_mode=False)
    asked: dict[str, Callable[[], str]] = {
        "openai_agents": made.openai_agents,
        "openai_agents_stream": made.openai_agents_stream,
        "openai_agents_tools": lambda: made.openai_agents(loose),
        "openai_agents_strict": lambda: made.openai_agents(agents.function_tool(weather)),
        "openai_agents_responses": lambda: made.openai_agents(loose, chats=False),
        "openai_agents_responses_stream": lambda: made.openai_agents_stream(chats=False),
        "pydantic_ai": made.pydantic_ai,
        "pydantic_ai_tools": lambda: made.pydantic_ai(weather, openai_supports_strict_tool_definition=False),
        "pydantic_ai_responses": lambda: made.pydantic_ai(kind=OpenAIResponsesModel),
        "smolagents": made.smolagents,
        "huggingface_hub": made.huggingface_hub,
        "huggingface_hub_root": made.huggingface_hub_root,
        "cohere_v2": made.cohere_v2,
    }
    return {name: got(ask) for name, ask in asked.items()}


answer(main)
