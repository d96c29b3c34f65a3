"""Prompts of Responses: vLLM's render route, and the number of their tokens.

    POST /v1/responses/render   {"input"}, a body of /v1/responses  -> {"token_ids", ...}
    POST /tokenize              the same                            -> {"count", "max_model_len", "tokens", ...}

As for chats, all of vLLM's fields are accepted, unknown ones without effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from hf_transformer.api.bodies import read_declared
from hf_transformer.api.call import Call
from hf_transformer.api.chats import TemplateVariables, render_chat
from hf_transformer.api.images import ChatImages
from hf_transformer.api.message_form import JsonObjectFormat, JsonSchemaFormat
from hf_transformer.api.openai import responses
from hf_transformer.api.rendered import (
    CHOICE,
    RenderBody,
    RenderChatRequest,
    choose_served,
    reply_rendered,
    reply_tokens,
    request_id_of,
)
from hf_transformer.api.service import Service
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.types.fields import Form, about, only
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json


class RenderResponsesRequest(RenderBody, kw_only=True):
    """A body of responses."""

    input: responses.Input
    instructions: Annotated[str | None, about("A system message before the input.")] = None
    tools: responses.FlatTools = None
    tool_choice: Annotated[Json, CHOICE] = None
    text: Annotated[responses.TextOptions | None, about("Form of a message that calls no tool.")] = None
    reasoning: Annotated[responses.ReasoningOptions | None, about("Its effort is the variable reasoning_effort.")] = (
        None
    )
    chat_template_kwargs: TemplateVariables = None
    max_output_tokens: Annotated[int | None, about("Maximum number of new tokens.")] = None
    include: Annotated[list[Json] | None, about("Whether tokens have log probabilities.")] = None
    top_logprobs: Annotated[int, about("Likeliest tokens beside each token.")] = 0
    previous_response_id: Annotated[Json, only(None, because=responses.ALL_ITEMS)] = None


class TokenizeResponsesRequest(RenderResponsesRequest):
    """A body of responses, and the form of the answer."""

    return_token_strs: Annotated[bool, about("The names of tokens in the answer.")] = False


RENDER_FORM, TOKENIZE_FORM = Form(RenderResponsesRequest), Form(TokenizeResponsesRequest)


async def render(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the request for a response."""
    body = read_declared(call, RENDER_FORM, payload)
    model = choose_served(service, call, body.model)
    form = None if body.text is None else responses.in_chats(body.text.format)
    if isinstance(form, JsonSchemaFormat):
        body.response_format = {"type": "json_schema", "json_schema": {"schema": form.json_schema.schema}}
    elif isinstance(form, JsonObjectFormat):
        body.response_format = {"type": "json_object"}
    images = ChatImages(model, call.budget, renders=True)
    return await reply_rendered(
        *(service, call, model, body, await _render(call, model, body, images)),
        request_id=f"resp_{request_id_of(call, body)}" if body.request_id is None else request_id_of(call, body),
        limit=body.max_output_tokens,
        logprobs=body.top_logprobs if responses.LOGPROBS in (body.include or ()) else None,
        name="input",
        special=_has_special_tokens(model),
        images=images,
    )


async def tokenize(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the tokens of the prompt of a response."""
    body = read_declared(call, TOKENIZE_FORM, payload)
    model = choose_served(service, call, body.model)
    images = ChatImages(model, call.budget, renders=True)
    prompt = await _render(call, model, body, images)
    special = _has_special_tokens(model) if body.add_special_tokens is None else body.add_special_tokens
    return await reply_tokens(
        service, call, model, prompt, "input", special=special, strings=body.return_token_strs, images=images
    )


def _has_special_tokens(model: GenerativeModel) -> bool:
    """Whether the tokenizer adds special tokens to prompts: vLLM's server does so, for Responses alone."""
    return not model.has_predictor


async def _render(call: Call, model: GenerativeModel, body: RenderResponsesRequest, images: ChatImages) -> str:
    messages, paths = responses.read_input(body.input, body.instructions, call.context.ignored, images)
    chat = RenderChatRequest(
        messages=messages,
        tools=responses.read_flat_tools(body.tools),
        tool_choice=body.tool_choice,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
    )
    call.context.field_names = responses.namer(paths)
    return await render_chat(call, model, chat, images)
