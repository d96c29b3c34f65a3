"""vLLM's render routes: the token ids of the prompts that a model gets, as ``vllm launch render`` answers them.

Routers send the bodies of their clients, which the model's server answers later. So all of vLLM's fields are accepted,
unknown ones without effect. openai/ and anthropic/ have the render routes of Responses and Messages.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from hf_transformer.api.bodies import read_declared, read_texts
from hf_transformer.api.call import Call
from hf_transformer.api.chats import render_chat
from hf_transformer.api.dialects.routes import vllm_route
from hf_transformer.api.images import ChatImages
from hf_transformer.api.rendered import (
    RenderChatRequest,
    RenderCompletionRequest,
    RenderedRequest,
    choose_served,
    encode_prompts,
    generate_request,
    reply_rendered,
    request_id_of,
    sampling_params,
)
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, Path, TooLarge
from hf_transformer.types.fields import Form
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import TokenIds

COMPLETION_FORM, CHAT_FORM = Form(RenderCompletionRequest), Form(RenderChatRequest)


async def completions(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns one request per prompt, in a list."""
    body = read_declared(call, COMPLETION_FORM, payload)
    model = choose_served(service, call, body.model)

    def read_ids(ids: list[Json], path: Path) -> TokenIds:
        return TokenIds(tuple(ids))

    prompts, _ = read_texts(("prompt",), body.prompt, call.budget, read_ids)
    if prompts == [""]:
        raise InvalidInput("prompt", "a prompt", "an empty one")
    encodings = await encode_prompts(service, model, call, body, prompts, body.add_special_tokens, "prompt")
    limit = 16 if body.max_tokens is None else body.max_tokens
    name = f"cmpl-{request_id_of(call, body)}"
    answers = []
    for index, encoding in enumerate(encodings):
        sampling = sampling_params(model, body, encoding, limit, body.logprobs, "prompt")
        request_id = name if len(encodings) == 1 else f"{name}-{index}"
        answers.append(generate_request(body, request_id, encoding, sampling))
    # Each answer repeats the fields of the body, which are as large as its client makes them.
    repeated = len(orjson.dumps({**answers[0], "token_ids": None, "token_offsets": None})) * len(answers)
    if len(answers) > 1 and repeated > service.max_bytes:
        expected = f"other fields that take at most {service.max_bytes} bytes for all prompts (--max_request_bytes)"
        raise TooLarge("prompt", expected, str(repeated))
    call.budget.hold(repeated, "prompt")
    call.context.values = call.context.tokens
    return await reply_arrays(answers, call.context, service.executor)


async def chat(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the request for a chat."""
    body = read_declared(call, CHAT_FORM, payload)
    model = choose_served(service, call, body.model)
    images = ChatImages(model, call.budget, renders=True)
    prompt = await render_chat(call, model, body, images)
    return await reply_rendered(
        *(service, call, model, body, prompt),
        request_id=f"chatcmpl-{request_id_of(call, body)}",
        limit=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        logprobs=body.top_logprobs if body.logprobs else None,
        images=images,
    )


ROUTES = (
    vllm_route("/v1/completions/render", COMPLETION_FORM, completions, list[RenderedRequest]),
    vllm_route("/v1/chat/completions/render", CHAT_FORM, chat, RenderedRequest),
)
