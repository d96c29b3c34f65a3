"""instructor with pydantic models in its three modes for servers of OpenAI's API. Answers with each mode's object."""

from __future__ import annotations

from typing import Any, Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field
from task import answer

MODES = ("TOOLS", "JSON", "JSON_SCHEMA", "RESPONSES_TOOLS")


class Place(BaseModel):
    kind: Literal["city", "river"]
    letters: int = Field(ge=1, le=99)


class Visit(BaseModel):
    """A visit of a place."""

    place: Place
    days: list[Literal["monday", "friday"]] = Field(min_length=1, max_length=2)
    alone: bool


class Anything(BaseModel):
    """What the mode JSON is asked for: it asks the server for any JSON object, and describes it in the prompt alone."""

    note: str = ""


def use(task: dict[str, Any]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in MODES:
        client = instructor.from_openai(
            OpenAI(base_url=f"http://{task['http']}/openai/v1", api_key="none", max_retries=0),
            mode=instructor.Mode[name],
        )
        messages = [{"role": "user", "content": task["message"]}]
        options: dict[str, Any] = {"model": task["model"], "messages": messages, "response_model": Visit}
        if name == "JSON":
            options |= {"response_model": Anything, "logit_bias": task["bias"] or None}
        if name == "RESPONSES_TOOLS":
            options["text"] = {"format": {"type": "json_object"}}
        try:
            results[name] = client.chat.completions.create(
                max_retries=0, extra_body={"seed": 5}, **options
            ).model_dump()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results


answer(use)
