"""Texts to tokens and back, for the routes of several APIs that count tokens or need token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Annotated, TypeVar

from hf_transformer.api.errors import expect
from hf_transformer.api.service import Model
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import Servable, Task
from hf_transformer.tasks.options import MAX_PROMPT_LENGTH
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import read_text_or_pair
from hf_transformer.tasks.text_embedding import read_token_ids
from hf_transformer.tokenizer.tokenizer import Tokenizer
from hf_transformer.types.fields import Body, Form, about
from hf_transformer.types.request import Context, Query
from hf_transformer.types.tokenization import TextInput, TokenIds, Tokenization

TOKEN_VALUES = 7
"""The number of response values per token: id, token, two offsets, special mask, type id and sequence id."""
MAX_INLINE_TOKENS = 2000
"""The maximum tokens per call on the event loop, for up to 1 ms. Calls with more tokens use a thread."""
DECODED_BYTES = 4
"""Bytes of a decoded character, as text and as JSON. Most tokens are far shorter than the longest one."""
VALUES_PER_TOKEN = 100
"""The components of vectors whose comparison or quantization takes as long as rendering a token, about 0.5 us."""

Result = TypeVar("Result")


class TokenizeParameters(Body):
    add_special_tokens: Annotated[bool | None, about("Special tokens; those of the predict route by default.")] = None
    return_tokens: Annotated[bool, about("Tokens with their ids, offsets and masks.")] = True


class PromptedTokenizeParameters(TokenizeParameters):
    """The parameters for models with prompts."""

    prompt: Annotated[
        str | None, about("A text before each text.", parameter="prompt", schema={"maxLength": MAX_PROMPT_LENGTH})
    ] = None
    prompt_name: Annotated[str | None, about("One of the model's prompts.", parameter="prompt_name")] = None


TOKENIZE, TOKENIZE_PROMPTED = Form(TokenizeParameters), Form(PromptedTokenizeParameters)
PARAMETERS = ("parameters",)


async def off_loop(executor: Executor | None, tokens: int, function: Callable[[], Result]) -> Result:
    """Calls a function, in a thread for more than MAX_INLINE_TOKENS."""
    if tokens <= MAX_INLINE_TOKENS:
        return function()
    return await asyncio.get_running_loop().run_in_executor(executor, function)


async def decode(
    model: Model, query: Query, executor: Executor | None, skip_special_tokens: bool, context: Context
) -> list[str]:
    """Returns the text of each list of ids. Raises InvalidInput for anything else."""
    texts, tokenizer = read_lists(query), model.tokenizer
    # For ids, ``encode`` only counts tokens, to check the limits of texts.
    await model.encode(texts, Tokenization(whole=True, token_values=1), context)
    tokens = sum(len(text.ids) for text in texts)
    await off_loop(executor, tokens, lambda: check_ids(texts, query.name, tokenizer))
    ids = [text.ids for text in texts]
    length = await off_loop(executor, tokens, lambda: tokenizer.decoded_length(ids))
    budget = context.budget
    if budget is not None:
        budget.hold(length * DECODED_BYTES, query.name)
    return await tokenizer.decode_off_loop(ids, executor, skip_special_tokens)


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A client's text or pair, and its form for the model with the ``prompt`` and in lower case."""

    original: TextInput
    prepared: TextInput
    prompt: str = ""


def read_tokenize(query: Query, task: Servable) -> tuple[list[PreparedText], Tokenization]:
    """Parses the texts and options of a request. Raises InvalidInput for an invalid instance or parameter."""
    # Only tasks that read sentence-transformers files change a text before tokenization. A reranker's prompt depends on
    # the side, which a text alone doesn't have.
    has_prompts = task.reads_sentence_transformers and not isinstance(task, Rerank)
    parameters = (TOKENIZE_PROMPTED if has_prompts else TOKENIZE).read(query.parameters, path=PARAMETERS)
    inputs = [read_text_or_pair(value, (query.name, index)) for index, value in enumerate(query.instances)]
    texts = [PreparedText(text, text) for text in inputs]
    if isinstance(task, Task) and isinstance(parameters, PromptedTokenizeParameters):
        options = task.options(TOKENIZE_PROMPTED.options(parameters))
        # These tasks don't support pairs, so pairs remain unchanged.
        texts = [
            PreparedText(text, task.texts(text, options)[0], options.prompt)
            if isinstance(text, str)
            else PreparedText(text, text)
            for text in inputs
        ]
    tokens, special = parameters.return_tokens, parameters.add_special_tokens
    return texts, Tokenization(tokens, whole=True, special_tokens=special, token_values=TOKEN_VALUES if tokens else 0)


def read_lists(query: Query) -> list[TokenIds]:
    """Reads the lists of ids in a request, without a check of the ids. Raises InvalidInput for other types."""
    texts = []
    for index, instance in enumerate(query.instances):
        if isinstance(instance, dict) and instance.keys() == {"token_ids"}:
            instance = instance["token_ids"]
        expect(instance, list, (query.name, index), 'a list of token ids or {"token_ids": list}')
        texts.append(TokenIds(tuple(instance)))
    return texts


def check_ids(texts: Sequence[TokenIds], name: str, tokenizer: Tokenizer) -> None:
    """Raises InvalidInput for an element that is not a token id."""
    for index, text in enumerate(texts):
        path = (name, index)
        ids = read_token_ids(list(text.ids), path, tokenizer.vocab_size).ids if text.ids else ()
        for token in set(ids):
            if tokenizer.id_to_token(token) is None:
                raise InvalidInput((*path, ids.index(token)), "the id of a token", str(token))
