"""Reads how a text is to be generated from the parameters of a request, whatever the API calls them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hf_transformer.errors import InvalidInput, TooLarge
from hf_transformer.generation.types import Sampling
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Json

MAX_STOPS = 16
"""Stop strings of one request; OpenAI takes 4."""
MAX_STOP_LENGTH = 1000
"""Characters of a stop string: as much text may be held back while it might begin."""
MAX_STOP_TOKENS = 128
"""Tokens of one request that end its texts."""
MAX_CHOICES = 128
"""Continuations of one prompt, as OpenAI's n."""
MAX_LOGPROBS = 20
"""Likeliest tokens that are told beside each token; OpenAI's chat takes as many."""
MAX_BIASES = 1024
"""Tokens in logit_bias."""
LARGEST_TEMPERATURE = 100.0
SMALLEST = 1e-6
"""Of a temperature that is not 0, and of top_p: in float32, which models reckon in, much less is 0."""
SMALLEST_PENALTY, LARGEST_PENALTY = 0.01, 100.0
"""Of repetition_penalty; the others go from -2 to 2, as with OpenAI."""
SEEDS = 2**63
"""Seeds wrap around here, so that a negative one does as well: predictors take unsigned numbers."""


class SamplingReader:
    """Collects the fields of a Sampling, and what the client called those that are not neutral.

    Errors are InvalidInput or TooLarge that begin with ``parameters.NAME``.

    Args:
        prefix: what stands before the names that the Sampling keeps: where the client's parameters are.
    """

    def __init__(self, given: Parameters, prefix: str = "parameters.") -> None:
        self._given = given
        self._prefix = prefix
        self._values: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def put(self, field: str, value: Any, name: str) -> None:
        """Sets a field of Sampling that the client called ``name``; a neutral value needs no name."""
        self._values[field] = value
        if value != getattr(NEUTRAL, field):
            self._names[field] = f"{self._prefix}{name}"

    def number(self, field: str, default: float, least: float, most: float) -> float:
        """A number under the field's own name. A default that is the service's is named by its flag."""
        if self._is_neutral(field, default):
            return default
        value = self._given.number(field, default, least, most)
        self.put(field, value, field if field in self._given else f"{field} (the service's --{field})")
        return value

    def _is_neutral(self, field: str, default: object) -> bool:
        """Whether there is nothing to read, since the field keeps its neutral value; as most do in most requests."""
        return field not in self._given and default == getattr(NEUTRAL, field)

    def temperature(self, default: float) -> bool:
        """``temperature``; whether it is 0, which says "the likeliest": nothing could be drawn with it."""
        value = self.number("temperature", default, 0.0, LARGEST_TEMPERATURE)
        if 0 < value < SMALLEST:
            raise InvalidInput(
                f"parameters.temperature: {value:g} is out of range, expected 0, or {SMALLEST:g} or more"
            )
        return value == 0

    def top_p(self, default: float) -> None:
        """``top_p``: a part of all probability."""
        self.number("top_p", default, SMALLEST, 1.0)

    def top_k(self, default: int) -> None:
        """``top_k``; -1 (vLLM's) and 0 (transformers') are all tokens."""
        if self._is_neutral("top_k", default):
            return
        value = self._given.integer("top_k", default, -1)
        self.put("top_k", max(value, 0), "top_k" if "top_k" in self._given else "top_k (the service's --top_k)")

    def penalties(self) -> None:
        """The three penalties, which are neutral unless they are given."""
        self.number("repetition_penalty", 1.0, SMALLEST_PENALTY, LARGEST_PENALTY)
        for field in ("presence_penalty", "frequency_penalty"):
            self.number(field, 0.0, -2.0, 2.0)

    def seed(self) -> None:
        """``seed``: any whole number."""
        if "seed" in self._given:
            self.put("seed", self._given.integer("seed", 0, -SEEDS) % SEEDS, "seed")

    def tokens(self, name: str | None, least_name: str | None) -> None:
        """``max_tokens`` and ``min_tokens``, under the names that were given."""
        if name is not None:
            self.put("max_tokens", self._given.integer(name, 0, 1), name)
        if least_name is not None:
            least = self._given.integer(least_name, 0, 0)
            most = self._values.get("max_tokens")
            if most is not None and least > most:
                allowed = f"{name} allows {most}" if name else f"there may be {most} where nothing says how many"
                raise InvalidInput(f"parameters.{least_name}: {least}, but {allowed}")
            if least:  # 0 asks for nothing, so any model can honour it
                self.put("min_tokens", least, least_name)

    def choices(self, name: str) -> None:
        """``n``: how many continuations."""
        if name not in self._given:
            return
        count = self._given.integer(name, 1, 1)
        if count > MAX_CHOICES:
            raise TooLarge(f"parameters.{name}: {count}, at most {MAX_CHOICES} are given of one prompt")
        self.put("n", count, name)

    def stop(self, name: str | None) -> None:
        """``stop``: a string or some."""
        if name is None:
            return
        stops = self._given.strings(name, empty=True, most=MAX_STOPS) or []
        for index, one in enumerate(stops):
            if not one:
                raise InvalidInput(f"parameters.{name}: string {index} is empty, and would be found everywhere")
            if len(one) > MAX_STOP_LENGTH:
                raise TooLarge(
                    f"parameters.{name}: string {index} has {len(one)} characters, at most {MAX_STOP_LENGTH} are taken"
                )
        self.put("stop", tuple(stops), name)

    def stop_token_ids(self, vocab_size: int) -> None:
        """``stop_token_ids``: tokens that end a text, as in vLLM."""
        name = "stop_token_ids"
        if name not in self._given:
            return
        given = self._given.get(name)
        if not isinstance(given, list):
            raise InvalidInput(f"parameters.{name}: expected a list of token ids, got {describe(given)}")
        if len(given) > MAX_STOP_TOKENS:
            raise TooLarge(f"parameters.{name}: {len(given)} tokens, at most {MAX_STOP_TOKENS} are taken")
        for index, one in enumerate(given):
            if type(one) is not int or not 0 <= one < vocab_size:
                shown = one if type(one) is int else describe(one)
                raise InvalidInput(f"parameters.{name}: token {index} is {shown}, expected 0 to {vocab_size - 1}")
        self.put(name, tuple(given), name)

    def ignore_eos(self) -> None:
        if "ignore_eos" in self._given:
            self.put("ignore_eos", self._given.flag("ignore_eos", False), "ignore_eos")

    def logit_bias(self, vocab_size: int) -> None:
        """``logit_bias``: {"id": bias}, with ids as JSON has keys."""
        if "logit_bias" not in self._given:
            return
        given = self._given.get("logit_bias")
        if not isinstance(given, dict):
            raise InvalidInput(f"parameters.logit_bias: expected an object, got {describe(given)}")
        if len(given) > MAX_BIASES:
            raise TooLarge(f"parameters.logit_bias: {len(given)} tokens, at most {MAX_BIASES} are taken")
        self.put("logit_bias", dict(_bias(key, value, vocab_size) for key, value in given.items()), "logit_bias")

    def logprobs(self, count: int, name: str) -> None:
        """``logprobs``: how many of the likeliest tokens are told beside each."""
        if count > MAX_LOGPROBS:
            raise TooLarge(f"parameters.{name}: {count}, at most {MAX_LOGPROBS} tokens are told")
        self.put("logprobs", count, name)

    def drop_randomness(self, name: str) -> None:
        """Makes it greedy; ``name`` is the parameter that says so, empty for the service's default. What was read of
        the draw means nothing then."""
        for field in ("temperature", "top_k", "top_p", "min_p", "seed"):
            self._values.pop(field, None)
            self._names.pop(field, None)
        self._values["greedy"] = True
        if name:
            self._names["greedy"] = f"{self._prefix}{name}"

    def length(self, name: str) -> None:
        """What the client calls max_length, which is no field of Sampling."""
        self._names["max_length"] = f"{self._prefix}{name}"

    def finish(self) -> Sampling:
        return Sampling(**self._values, names=self._names)


NEUTRAL = Sampling()


def _bias(key: str, value: Json, vocab_size: int) -> tuple[int, float]:
    if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
        raise InvalidInput(f"parameters.logit_bias: {key[:20]!r} is no token's id, expected 0 to {vocab_size - 1}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput(f"parameters.logit_bias: token {key} has {describe(value)}, expected a number")
    if not -100 <= value <= 100:
        raise InvalidInput(f"parameters.logit_bias: token {key} has {value:g}, expected -100 to 100")
    return int(key), float(value)


def limited(sampling: Sampling, limit: int | None, max_length: int | None = None) -> Mapping[str, Any]:
    """What ``--max_new_tokens`` changes of a Sampling: nothing, or ``max_tokens`` where the client says nothing.

    Args:
        max_length: what bounds the prompt and new tokens together, where ``max_tokens`` says nothing; the client's own
            where the sampling has a name for it, else the service's default.

    Raises:
        TooLarge: it asks for more.
    """
    if limit is None:
        return {}
    name, wanted, shown = sampling.names.get("max_tokens", "max_tokens"), sampling.max_tokens, sampling.max_tokens
    if wanted is None and max_length is not None:
        wanted, shown = max_length - 1, max_length  # a prompt has a token at least
        if wanted > limit and "max_length" not in sampling.names:
            return {"max_tokens": limit}
        name = sampling.names.get("max_length", "max_length")
    if wanted is not None and wanted > limit:
        raise TooLarge(f"{name}: {shown}, at most {limit} new tokens are given (--max_new_tokens)")
    return {} if wanted is not None else {"max_tokens": limit}
