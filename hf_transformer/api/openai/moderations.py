"""OpenAI's moderations: whether texts are harmful, by a text classifier.

    {"input": "..." | ["...", ...] | [{"type": "text", "text": "..."}, ...], "model": "m"}
    -> {"id": "modr-...", "model": "m", "results": [{"flagged", "categories": {"hate": false, ...},
        "category_scores": {"hate": 0.001, ...}, "category_applied_input_types": {"hate": ["text"], ...}}]}

A list of parts is one text, joined by line breaks, with one result. With --moderation_categories each result has all
of OpenAI's categories; the input types of those without a label are empty. Otherwise the categories are the labels.

Source: https://platform.openai.com/docs/api-reference/moderations/create
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Struct

from hf_transformer.api.bodies import TASKS, ModelBody, read_body, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.documents import SINGLE_INPUT, DocumentPart
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Service
from hf_transformer.errors import InvalidInput
from hf_transformer.tasks.base import VALUE_BYTES
from hf_transformer.tasks.moderation import CATEGORIES, Moderation
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.types.fields import Form, NonEmpty, about, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query, RequestBudget

TEXTS_OR_PARTS: Final = "a string, a list of strings or a list of parts of text"
VALUES: Final = 3 * len(CATEGORIES)
"""Values of a result with OpenAI's categories."""


class ModerationsRequest(ModelBody):
    input: Annotated[
        str | NonEmpty[Json],
        about(
            "A text, a list of texts, or a list of parts that are one text.",
            expected=TEXTS_OR_PARTS,
            shown=(str, NonEmpty[str], NonEmpty[DocumentPart]),
        ),
    ]


MODERATIONS: Final = Form(ModerationsRequest)
PART: Final = Form(DocumentPart)


async def create(service: Service, call: Call) -> Response:
    """Answers one request. Raises RequestError."""
    model, body = read_body(service, call, MODERATIONS, TASKS["moderations"])
    task = model.task
    if isinstance(task, SequenceClassification) and task.function == "none":
        raise InvalidInput("model", "a model whose labels have probabilities", f"the regression of {model.name!r}")
    texts, single = read_input(body.input, call.budget)
    moderation = task.settings.moderation
    if moderation.categories is not None:  # the task counts its labels
        values = VALUES * len(texts)
        call.budget.add_values(values, values * VALUE_BYTES, "input")
    options = {"output_format": "pipeline", "top_k": None, "function_to_apply": "default"}
    query = Query(texts, options, name="input")
    if single:
        rename_fields(call.context, SINGLE_INPUT)
    answers = await model.predict(query, call.context)
    results = [_result(prediction, moderation) for prediction in answers.predictions]
    answer = {"id": f"modr-{call.context.request_id}", "model": call.context.model_name, "results": results}
    return await reply_arrays(answer, call.context, service.executor)


def read_input(value: str | list[Json], budget: RequestBudget) -> tuple[list[Json], bool]:
    """Returns the texts of ``input``, and whether it is a single one. Raises InvalidInput or TooLarge."""
    if isinstance(value, str):
        return [value], True
    budget.few("input", value)
    if isinstance(value[0], dict):
        return ["\n".join(PART.read(part, path=("input", index)).text for index, part in enumerate(value))], True
    return read_value(value, list[str], ("input",)), False


def _result(prediction: Json, moderation: Moderation) -> Json:
    moderated = moderation.moderate({one["label"]: one["score"] for one in prediction})
    return {
        "flagged": moderated.flagged,
        "categories": moderated.flags,
        "category_scores": moderated.scores,
        "category_applied_input_types": {
            name: ["text"] if name in moderated.applied else [] for name in moderated.flags
        },
    }


# The answer


class ModerationResult(Struct):
    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationsResponse(Struct):
    id: str
    model: str
    results: list[ModerationResult]
