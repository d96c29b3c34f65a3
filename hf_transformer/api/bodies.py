"""Bodies of all APIs but V1 and V2: reading them, the model that they name, and their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from msgspec import Struct

from hf_transformer.api.call import Call
from hf_transformer.api.errors import expect
from hf_transformer.api.service import Model, Service
from hf_transformer.errors import InvalidInput, Path
from hf_transformer.generation.task import GENERATIVE
from hf_transformer.protocol.server_codec import note_ignored
from hf_transformer.tasks.rerank import Rerank
from hf_transformer.tasks.sequence_classification import SequenceClassification
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.fields import NO_EFFECT, Body, Form, Natural, NonEmpty, OpenBody, about, only, read_value
from hf_transformer.types.paths import Names
from hf_transformer.types.request import Answers, Context, Json, RequestBudget

CHOSEN: Final = about("The model's name; needless where one model has the task.")
GENERATES = "it generates text, as /v2/models/NAME/generate and the OpenAI API do"
TASKS: Mapping[str, tuple[str, ...]] = {
    "embeddings": (TextEmbedding.name,),
    "rerank": (Rerank.name,),
    "moderations": (SequenceClassification.name,),
    "completions": GENERATIVE,
    "chat/completions": GENERATIVE,
    "responses": GENERATIVE,
}
"""Tasks that each endpoint supports."""
TEXTS_OR_IDS = "a string, a list of strings, a list of token ids or a list of such lists"
TextOrIds: TypeAlias = Annotated[str | list[Json], about(expected="a string or a list of token ids")]
"""A text or its token ids, which the task or ``read_token_ids`` reads."""
Prompts: TypeAlias = Annotated[
    str | NonEmpty[Json],
    about(
        "A prompt, its token ids, or a list of prompts.",
        expected=TEXTS_OR_IDS,
        shown=(str, NonEmpty[Natural], NonEmpty[str | NonEmpty[Natural]]),
    ),
]
Unused: TypeAlias = Annotated[str | None, NO_EFFECT]
Priority: TypeAlias = Annotated[Json, only(0, because="the service has no priorities")]


class ModelBody(Body, kw_only=True):
    """A body that names its model, and whose unknown fields are refused."""

    model: Annotated[str | None, CHOSEN] = None


class OpenModelBody(OpenBody, kw_only=True):
    """A body that names its model, and whose unknown fields are noted."""

    model: Annotated[str | None, CHOSEN] = None


Kind = TypeVar("Kind", bound=ModelBody | OpenModelBody)
Declared = TypeVar("Declared", bound=Struct)
Ids = TypeVar("Ids")


def read_body(
    service: Service, call: Call, form: Form[Kind], tasks: Sequence[str], payload: Json = None
) -> tuple[Model, Kind]:
    """Returns the model and the body of a request, see ``read_declared``.

    Raises:
        InvalidInput: the body or one of its fields is not as declared, or the model has another task.
        UnknownModel: the service does not serve the model.
        RequestError: the body is unreadable, see Call.json.
    """
    body = read_declared(call, form, payload)
    return choose_model(service, call, body.model, tasks), body


def read_declared(call: Call, form: Form[Declared], payload: Json = None) -> Declared:
    """Returns the body of a request. ``payload`` is the body if the caller has changed it. Notes unknown fields.

    Sets ``call.context.field_names``: fields of the body are the task's parameters.

    Raises:
        FieldError: the body or one of its fields is not as declared.
        RequestError: the body is unreadable, see Call.json.
    """
    payload = call.json() if payload is None else payload
    unknown: list[str] = []
    body = form.read(payload, unknown)
    for name in unknown:
        note_ignored(name, call.context.ignored)
    call.context.field_names = form.client_names(payload)
    return body


def choose_model(service: Service, call: Call, name: Json, tasks: Sequence[str]) -> Model:
    """Chooses the model by ``name`` (the body's ``model``) or ?model=NAME, else the only one for ``tasks``.

    Raises:
        InvalidInput: the names contradict each other, several models fit, or the model has another task.
        UnknownModel, NotReady: see Models.choose.
    """
    query = call.path.get("model")
    if name is not None and query not in (None, expect(name, str, "model", "a string")):
        raise InvalidInput("model", f"{query!r}, as in the query", repr(name[:100]))
    name, names = query if name is None else name, service.models.names
    if name is None and len(names) == 1:
        name = names[0]  # so that an error says what the only model is for, or why it is absent
    model = service.models.choose(name, call.context, tasks=tasks, path="model")
    if model.task.name not in tasks:
        hint = GENERATES if model.task.name in GENERATIVE else ""
        raise InvalidInput("model", f"a model for {' or '.join(tasks)}", f"{model.name!r} for {model.task.name}", hint)
    return model


def rename_fields(context: Context, names: Mapping[Path, Path]) -> None:
    """Adds names of fields to those that ``read_body`` has set."""
    if not isinstance(context.field_names, Names):
        raise AssertionError("read_body sets the names of fields")
    context.field_names = context.field_names.then(names)


def read_texts(
    path: Path, value: str | list[Json], budget: RequestBudget, read_ids: Callable[[list[Json], Path], Ids]
) -> tuple[list[str | Ids], bool]:
    """Returns a field's texts, and whether the field is a single text. ``read_ids`` converts a list of token ids.

    Raises:
        InvalidInput: an item has another type.
        TooLarge: the field has too many texts.
    """
    if isinstance(value, str):
        return [value], True
    if type(value[0]) is int:
        return [read_ids(value, path)], True
    budget.few(path, value)
    items = enumerate(read_value(value, list[TextOrIds], path))
    return [item if isinstance(item, str) else read_ids(item, (*path, index)) for index, item in items], False


def refuse_ids(path: Path, hint: str = "") -> InvalidInput:
    """The error about token ids in place of a text."""
    return InvalidInput(path, "text", "token ids", hint)


class Usage(Struct):
    """The numbers of input tokens, special tokens included."""

    prompt_tokens: int
    total_tokens: int


def usage(answers: Answers) -> dict[str, Json]:
    """Renders the number of input tokens, special tokens included."""
    return {"prompt_tokens": answers.tokens, "total_tokens": answers.tokens}
