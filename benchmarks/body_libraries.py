"""msgspec and pydantic on bodies of this service: what decision 29 was decided by.

    .venv/bin/pip install pydantic
    .venv/bin/python -m benchmarks.body_libraries msgspec
    .venv/bin/python -m benchmarks.body_libraries pydantic

Prints time and memory of the import, and the microseconds to read a body that orjson has parsed.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import orjson

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
        }
    ],
    "temperature": 0.7,
    "max_tokens": 100,
    "stop": ["\n\n"],
    "stream": True,
}
BODIES: dict[str, dict[str, Any]] = {
    "a chat with a tool": CHAT,
    "32 texts": {"model": "m", "input": [f"text number {number}" for number in range(32)]},
    "512 lists of 256 ids": {"model": "m", "input": [[1, 2, 3, 4] * 64 for _ in range(512)]},
    "32 pairs": {"inputs": [["a query", f"a text {number}"] for number in range(32)], "truncate": True},
}
ROUNDS = 5


def with_msgspec() -> list[Callable[[Any], Any]]:
    from msgspec import Meta, Struct, convert

    class TextPart(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
        text: str

    class Function(Struct):
        name: str
        description: str | None = None
        parameters: dict[str, Any] | None = None

    class Tool(Struct):
        type: Literal["function"]
        function: Function

    class Message(Struct, forbid_unknown_fields=True):
        role: Literal["system", "user", "assistant", "tool"]
        content: str | list[TextPart] | None = None

    class Chat(Struct, forbid_unknown_fields=True):
        messages: list[Message]
        model: str | None = None
        tools: list[Tool] | None = None
        temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
        max_tokens: Annotated[int, Meta(ge=1)] | None = None
        stop: str | list[str] | None = None
        stream: bool | None = None

    class Embeddings(Struct, forbid_unknown_fields=True):
        input: str | list[str | int | list[int]]
        model: str | None = None

    class Pairs(Struct):
        inputs: str | list[str | list[str]]
        truncate: bool = False

    return [partial(convert, type=kind) for kind in (Chat, Embeddings, Embeddings, Pairs)]


def with_pydantic() -> list[Callable[[Any], Any]]:
    from pydantic import BaseModel, ConfigDict, Field

    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=True)

    class TextPart(Strict):
        type: Literal["text"]
        text: str

    class Function(Strict):
        name: str
        description: str | None = None
        parameters: dict[str, Any] | None = None

    class Tool(Strict):
        type: Literal["function"]
        function: Function

    class Message(Strict):
        role: Literal["system", "user", "assistant", "tool"]
        content: str | list[TextPart] | None = None

    class Chat(Strict):
        messages: list[Message]
        model: str | None = None
        tools: list[Tool] | None = None
        temperature: Annotated[float, Field(ge=0, le=100)] | None = None
        max_tokens: Annotated[int, Field(ge=1)] | None = None
        stop: str | list[str] | None = None
        stream: bool | None = None

    class Embeddings(Strict):
        input: str | list[str] | list[int] | list[list[int]]
        model: str | None = None

    class Pairs(Strict):
        inputs: str | list[str] | list[list[str]]
        truncate: bool = False

    return [kind.model_validate for kind in (Chat, Embeddings, Embeddings, Pairs)]


def resident() -> float:
    """Megabytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def fastest(read: Callable[[Any], Any], body: Any) -> float:
    """Microseconds of CPU per body, in the best round."""
    count = 20_000 if len(orjson.dumps(body)) < 5_000 else 50
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            read(body)
        times.append((time.process_time() - start) / count * 1e6)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["msgspec", "pydantic"])
    library = parser.parse_args().library
    memory, start = resident(), time.process_time()
    readers = {"msgspec": with_msgspec, "pydantic": with_pydantic}[library]()
    took = (time.process_time() - start) * 1e3
    print(f"{library}: import and types {took:.0f} ms of CPU, {resident() - memory:.1f} MB")
    for read, (name, body) in zip(readers, BODIES.items(), strict=True):
        print(f"{name}: {fastest(read, body):.1f} us")


if __name__ == "__main__":
    main()
