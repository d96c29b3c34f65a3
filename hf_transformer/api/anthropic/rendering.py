"""Prompts of Messages: vLLM's render route, and the number of their tokens.

POST /v1/messages/render    {"messages", "max_tokens"}, a body of /v1/messages  -> {"token_ids", ...}
POST /tokenize              a body of /v1/messages or of its count_tokens       -> {"count", "max_model_len", ...}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from hf_transformer.api.anthropic.bodies import MESSAGES_FORM, ConversationBody
from hf_transformer.api.anthropic.conversation import to_chat
from hf_transformer.api.bodies import read_declared
from hf_transformer.api.call import Call
from hf_transformer.api.chats import render_chat
from hf_transformer.api.images import ChatImages
from hf_transformer.api.rendered import (
    RenderBody,
    RenderChatRequest,
    choose_served,
    reply_rendered,
    reply_tokens,
    request_id_of,
)
from hf_transformer.api.service import Service
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.types.fields import Form, about
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json


class TokenizeMessagesRequest(ConversationBody):
    """A conversation, and the form of the answer."""

    return_token_strs: Annotated[bool, about("The names of tokens in the answer.")] = False


TOKENIZE_FORM = Form(TokenizeMessagesRequest)
OWN_BLOCKS = ("tool_use", "tool_result")
"""Types of blocks that chats of OpenAI do not have."""


async def render(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the request for a message."""
    body = read_declared(call, MESSAGES_FORM, payload)
    model = choose_served(service, call, body.model)
    passed = RenderBody(
        model=body.model,
        stream=bool(body.stream),
        stream_options={"include_usage": True, "continuous_usage_stats": True} if body.stream else None,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        stop=list(body.stop_sequences or ()),
    )
    output = (body.output_config.format if body.output_config is not None else None) or body.output_format
    if output is not None:
        passed.response_format = {"type": "json_schema", "json_schema": {"schema": output.schema}}
    images = ChatImages(model, call.budget, renders=True)
    return await reply_rendered(
        *(service, call, model, passed, await _render(call, model, body, images)),
        request_id=f"chatcmpl-{request_id_of(call, passed)}",
        limit=body.max_tokens,
        logprobs=None,
        images=images,
    )


async def tokenize(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the tokens of the prompt of a message."""
    body = read_declared(call, TOKENIZE_FORM, payload)
    model = choose_served(service, call, body.model)
    images = ChatImages(model, call.budget, renders=True)
    prompt = await _render(call, model, body, images)
    strings = body.return_token_strs
    return await reply_tokens(service, call, model, prompt, "messages", strings=strings, images=images)


async def _render(call: Call, model: GenerativeModel, body: ConversationBody, images: ChatImages) -> str:
    chat = to_chat(body, model, call.context, images)
    rendered = RenderChatRequest(
        messages=chat.messages,
        tools=chat.tools,
        tool_choice=chat.tool_choice,
        chat_template_kwargs=chat.chat_template_kwargs,
    )
    if model.has_predictor:  # vLLM's server does not continue a last message of the assistant
        rendered.add_generation_prompt = chat.add_generation_prompt is not False
        rendered.continue_final_message = chat.continue_final_message is True
    return await render_chat(call, model, rendered, images)


def is_conversation(payload: Mapping[str, Json]) -> bool:
    """Whether a body with ``messages`` is Anthropic's: by its system prompt, tools or blocks."""
    if payload.get("system") is not None or payload.get("thinking") is not None:
        return True
    tools, messages = payload.get("tools"), payload.get("messages")
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    contents = (
        [turn.get("content") for turn in messages if isinstance(turn, dict)] if isinstance(messages, list) else []
    )
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return any(isinstance(block, dict) and block.get("type") in OWN_BLOCKS for block in blocks)
