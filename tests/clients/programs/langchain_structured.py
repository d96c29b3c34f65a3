"""LangChain's with_structured_output in its three methods, and a tool that has to be called, also as a stream."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from task import answer


class Visit(BaseModel):
    """A visit of a place."""

    kind: Literal["city", "river"]
    letters: int = Field(ge=1, le=99)
    days: list[Literal["monday", "friday"]] = Field(min_length=1, max_length=2)


@tool
def weather(place: Literal["paris", "rome"], days: int) -> str:
    """The weather."""
    return "sunny"


def use(task: dict[str, Any]) -> dict[str, Any]:
    chat = ChatOpenAI(
        base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0, model=task["model"], seed=5
    )
    results: dict[str, Any] = {}
    for method in ("function_calling", "json_schema"):
        results[method] = chat.with_structured_output(Visit, method=method).invoke(task["message"]).model_dump()
    # Only JSON is asked for in this mode, so any object is an answer; the bias ends it soon.
    loose = ChatOpenAI(
        base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0, model=task["model"],
        temperature=0, logit_bias=task["bias"],
    )  # fmt: skip
    results["json_mode"] = loose.with_structured_output({"type": "object"}, method="json_mode").invoke(task["message"])
    forced = chat.bind_tools([weather], tool_choice="any")
    results["any"] = forced.invoke(task["message"]).tool_calls
    whole: Any = None
    for chunk in forced.stream(task["message"]):
        whole = chunk if whole is None else whole + chunk
    results["stream"] = whole.tool_calls
    formed = chat.bind_tools([weather], tool_choice="any", strict=True, response_format=Visit)
    results["with_format"] = formed.invoke(task["message"]).tool_calls
    try:
        chat.invoke("word " * 5000)
    except ContextOverflowError as error:
        results["long"] = str(error)
    results["named"] = chat.bind_tools([weather], tool_choice="weather").invoke(task["message"]).tool_calls
    return results


answer(use)
