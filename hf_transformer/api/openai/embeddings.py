"""OpenAI's embeddings: texts or token ids in, a vector for each out.

    {"model": "m", "input": string | [string] | [int] | [[int]], "encoding_format": "float" | "base64",
     "dimensions": 256, "user": "..."}
    -> {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [...]}], "model": "m",
        "usage": {"prompt_tokens": 8, "total_tokens": 8}}

Token ids need --enable_token_inputs. Beside OpenAI's fields there are the parameters of the task: prompt, prompt_name,
normalize (also normalized), truncation (also truncate), stride.

Source: https://platform.openai.com/docs/api-reference/embeddings/create
"""

from __future__ import annotations

from binascii import b2a_base64

import orjson

from hf_transformer.api.call import Call
from hf_transformer.api.errors import renamed
from hf_transformer.api.openai.fields import TRUNCATE, as_sent, read_request, read_texts, read_truncation, unused, usage
from hf_transformer.api.responses import reply
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.parameters import Parameters
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query
from hf_transformer.types.tensors import Array

PARAMETERS = ("dimensions", "prompt", "prompt_name", "normalize", "truncation", "stride")
"""Fields that the task reads."""
FIELDS = ("model", "input", "encoding_format", *unused("embeddings"), "normalized", TRUNCATE, *PARAMETERS)


async def create(service: Service, call: Call) -> Response:
    """Answers one request."""
    with renamed(as_sent):
        model, given = read_request(service, call, "embeddings", FIELDS)
        sentences = model.task.settings.sentence_transformers if "input_type" in given else None
        if sentences is not None and sentences.prompts:
            raise InvalidInput.of(
                f"input_type: expected prompt_name in its place, one of {', '.join(sentences.prompts)}"
            )
        base64 = given.choice("encoding_format", "float", ("float", "base64")) == "base64"
        query, single = read_query(given, service.max_texts, service.token_inputs)
    with renamed(lambda message: as_sent(message, *(["input[0]"] if single else ()))):
        answers = await model.predict(query, call.context)
    data = [
        {"object": "embedding", "index": index, "embedding": to_base64(vector) if base64 else vector}
        for index, vector in enumerate(answers.predictions)
    ]
    body = {"object": "list", "data": data, "model": model.name, "usage": usage(answers)}
    return reply(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY))


def read_query(given: Parameters, max_texts: int, token_inputs: bool = False) -> tuple[Query, bool]:
    """The texts and the task's parameters, and whether ``input`` is one text rather than a list.

    Raises InvalidInput for token ids without ``token_inputs``; see read_texts for the rest.
    """

    def read_ids(ids: list[Json], where: str) -> Json:
        if not token_inputs:
            raise InvalidInput.of(
                f"{where}: token ids are not taken, since another tokenizer's would give wrong vectors silently. Send "
                "text (LangChain: check_embedding_ctx_length=False). For ids of this model's own tokenizer start the "
                "service with --enable_token_inputs"
            )
        return {"token_ids": ids}

    texts, single = read_texts("input", given.get("input"), max_texts, read_ids)
    parameters = {name: given.get(name) for name in PARAMETERS if name in given}
    if given.one_of("normalize", "normalized") == "normalized":  # as Jina calls it
        parameters["normalize"] = given.flag("normalized", True)
    return Query(texts, parameters | read_truncation(given), name="input"), single


def to_base64(vector: Array) -> str:
    """The bytes of a vector [D], float32 in little endian, as base64; OpenAI's client asks for this by default."""
    return b2a_base64(vector.astype("<f4", copy=False).tobytes(), newline=False).decode("ascii")
