"""OpenAI's embeddings: texts or token ids in, a vector for each out.

    {"model": "m", "input": string | [string] | [int] | [[int]], "encoding_format": "float" | "base64",
     "dimensions": 256, "user": "..."}
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}], "model": "m",
        "usage": {"prompt_tokens": 8, "total_tokens": 8}}

Beside OpenAI's fields there are the parameters of the task: prompt, prompt_name, normalize, truncation, stride.

Source: https://platform.openai.com/docs/api-reference/embeddings/create
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from hf_transformer.api.base import Call, Service, reply
from hf_transformer.api.openai.bodies import ask, find_model, named_as_sent, read_fields, require_few, usage
from hf_transformer.api.openai.unused import EVERYWHERE, check_unused
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import describe
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types import Answers, Array, Json, Query, Response

PARAMETERS = ("dimensions", "prompt", "prompt_name", "normalize", "truncation", "stride")
"""Fields that the task reads."""
FIELDS = ("model", "input", "encoding_format", *EVERYWHERE, *PARAMETERS)
INPUT = "a string, a list of strings, a list of token ids or a list of such lists"


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """One request. ``single`` is true where ``input`` itself is the only text; ``base64`` where vectors are to be."""

    query: Query
    single: bool
    base64: bool


async def create(service: Service, call: Call) -> Response:
    """Answers one request."""
    with named_as_sent():
        fields = read_fields(call, FIELDS)
        model = find_model(service.models, fields, "embeddings")
        request = parse(fields, service.max_texts)
    answers = await ask(model, request.query, call.context, single=request.single)
    return reply(render(answers, model.name, request.base64))


def parse(fields: Mapping[str, Json], max_texts: int) -> EmbeddingsRequest:
    """A request's fields.

    Raises:
        InvalidInput: one is missing or not of its type; those that the task reads are left to it.
        TooLarge: more texts than ``max_texts``.
    """
    given = Parameters(fields, FIELDS)
    check_unused(fields)
    encoding = given.choice("encoding_format", "float", ("float", "base64"))
    instances, single = read_input(fields.get("input"), max_texts)
    parameters = {name: fields[name] for name in PARAMETERS if name in fields}
    return EmbeddingsRequest(Query(instances, parameters, name="input"), single, encoding == "base64")


def read_input(given: Json, max_texts: int) -> tuple[list[Json], bool]:
    """The instances of the task in ``input``, and whether it is one text rather than a list of some.

    Raises:
        InvalidInput: it has none of its four forms.
        TooLarge: more texts than ``max_texts``.
    """
    if isinstance(given, str):
        return [given], True
    if not isinstance(given, list):
        raise InvalidInput(f"input: expected {INPUT}, got {'nothing' if given is None else describe(given)}")
    if not given:
        raise InvalidInput(f"input: expected {INPUT}, got an empty list")
    if type(given[0]) is int:
        return [{"token_ids": given}], True
    require_few("input", given, max_texts)
    return [_instance(one, index) for index, one in enumerate(given)], False


def _instance(one: Json, index: int) -> Json:
    if isinstance(one, str):
        return one
    if isinstance(one, list):
        return {"token_ids": one}
    raise InvalidInput(f"input[{index}]: expected a string or a list of token ids, got {describe(one)}")


def render(answers: Answers, model: str, base64: bool) -> bytes:
    """A response's JSON."""
    data = [
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(answers.predictions)
    ]
    body = {"object": "list", "data": data, "model": model, "usage": usage(answers)}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def to_base64(vector: Array) -> str:
    """The bytes of a vector [D], float32 in little endian, as base64; OpenAI's client asks for this by default."""
    return b2a_base64(vector.astype("<f4", copy=False).tobytes(), newline=False).decode("ascii")
