"""The common parts of vLLM's derender routes: the model, the request, limits, and the reader of messages.

See derender.py for the routes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from hf_transformer.api.call import Call
from hf_transformer.api.chat_tools import read_tools
from hf_transformer.api.chats import render_chat
from hf_transformer.api.dialects import derender_types as types
from hf_transformer.api.message_form import ANY_TOOL, read_choice
from hf_transformer.api.rendered import RenderBody, choose_served
from hf_transformer.api.service import Service
from hf_transformer.api.tokenize import DECODED_BYTES, off_loop
from hf_transformer.errors import ContextLengthExceeded, InvalidInput, Path
from hf_transformer.generation.derender import Derenderer, EndRules, TokenNames
from hf_transformer.generation.model import GenerativeModel
from hf_transformer.generation.parameters import StopIds, StopTexts
from hf_transformer.generation.stream import LOGPROB_BYTES
from hf_transformer.generation.tools import ForcedCallReader, MessageReader
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.types.fields import Form, read_value
from hf_transformer.types.paths import EACH, Names
from hf_transformer.types.request import Json
from hf_transformer.types.tokenization import TokenIds, Tokenization

TOKEN_COST: Final = 20
"""Time to turn a token into text, in units of off_loop's."""
Kind = TypeVar("Kind", bound=types.GeneratedChoice)
CHAT, COMPLETION = "chat_request", "completion_request"


@dataclass(frozen=True, slots=True)
class Derendering:
    """The parts that turn the tokens of a request into an answer.

    Attributes:
        body: the body, without its parts.
        asked: the request of the chat or of the completion, if the body has it.
        reader: makes a reader of one message; None to show texts as they are.
    """

    model: GenerativeModel
    body: Any
    asked: RenderBody | None
    rules: EndRules
    texts: Derenderer
    names: TokenNames
    reader: Callable[[], MessageReader] | None = None

    @property
    def hides(self) -> bool:
        """Whether the answer leaves out what would show the reasoning, beside the reasoning."""
        return self.reader is not None and not chat_of(self.asked).include_reasoning

    @property
    def shows_ids(self) -> bool:
        return self.asked is not None and bool(self.asked.return_token_ids) and not self.hides

    def head(self, call: Call, generated: types.GeneratedChunk, object: str) -> dict[str, Json]:
        """The first fields of an answer."""
        return {
            "id": call.context.request_id if generated.request_id is None else generated.request_id,
            "object": object,
            "created": int(time.time()),
            "model": call.context.model_name if self.body.model is None else self.body.model,
        }


def chat_of(asked: RenderBody | None) -> types.DerenderedChat:
    if not isinstance(asked, types.DerenderedChat):
        raise AssertionError("messages are read with the chat's request")
    return asked


# Requests


def begin(service: Service, call: Call, body: Any, field: str, form: Form[Any]) -> Derendering:
    """Reads the request in ``field`` of a body, and chooses the model. Raises RequestError."""
    value, asked = getattr(body, field), None
    if value is not None:
        unknown: list[str] = []
        asked = form.read(value, unknown, (field,))
        for name in unknown:
            note_ignored(f"{field}.{name}", call.context.ignored)
    model = choose_served(service, call, body.model or (asked.model if asked is not None else None))
    tokenizer = model.tokenizer
    rules = EndRules(tokenizer.token_to_id(tokenizer.special_tokens.get("eos_token", "")), model.end_ids)
    skips = asked is None or asked.skip_special_tokens
    if asked is not None:
        stops: str | list[str] | None = read_value(asked.stop, StopTexts, (field, "stop"))
        stop_ids: list[int] | None = read_value(asked.stop_token_ids, StopIds, (field, "stop_token_ids"))
        texts = [stops] if isinstance(stops, str) else stops or []
        rules = EndRules(
            *(rules.end_id, rules.end_ids, stop_ids or [], texts, max(asked.min_tokens, 0)),
            ignores_end=asked.ignore_eos,
            keeps_stop=asked.include_stop_str_in_output,
        )
    if body.stream and rules.stops:
        hint = "text that was sent can't be cut any more"
        raise InvalidInput((field, "stop"), "no strings with a stream", f"{len(rules.stops)}", hint)
    shown = model.responses.shown_tokens if model.responses is not None and field == CHAT else ()
    hidden = frozenset(tokenizer.skipped_tokens().values()) - frozenset(shown) if skips else frozenset[int]()
    return Derendering(model, body, asked, rules, Derenderer(tokenizer, hidden), TokenNames(tokenizer))


async def with_reader(call: Call, made: Derendering, prompt: Sequence[int] | None) -> Derendering:
    """Adds the reader of the messages. ``prompt`` are the prompt's tokens, if they are known."""
    model = made.model
    if made.asked is None:
        if model.responses is None:
            return made
        hint = "without it, delimiters of reasoning and calls would be shown"
        raise InvalidInput(CHAT, "the chat's request", "nothing", hint)
    chat = chat_of(made.asked)
    call.context.field_names = Names({(name,): (CHAT, name) for name in types.CHAT.names})
    tools = read_tools(chat.tools, call.limits)
    mode, name = read_choice(chat.tool_choice, tools)
    forced = (name or ANY_TOOL) if mode == "required" else None
    callable_tools = [] if mode == "none" else tools
    responses = model.responses
    if forced is None and (responses is None or not responses.reads(callable_tools)):
        return made
    if prompt is not None:
        decode = model.tokenizer.decode_unclean
        known = [token for token in prompt if token < model.tokenizer.vocab_size]
        text = decode(known, False)
    else:
        text = await render_chat(call, model, chat)

    def make() -> MessageReader:
        reads = responses is not None and responses.reads(callable_tools)
        parser = responses.parser(text, callable_tools) if responses is not None and reads else None
        reader = parser if forced is None else ForcedCallReader(parser, forced)
        return MessageReader(reader, forced=forced, one_call=chat.parallel_tool_calls is False)

    return replace(made, reader=make)


def read_choices(call: Call, items: list[Json], form: Form[Kind], path: Path) -> list[Kind]:
    call.budget.few((*path, "choices"), items)
    return [form.read(item, path=(*path, "choices", index)) for index, item in enumerate(items)]


async def count_tokens(
    call: Call, model: GenerativeModel, texts: Sequence[tuple[Path, Any]], *more: tuple[Path, Json]
) -> int:
    """Counts the tokens of texts, and of ``more`` ids in the body. Raises InvalidInput, TooLarge or
    ContextLengthExceeded for more than the model's length."""
    tokenizer, ids, ranked = model.tokenizer, list[TokenIds](), 0
    maximum = tokenizer.max_length
    for path, given in more:
        _check_length(path, given or (), maximum)
    for path, choice in texts:
        _check_length((*path, "token_ids"), choice.token_ids or (), maximum)
        content = () if choice.logprobs is None else choice.logprobs.content or ()
        _check_length((*path, "logprobs", "content"), content, maximum)
        ids.append(TokenIds(tuple(min(token, tokenizer.vocab_size) for token in choice.token_ids or ())))
        ranked += sum(1 + len(position.top_logprobs) for position in content)
    name = texts[0][0] if texts else ("choices",)
    call.context.field_names = Names({("instances",): name[:-1], ("instances", EACH): (*name[:-1], EACH)})
    await model.encode(ids, Tokenization(whole=True, token_values=1), call.context)
    count = sum(len(text.ids) for text in ids)
    call.budget.add_values(ranked, ranked * LOGPROB_BYTES, name)
    call.budget.hold(tokenizer.decoded_length([text.ids for text in ids]) * DECODED_BYTES, name)
    call.context.instances, call.context.tokens, call.context.values = len(texts), count, count + ranked
    return count


def _check_length(path: Path, items: Sequence[Json], maximum: int) -> None:
    if len(items) > maximum:
        raise ContextLengthExceeded(path, f"at most the model's {maximum} tokens", str(len(items)), limit=maximum)


async def make_off_loop(service: Service, call: Call, make: Callable[[], Json], read: int = 0) -> Json:
    """Makes the texts of an answer, in a thread if they are long. ``read`` is the number of tokens to read again."""
    return await off_loop(service.executor, call.context.values * TOKEN_COST + read, make)


def usage_of(prompt: int, new: int) -> dict[str, Json]:
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def asks_for_ids(made: Derendering) -> bool:
    return made.asked is not None and bool(made.asked.return_token_ids)


def most_of_chat(made: Derendering) -> int | None:
    """The number of candidates of a position that a chat asks for; None for all."""
    chat = made.asked
    if not isinstance(chat, types.DerenderedChat) or not chat.logprobs or chat.logprob_token_ids:
        return None
    return None if chat.top_logprobs == -1 else max(chat.top_logprobs or 0, 0)


def most_of_completion(made: Derendering) -> int | None:
    """The number of candidates of a position that a completion asks for, and the token itself; None for all."""
    asked = made.asked
    if not isinstance(asked, types.DerenderedCompletion) or asked.logprob_token_ids:
        return None
    return None if asked.logprobs in (None, -1) else max(asked.logprobs + 1, 0)
