"""Completions and chat completions of the OpenAI API."""

from __future__ import annotations

from hf_transformer.api.openai.bodies import TASKS
from hf_transformer.api.openai.completions import USUAL_TOKENS
from hf_transformer.api.openai.messages import MAX_TOOLS, ROLES
from hf_transformer.api.openai.unused import VERBOSITY
from hf_transformer.api.openapi.openai import unused
from hf_transformer.api.openapi.operations import (
    EVENTS,
    WORK,
    Described,
    answer,
    body,
    event_of,
    failures,
    ref,
    streamed,
    work,
)
from hf_transformer.tasks.generation_schemas import choices, sampling, stop, stop_token_ids
from hf_transformer.tasks.sampling import MAX_LOGPROBS
from hf_transformer.tasks.schema_forms import (
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    any_of,
    array,
    flag,
    integer,
    nullable,
    record,
    text,
)
from hf_transformer.types import Json

TAG = "OpenAI"
ERROR = ref("OpenAIError")
NULL: Schema = {"type": "null"}
OBJECT: Schema = {"type": "object"}
ENDPOINTS = (
    (
        "completions",
        "openaiCompletions",
        "Completion",
        "What continues a prompt",
        {"prompt": "The capital of france is"},
    ),
    (
        "chat/completions",
        "openaiChat",
        "Chat",
        "What the assistant says to messages",
        {"messages": [{"role": "user", "content": "What is the capital of france?"}]},
    ),
)
STREAM = "With stream, server-sent events with a chunk each, data: [DONE] at their end."


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    found = {}
    for route, name, prefix, summary, example in ENDPOINTS:
        if about.task.name not in TASKS[route]:
            needed = " or ".join(TASKS[route])
            summary += f": needs the task {needed}; this service does {about.task.name} and answers with 400"
        ok = answer(ref(f"{prefix}Response"), f"The texts. {STREAM}")
        found[f"{about.root}/v1/{route}"] = work(
            name,
            summary,
            TAG,
            body(ref(f"{prefix}Request"), {"model": about.models[0], **example}),
            streamed(ok, event_of(ref(f"{prefix}Chunk")), EVENTS),
            fails=failures(WORK, ERROR),
        )
    return found


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    used = record(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), INTEGER))
    return {
        "CompletionRequest": _completion_request(about),
        "CompletionResponse": _response("text_completion", ref("CompletionChoice"), used),
        "CompletionChunk": _chunk("text_completion", ref("CompletionChoice"), used),
        "CompletionChoice": _completion_choice(),
        "ChatRequest": _chat_request(about),
        "ChatResponse": _response("chat.completion", _chat_choice("message"), used),
        "ChatChunk": _chunk("chat.completion.chunk", _chat_choice("delta"), used),
        "ChatMessage": _message(),
        "ChatLogprobs": _chat_logprobs(),
    }


def _shared(about: Described) -> dict[str, Schema]:
    """Fields of both requests."""
    options: dict[str, Schema] = {
        "include_usage": {"type": ["boolean", "null"]},
        "include_obfuscation": {"enum": [False, None]},
    }
    return {
        "stream": flag("Whether the text is given as it comes.", False),
        "stream_options": any_of(record(options, *options), NULL, description="Whether a stream ends with the usage."),
        **unused(),
        "n": choices(),
        "stop": stop(),
        "stop_token_ids": stop_token_ids(about.task.settings),
        "min_tokens": integer("New tokens before a text may end.", 0),
        **sampling(temperature=1.0, top_k=0, top_p=1.0),
    }


def _tokens(default: int | None) -> Schema:
    return integer("New tokens of a text at most.", 1, default)


def _completion_request(about: Described) -> Schema:
    ids = array({**INTEGER, "minimum": 0, "maximum": about.task.settings.vocabulary.vocab_size - 1}, minItems=1)
    one = any_of(STRING, ids)
    limit = about.task.settings.generation.max_new_tokens or USUAL_TOKENS
    own = {
        **_shared(about),
        "max_tokens": _tokens(min(limit, USUAL_TOKENS)),
        "logprobs": {**integer("Likeliest tokens that are told beside each.", 0), "maximum": MAX_LOGPROBS},
        "echo": flag("Whether the prompt is part of the text.", False),
        "suffix": {"enum": ["", None], "description": "Not possible."},
        "best_of": integer("As many as n.", 1),
    }
    prompts = any_of(STRING, ids, array(one, minItems=1), description="A prompt, its tokens, or a list of such.")
    return record({"model": _names(about), "prompt": prompts, **own}, *own)


def _chat_request(about: Described) -> Schema:
    strict = {"enum": [False, None], "description": "Calls can't be held to a schema."}
    tool = {
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {**OBJECT, "properties": {"strict": strict}, "required": ["name"]},
        },
        "required": ["type", "function"],
    }
    own = {
        **_shared(about),
        "max_tokens": _tokens(None),
        "max_completion_tokens": _tokens(None),
        "logprobs": flag("Whether tokens are told.", False),
        "top_logprobs": {**integer("Likeliest tokens that are told beside each.", 0), "maximum": MAX_LOGPROBS},
        "response_format": any_of({**OBJECT, "properties": {"type": {"const": "text"}}, "required": ["type"]}, NULL),
        "tools": any_of(array(tool, maxItems=MAX_TOOLS), NULL, description="What the model may call."),
        "tool_choice": {"enum": ["auto", "none", None], "description": "Whether it may; auto where there are tools."},
        "parallel_tool_calls": flag("Whether a message may have several calls.", True),
        "modalities": any_of({"const": ["text"]}, NULL),
        "verbosity": {"enum": [VERBOSITY, None]},
        "reasoning_effort": {**NULL, "description": "Not possible."},
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Further variables of the template."},
    }
    return record({"model": _names(about), "messages": array(ref("ChatMessage"), minItems=1), **own}, *own)


def _names(about: Described) -> Schema:
    return {"type": "string", "enum": list(about.models)}


def _message() -> Schema:
    part = record({"type": {"const": "text"}, "text": STRING})
    optional: dict[str, Schema] = {
        "content": any_of(STRING, array(part), NULL),
        "tool_calls": any_of(array(OBJECT), NULL),
        "refusal": text("What the assistant has said in place of a content."),
        "annotations": {"enum": [[], None]},
        **dict.fromkeys(
            ("name", "tool_call_id", "reasoning_content", "reasoning"), nullable(STRING, "As with OpenAI.")
        ),
    }
    return {
        "type": "object",
        "properties": {"role": {"type": "string", "enum": list(ROLES)}, **optional},
        "required": ["role"],
    }


def _head(kind: str) -> dict[str, Schema]:
    return {
        "id": STRING,
        "object": {"const": kind},
        "created": {**INTEGER, "description": "In seconds since 1970."},
        "model": STRING,
        "system_fingerprint": NULL,
    }


def _response(kind: str, choice: Schema, used: Schema) -> Schema:
    return record({**_head(kind), "choices": array(choice, minItems=1), "usage": used})


def _chunk(kind: str, choice: Schema, used: Schema) -> Schema:
    return record({**_head(kind), "choices": array(choice), "usage": any_of(used, NULL)}, "usage")


def _completion_choice() -> Schema:
    told = record(
        {
            "tokens": array(STRING, description="Those that are no text alone are told as bytes:\\xe2\\x80."),
            "token_logprobs": array(NUMBER),
            "top_logprobs": any_of(array({"type": "object", "additionalProperties": NUMBER}), NULL),
            "text_offset": array(INTEGER, description="In characters; of part of a character, where this begins."),
        }
    )
    reason = {"enum": ["stop", "length", None]}
    return record({"index": INTEGER, "text": STRING, "logprobs": any_of(told, NULL), "finish_reason": reason})


def _chat_choice(said: str) -> Schema:
    function = record({"name": STRING, "arguments": {**STRING, "description": "An object as JSON text."}})
    call = record({"index": INTEGER, "id": STRING, "type": {"const": "function"}, "function": function}, "index")
    parts: dict[str, Schema] = {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": any_of(array(call), NULL),
        "function_call": NULL,
    }
    reason = {"enum": ["stop", "length", "tool_calls", None]}
    message = record(parts) if said == "message" else record(parts, *parts)
    logprobs = any_of(ref("ChatLogprobs"), NULL)
    return record({"index": INTEGER, said: message, "logprobs": logprobs, "finish_reason": reason})


def _chat_logprobs() -> Schema:
    token = {"token": STRING, "logprob": NUMBER, "bytes": array(INTEGER)}
    return record({"content": array(record({**token, "top_logprobs": array(record(token))}))})
