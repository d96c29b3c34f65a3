"""vLLM's derender routes: the token ids that a model's server has generated as the answer that clients get.

    POST /v1/chat/completions/derender  {"generate_response", "chat_request"}       -> an answer of /v1/chat/completions
                                        {"stream": true, "generate_chunk", "stream_state", "chat_request"}
                                                                                    -> {"chunk", "stream_state"}
    POST /v1/completions/derender       {"generate_responses", "completion_request"}  -> an answer of /v1/completions
                                        {"stream": true, "generate_chunk", "stream_state", "completion_request"}
                                                                                    -> {"chunk", "stream_state"}

A stream has no connection: the client sends each part of the stream of /inference/v1/generate with the state of the
part before it. If the model's answers are read, the state has all tokens so far, and each part is read with them.

Source: vllm/entrypoints/scale_out/derender and vllm/renderers/online_derenderer.py of
https://github.com/vllm-project/vllm, version 0.33
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_transformer.api.bodies import read_declared
from hf_transformer.api.call import Call
from hf_transformer.api.chat_completions import whole_message
from hf_transformer.api.dialects import derender_types as types
from hf_transformer.api.dialects.derender_logprobs import chat_logprobs, completion_logprobs
from hf_transformer.api.dialects.derender_request import (
    CHAT,
    COMPLETION,
    Derendering,
    asks_for_ids,
    begin,
    chat_of,
    count_tokens,
    make_off_loop,
    most_of_chat,
    most_of_completion,
    read_choices,
    usage_of,
    with_reader,
)
from hf_transformer.api.dialects.derender_streams import chat_chunk, completion_chunk
from hf_transformer.api.dialects.routes import vllm_route
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json


async def chat(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the answer to a chat."""
    body: types.DerenderChatRequest = read_declared(call, types.FORMS["chat"], payload)
    made = begin(service, call, body, CHAT, types.CHAT)
    path: Path = ("generate_response",)
    generated = types.ANSWER.read(body.generate_response, path=path)
    choices = read_choices(call, generated.choices, types.FINISHED_CHOICE, path)
    prompt = generated.prompt_token_ids if body.prompt_token_ids is None else body.prompt_token_ids
    placed = _placed(choices, path)
    tokens = await count_tokens(
        *(call, made.model, placed, (("prompt_token_ids",), prompt)),
        ((*path, "prompt_logprobs"), generated.prompt_logprobs),
    )
    made = await with_reader(call, made, prompt)
    texts = await make_off_loop(
        service, call, lambda: [_message_choice(made, choice, prompt or ()) for choice in choices]
    )
    answer = {
        **made.head(call, generated, "chat.completion"),
        "choices": texts,
        "usage": usage_of(body.prompt_tokens or 0, tokens),
        "prompt_logprobs": generated.prompt_logprobs,
        "prompt_token_ids": generated.prompt_token_ids if asks_for_ids(made) else None,
        "kv_transfer_params": generated.kv_transfer_params,
        "metrics": generated.metrics,
    }
    return await reply_arrays(answer, call.context, service.executor)


def _placed(choices: Sequence[types.GeneratedChoice], path: Path) -> list[tuple[Path, types.GeneratedChoice]]:
    """Choices with their paths. Raises InvalidInput for one without tokens."""
    placed = [((*path, "choices", index), choice) for index, choice in enumerate(choices)]
    for where, choice in placed:
        if not choice.token_ids:
            raise InvalidInput((*where, "token_ids"), "the tokens of a text", "none")
    return placed


def _message_choice(made: Derendering, choice: types.GeneratedChoice, prompt: Sequence[int]) -> Json:
    ids = choice.token_ids or []
    text, reason = made.texts.text(prompt, ids, made.rules, choice.finish_reason, choice.stop_reason)
    finish: str | None = choice.finish_reason or "stop"
    if made.reader is None:
        message: dict[str, Json] = {"role": "assistant", "content": text}
    else:
        reader = made.reader()
        deltas = reader.read(text, is_last=True)
        message, _ = whole_message(deltas, shows_reasoning=chat_of(made.asked).include_reasoning)
        finish = reader.reason(finish)
        made.model.count_unreadable(reader.unreadable)
    return {
        "index": choice.index,
        "message": message,
        "logprobs": None if made.hides else chat_logprobs(choice.logprobs, made.names, (), most_of_chat(made)),
        "finish_reason": finish,
        "stop_reason": reason,
        "token_ids": ids if made.shows_ids else None,
    }


async def completion(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Returns the texts of all prompts."""
    body: types.DerenderCompletionRequest = read_declared(call, types.FORMS["completion"], payload)
    made = begin(service, call, body, COMPLETION, types.COMPLETION)
    name, count = "generate_responses", len(body.generate_responses)
    call.budget.few(name, body.generate_responses)
    for field in ("prompt_tokens", "prompt_token_ids"):
        values = getattr(body, field)
        if values is not None and len(values) != count:
            raise InvalidInput(field, f"one for each of the {count} answers", str(len(values)))
    answers = [types.ANSWER.read(answer, path=(name, index)) for index, answer in enumerate(body.generate_responses)]
    prompts = body.prompt_token_ids or [None] * count
    prompts = [answer.prompt_token_ids if own is None else own for answer, own in zip(answers, prompts, strict=True)]
    texts, placed = list[tuple[types.GeneratedIds, types.GeneratedChoice, Sequence[int]]](), list[Any]()
    for index, answer in enumerate(answers):
        choices = read_choices(call, answer.choices, types.FINISHED_CHOICE, (name, index))
        placed += _placed(choices, (name, index))
        texts += [(answer, choice, prompts[index] or ()) for choice in choices]
    call.budget.few(name, placed)
    more: list[tuple[Path, Json]] = [(("prompt_token_ids", index), ids) for index, ids in enumerate(prompts)]
    tokens = await count_tokens(call, made.model, placed, *more)

    def make() -> Json:
        return [_text_choice(made, index, *text) for index, text in enumerate(texts)]

    transfers = answers[0].kv_transfer_params
    rendered = {
        **made.head(call, answers[0], "text_completion"),
        "choices": await make_off_loop(service, call, make),
        "usage": usage_of(sum(body.prompt_tokens or ()), tokens),
        "kv_transfer_params": transfers if all(one.kv_transfer_params == transfers for one in answers) else None,
        "metrics": answers[0].metrics if count == 1 else None,
    }
    return await reply_arrays(rendered, call.context, service.executor)


def _text_choice(
    made: Derendering, index: int, answer: types.GeneratedIds, choice: types.GeneratedChoice, prompt: Sequence[int]
) -> Json:
    ids = choice.token_ids or []
    text, reason = made.texts.text(prompt, ids, made.rules, choice.finish_reason, choice.stop_reason)
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(choice.logprobs, made.names, (), most_of_completion(made)),
        "finish_reason": choice.finish_reason,
        "stop_reason": reason,
        "prompt_token_ids": answer.prompt_token_ids if made.shows_ids else None,
        "token_ids": ids if made.shows_ids else None,
    }


ROUTES = (
    vllm_route("/v1/chat/completions/derender", types.FORMS["chat"], chat, types.DerenderedChatAnswer),
    vllm_route("/v1/chat/completions/derender", types.FORMS["chat chunk"], chat_chunk, types.DerenderedChatPart),
    vllm_route("/v1/completions/derender", types.FORMS["completion"], completion, types.DerenderedCompletionAnswer),
    vllm_route(
        "/v1/completions/derender", types.FORMS["completion chunk"], completion_chunk, types.DerenderedCompletionPart
    ),
)
