"""The first step of all texts that are made of one prompt: the model reads the prompt once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial

from hf_transformer.core.scheduler import Scheduler
from hf_transformer.errors import RequestError
from hf_transformer.generation.cache import Cache
from hf_transformer.generation.logits_batches import Running
from hf_transformer.generation.stepping import Continuation
from hf_transformer.generation.types import Prompt
from hf_transformer.types import Array, Context


class SharedStart(Running):
    """One item of a batch for all texts that ``join`` in one turn of the event loop. Each chooses its own token of the
    logits that come back, and has a copy of the cache.

    Args:
        sent: called when no more may join.

    Attributes: ``prompt``, what they are made of.
    """

    def __init__(
        self, scheduler: Scheduler[Running], prompt: Prompt, context: Context, sent: Callable[[], object]
    ) -> None:
        self.prompt = prompt
        self._scheduler = scheduler
        self._context = context
        self._sent = sent
        self._texts: dict[Continuation, int] = {}
        self._is_due = False
        self._withdraw: Callable[[], object] | None = None
        self._tokens: Array
        self._source: Array

    @property
    def tokens(self) -> Array:
        return self._tokens

    @property
    def source(self) -> Array:
        return self._source

    @property
    def cache(self) -> Cache | None:
        """None is there yet."""
        return None

    def join(self, text: Continuation, cost: int) -> Callable[[], object]:
        """See Start.join."""
        if not self._is_due:
            # All texts of a request begin in one turn: those that come after this one are there in the next.
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)
        self._texts[text] = cost
        return partial(self._leave, text)

    def _send(self) -> None:
        self._sent()
        if self._texts:
            first = next(iter(self._texts))
            self._tokens, self._source = first.tokens, first.source
            cost = sum(self._texts.values())
            self._withdraw = self._scheduler.submit_step(self, self._decode, self._context, cost, self._done)

    def _leave(self, text: Continuation) -> None:
        self._texts.pop(text, None)
        if not self._texts and self._withdraw is not None:
            self._withdraw()
            self._withdraw = None

    def _decode(self, owner: object, item: object, rows: Mapping[str, Array], options: object) -> None:
        for text in tuple(self._texts):  # perhaps in a thread, while one leaves
            text.decode(owner, item, rows, options)

    def _done(self, error: Exception | None) -> None:
        self._withdraw = None
        texts, self._texts = self._texts, {}
        for text in texts:
            text.done(copy(error) if isinstance(error, RequestError) else error)
