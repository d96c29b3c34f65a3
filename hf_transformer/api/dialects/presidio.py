"""Presidio's REST API: POST /analyze finds personal data with the served model, POST /anonymize replaces it.

Differences from Presidio's containers: one service has both routes, the entities are those of the model, and the
regular expressions of Presidio's recognizers are absent. --enable_pii_patterns adds a small set of its own. A client's
regular expression is never run. docs/dialects.md has the table.

Texts are personal data: errors name fields and positions, never values.

Source: https://microsoft.github.io/presidio/api-docs/api-docs.html
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256, sha512
from operator import attrgetter, itemgetter
from typing import Annotated, Final, Literal

import orjson
from msgspec import Struct

from hf_transformer.api.bodies import OpenModelBody, read_declared, rename_fields
from hf_transformer.api.call import Call
from hf_transformer.api.dialects.routes import DialectRoute, typed_route
from hf_transformer.api.error_forms import message_of
from hf_transformer.api.responses import reply_arrays
from hf_transformer.api.service import Model, Service
from hf_transformer.api.tokenize import off_loop
from hf_transformer.errors import FieldError, InvalidInput, Path, RequestError
from hf_transformer.tasks.base import VALUE_BYTES
from hf_transformer.tasks.entities import entities_of
from hf_transformer.tasks.masking import CHARACTER_BYTES, TextEntity, read_entities
from hf_transformer.tasks.personal_data import FINDERS, find_personal_data
from hf_transformer.tasks.token_classification import TokenClassification
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.types.fields import NO_EFFECT, Form, Natural, NonEmpty, OpenBody, about, only, read_value
from hf_transformer.types.http import Response
from hf_transformer.types.request import Json, Query

NAMES: Final[Mapping[str, str]] = {
    **{"PER": "PERSON", "LOC": "LOCATION", "GPE": "LOCATION", "ORG": "ORGANIZATION", "NORP": "NRP"},
    **{"DATE": "DATE_TIME", "TIME": "DATE_TIME"},
}
"""Presidio's names of usual labels; other labels keep their names. --entity_names replaces the table."""
MODEL_RECOGNIZER, PATTERN_RECOGNIZER = "TransformersRecognizer", "PatternRecognizer"
NO_EXPRESSIONS: Final = "the service runs no regular expression of a client"
NO_WORDS: Final = "context words belong to Presidio's regular expressions, which the service does not have"
RESULT_VALUES: Final = 12
"""Values of a result in the answer, with its metadata."""
ITEM_VALUES: Final = 6
"""Values of an item in the answer of /anonymize."""
MAX_ANONYMIZERS, MAX_RESULTS, MAX_ALLOWED = 1000, 20_000, 1000
MIN_SALT: Final = 16
REPLACEMENT: Final = re.compile(r"<([^<>\n]{1,100}?)(?:_[0-9]{1,7})?>")
"""The replacement of an entity by /anonymize and by LiteLLM's output_parse_pii."""
SPACES: Final = re.compile(r" +\n?")
"""The spaces between neighbours: Presidio's expression ends with ``$``, which is before a last line feed, too."""


class AnalyzeRequest(OpenModelBody, kw_only=True):
    text: Annotated[
        str | NonEmpty[Json],
        about("A text, or a list of texts.", expected="a text or a list of texts", shown=(str, NonEmpty[str])),
    ]
    language: Annotated[str, about("The language of the text; the model decides what it reads.")]
    entities: Annotated[list[str] | None, about("The entities of the answer; all if not given or empty.")] = None
    score_threshold: Annotated[float | None, about("Results with a lower score are left out.")] = None
    return_decision_process: Annotated[bool, about("Give analysis_explanation with each result.")] = False
    allow_list: Annotated[list[str] | None, about("Texts that are no personal data, compared exactly.")] = None
    allow_list_match: Annotated[Json, only("exact", because=NO_EXPRESSIONS)] = None
    regex_flags: Annotated[int | None, NO_EFFECT] = None
    correlation_id: Annotated[str | None, NO_EFFECT] = None
    ad_hoc_recognizers: Annotated[Json, only([], because=NO_EXPRESSIONS)] = None
    context: Annotated[Json, only([], because=NO_WORDS)] = None


class AnalyzerResult(OpenBody, kw_only=True):
    start: Annotated[Natural, about("The first character.")]
    end: Annotated[Natural, about("The character behind the last one.")]
    entity_type: Annotated[str, about("The entity.")]
    score: Annotated[float, about("Decides between results of the same characters.")] = 0.0


class Anonymizer(OpenBody, kw_only=True):
    type: Annotated[
        Literal["replace", "redact", "mask", "hash", "keep"],
        about(hint="encrypt and custom exist in Presidio's library only"),
    ]
    new_value: Annotated[str | None, about("The text of replace; the entity in < > if not given.")] = None
    masking_char: Annotated[str | None, about("The character of mask.")] = None
    chars_to_mask: Annotated[int | None, about("Characters that mask covers.")] = None
    from_end: Annotated[bool | None, about("Whether mask begins at the end.")] = None
    hash_type: Annotated[Literal["sha256", "sha512"] | None, about("The function of hash; sha256 if not given.")] = None
    salt: Annotated[str | None, about("The salt of hash, 16 bytes or more; a random one if not given.")] = None


class AnonymizeRequest(OpenBody, kw_only=True):
    text: Annotated[str, about("The text.")]
    analyzer_results: Annotated[
        list[Json], about("Results of /analyze.", expected="a list of results", shown=(list[AnalyzerResult],))
    ]
    anonymizers: Annotated[
        dict[str, Json] | None,
        about("The operator of each entity, and DEFAULT; replace if not given.", shown=(dict[str, Anonymizer],)),
    ] = None
    conflict_resolution: Annotated[str | None, NO_EFFECT] = None


class RecognitionMetadata(Struct):
    recognizer_name: str


class AnalysisExplanation(Struct):
    recognizer: str
    original_score: float
    score: float
    textual_explanation: str


class RecognizerResult(Struct):
    entity_type: str
    start: int
    end: int
    score: float
    analysis_explanation: AnalysisExplanation | None
    recognition_metadata: RecognitionMetadata


class AnonymizedItem(Struct):
    start: int
    end: int
    entity_type: str
    text: str
    operator: str
    score: float


class AnonymizeResponse(Struct):
    text: str
    items: list[AnonymizedItem]


ANALYZE, ANONYMIZE, ANONYMIZER = Form(AnalyzeRequest), Form(AnonymizeRequest), Form(Anonymizer)


# /analyze


async def analyze(service: Service, call: Call, model: Model, body: AnalyzeRequest) -> Response:
    """Returns the results of a text, or a list of them for a list of texts."""
    single = isinstance(body.text, str)
    if isinstance(body.text, str):
        texts = [body.text]
        rename_fields(call.context, {("text", 0): ("text",)})
    else:
        call.budget.few("text", body.text)
        texts = read_value(body.text, list[str], ("text",))
    settings = model.task.settings.personal_data
    strategy = model.task.settings.flags.get("aggregation_strategy")
    aggregation = "simple" if strategy in (None, "none") else strategy
    marks_tokens = model.task.name == TokenClassification.name
    labels: Sequence[str] = model.task.info()["labels" if marks_tokens else "default_labels"]
    if not labels:
        raise InvalidInput("entities", "a service with --labels", "a model whose labels come with the request")
    entities = entities_of(labels) if marks_tokens else labels
    names = {label: name for label in entities if (name := name_of(label, settings.names))}
    wanted = _read_entities(body.entities, {*names.values()}, patterns=settings.patterns)
    # Windows, since personal data behind the model's length would stay in the text.
    options: dict[str, Json] = {
        **({"output_format": "pipeline", "aggregation_strategy": aggregation} if marks_tokens else {}),
        **({} if model.task.settings.on_overflow == "error" else {"stride": model.task.settings.window_stride}),
    }
    if (allowed := body.allow_list) and len(allowed) > MAX_ALLOWED:
        raise InvalidInput("allow_list", f"at most {MAX_ALLOWED} texts", str(len(allowed)))
    answers = await model.predict(Query(texts, options, name="text"), call.context)
    length = sum(map(len, texts))
    values = sum(map(len, answers.predictions)) * RESULT_VALUES
    call.budget.add_values(values, values * VALUE_BYTES, "text")

    def collect() -> list[list[Json]]:
        return [
            _results(text, entities, body, names, wanted, patterns=settings.patterns)
            for text, entities in zip(texts, answers.predictions, strict=True)
        ]

    results = await off_loop(service.executor, length if settings.patterns else values, collect)
    return await reply_arrays(results[0] if single else results, call.context, service.executor)


def name_of(label: str, names: Mapping[str, str | None] | None) -> str | None:
    """Presidio's name of a model's label; None for a label without one."""
    return NAMES.get(label.upper(), label.upper()) if names is None else names.get(label)


def _read_entities(entities: list[str] | None, known: set[str], *, patterns: bool) -> frozenset[str] | None:
    """The entities of the answer; None for all. Raises InvalidInput for one that neither the model nor a pattern
    finds."""
    known = known | (FINDERS.keys() if patterns else set())
    for index, entity in enumerate(entities or ()):
        if entity not in known:
            hint = "Presidio finds others with regular expressions, which the service does not have"
            if entity in FINDERS:
                hint = "start the service with --enable_pii_patterns"
            raise InvalidInput(("entities", index), f"one of {', '.join(sorted(known))}", "another entity", hint)
    return frozenset(entities) if entities else None


def _results(
    text: str,
    entities: Sequence[Json],
    body: AnalyzeRequest,
    names: Mapping[str, str],
    wanted: frozenset[str] | None,
    *,
    patterns: bool,
) -> list[Json]:
    """The results of a text, the best score first as in Presidio. A replacement of /anonymize has no result."""
    replaced = _replacements(text, {*names.values()})
    found = [
        (TextEntity(entity.start, entity.end, names[entity.label], entity.score), MODEL_RECOGNIZER)
        for entity in read_entities(entities, text)
        if entity.label in names and not _is_inside(entity, replaced)
    ]
    if patterns:
        found += [(entity, PATTERN_RECOGNIZER) for entity in find_personal_data(text)]
    allowed, least = frozenset(body.allow_list or ()), body.score_threshold or 0.0
    kept = [
        (entity, recognizer)
        for entity, recognizer in found
        if (wanted is None or entity.label in wanted)
        and entity.score >= least
        and not (allowed and text[entity.start : entity.end] in allowed)
    ]
    kept.sort(key=lambda pair: (-pair[0].score, pair[0].start))
    return [_result(entity, recognizer, explained=body.return_decision_process) for entity, recognizer in kept]


def _replacements(text: str, names: Collection[str]) -> list[tuple[int, int]]:
    """The (start, end) of replacements such as <PERSON> and <PERSON_1>, in text order.

    A proxy sends them again: it masks a chat, and then an answer that repeats the masked words.
    """
    known = {*names, *FINDERS}
    return [found.span() for found in REPLACEMENT.finditer(text) if found[1] in known]


def _is_inside(entity: TextEntity, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the spans, which are in text order and apart, contains the entity."""
    after = bisect_right(spans, entity.start, key=itemgetter(0))
    return after > 0 and entity.end <= spans[after - 1][1]


def _result(entity: TextEntity, recognizer: str, *, explained: bool) -> Json:
    explanation = {
        "recognizer": recognizer,
        "original_score": entity.score,
        "score": entity.score,
        "textual_explanation": f"Identified as {entity.label} by {recognizer}",
    }
    return {
        "entity_type": entity.label,
        "start": entity.start,
        "end": entity.end,
        "score": entity.score,
        "analysis_explanation": explanation if explained else None,
        "recognition_metadata": {"recognizer_name": recognizer},
    }


# /anonymize


async def anonymize(service: Service, call: Call, payload: Mapping[str, Json]) -> Response:
    """Replaces the results of a text. No model is asked."""
    body = read_declared(call, ANONYMIZE)
    call.budget.check_copies(len(body.text), "text", "characters")
    if len(body.analyzer_results) > MAX_RESULTS:
        raise InvalidInput("analyzer_results", f"at most {MAX_RESULTS}", str(len(body.analyzer_results)))
    if len(body.anonymizers or ()) > MAX_ANONYMIZERS:
        raise InvalidInput("anonymizers", f"at most {MAX_ANONYMIZERS}", str(len(body.anonymizers or ())))
    results = read_value(body.analyzer_results, list[AnalyzerResult], ("analyzer_results",))
    for index, result in enumerate(results):
        _check_result(result, len(body.text), ("analyzer_results", index))
    operators = {
        name: _checked(ANONYMIZER.read(value, path=("anonymizers", name[:40])), ("anonymizers", name[:40]))
        for name, value in (body.anonymizers or {}).items()
    }
    default = operators.get("DEFAULT") or Anonymizer(type="replace")
    merged = merge_results(body.text, results)
    copies = sum(_length(operators.get(one.label, default), one) for one in merged)
    call.budget.check_copies(copies, "anonymizers", "characters in replacements")
    call.budget.hold((2 * copies + len(body.text)) * CHARACTER_BYTES, "anonymizers")
    call.budget.add_values(len(merged) * ITEM_VALUES, len(merged) * ITEM_VALUES * VALUE_BYTES, "analyzer_results")
    answer = await off_loop(
        service.executor, len(body.text) + copies, lambda: _replace(body.text, merged, operators, default)
    )
    return await reply_arrays(answer, call.context, service.executor)


def _check_result(result: AnalyzerResult, length: int, path: Path) -> None:
    if result.start > result.end:
        raise InvalidInput((*path, "start"), f"at most the end, {result.end}", str(result.start))
    if result.end > length:
        raise InvalidInput((*path, "end"), f"at most the text's length, {length}", str(result.end))


def _checked(operator: Anonymizer, path: Path) -> Anonymizer:
    """Raises InvalidInput for a mask without its parameters, and for a short salt."""
    if operator.type == "mask":
        if operator.masking_char is None or len(operator.masking_char) != 1:
            raise InvalidInput((*path, "masking_char"), "a character", "none or several")
        for name in ("chars_to_mask", "from_end"):
            if getattr(operator, name) is None:
                raise InvalidInput((*path, name), "a value, for mask", "none")
    if operator.salt is not None and len(operator.salt.encode("utf-8", "surrogatepass")) < MIN_SALT:
        raise InvalidInput((*path, "salt"), f"{MIN_SALT} bytes or more", "fewer")
    return operator


def merge_results(text: str, results: Sequence[AnalyzerResult]) -> list[TextEntity]:
    """Merges results as Presidio does, in text order.

    Results of an entity that overlap become one with the best score. Results inside of others are dropped. Of results
    with the same characters the best score stays, and the last one of equal scores. Neighbours of an entity with only
    spaces between become one, which has the second one's score.

    Source: anonymizer_engine.py of presidio-anonymizer 2.2.366. Its order of results, that of the last ones that were
    united, decides between equal scores and what is a neighbour, so it is kept.
    """
    entities = [TextEntity(one.start, one.end, one.entity_type, one.score) for one in results]
    entities.sort(key=attrgetter("start", "end"))
    merged: list[TextEntity] = []
    for entity in _without_contained(_united(entities)):
        last = merged[-1] if merged else None
        if last is not None and last.label == entity.label and SPACES.fullmatch(text, last.end, entity.start):
            merged[-1] = TextEntity(last.start, entity.end, entity.label, entity.score)
        else:
            merged.append(entity)
    return sorted(merged, key=attrgetter("start", "end"))


def _united(entities: Sequence[TextEntity]) -> list[TextEntity]:
    """One entity in place of those of a label that overlap, where the last one of them was."""
    kept: list[tuple[int, TextEntity]] = []
    latest: dict[str, tuple[int, TextEntity]] = {}  # by label
    for place, entity in enumerate(entities):
        united = entity
        if entity.label in latest:
            _, before = latest[entity.label]
            if min(before.end, entity.end) > entity.start:
                score = max(before.score, entity.score)
                united = TextEntity(before.start, max(before.end, entity.end), entity.label, score)
            else:
                kept.append(latest[entity.label])
        latest[entity.label] = place, united
    return [entity for _, entity in sorted([*kept, *latest.values()], key=itemgetter(0))]


def _without_contained(entities: Sequence[TextEntity]) -> list[TextEntity]:
    """The entities that are not inside of another one, in their order."""

    def outermost(place: int) -> tuple[int, int, float, int]:
        entity = entities[place]
        return entity.start, -entity.end, -entity.score, -place

    kept, end = [], -1
    for place in sorted(range(len(entities)), key=outermost):
        if entities[place].end > end:
            kept.append(place)
            end = entities[place].end
    return [entities[place] for place in sorted(kept)]


def _length(operator: Anonymizer, entity: TextEntity) -> int:
    """The most characters of a replacement."""
    if operator.type == "replace":
        return len(operator.new_value or "") or len(entity.label) + 2
    return {"redact": 0, "hash": 128}.get(operator.type, entity.end - entity.start)


def _replace(
    text: str, entities: Sequence[TextEntity], operators: Mapping[str, Anonymizer], default: Anonymizer
) -> dict[str, Json]:
    """The anonymized text with its items, the last one first. An entity that overlaps the next one ends there."""
    parts: list[str] = []
    items: list[Json] = []
    length = position = 0
    for index, entity in enumerate(entities):
        operator = operators.get(entity.label, default)
        before = text[position : entity.start]
        new = OPERATORS[operator.type](operator, entity, text[entity.start : entity.end])
        start = length + len(before)
        length = start + len(new)
        following = entities[index + 1].start if index + 1 < len(entities) else len(text)
        position = min(entity.end, following)
        parts += before, new
        items.append(
            {
                **{"start": start, "end": length, "entity_type": entity.label},
                **{"text": new, "operator": operator.type, "score": entity.score},
            }
        )
    parts.append(text[position:])
    return {"text": "".join(parts), "items": items[::-1]}


def _mask(operator: Anonymizer, entity: TextEntity, found: str) -> str:
    count = min(len(found), max(operator.chars_to_mask or 0, 0))
    masked = (operator.masking_char or "*") * count
    return found[: len(found) - count] + masked if operator.from_end else masked + found[count:]


def _hash(operator: Anonymizer, entity: TextEntity, found: str) -> str:
    """The hash of the text and a salt. A salt per entity prevents a search through all names."""
    salt = os.urandom(32) if operator.salt is None else operator.salt.encode("utf-8", "surrogatepass")
    function = sha512 if operator.hash_type == "sha512" else sha256
    return function(found.encode("utf-8", "surrogatepass") + salt).hexdigest()


OPERATORS: Final[Mapping[str, Callable[[Anonymizer, TextEntity, str], str]]] = {
    "replace": lambda operator, entity, found: operator.new_value or f"<{entity.label}>",
    "redact": lambda operator, entity, found: "",
    "mask": _mask,
    "hash": _hash,
    "keep": lambda operator, entity, found: found,
}


# Errors and routes


def render_presidio(error: RequestError, status: int) -> bytes:
    """Serializes an error in Presidio's form."""
    return orjson.dumps({"error": message_of(error)})


def anonymizer_status(error: RequestError) -> int:
    """422 for a field that is not as expected, as in Presidio's anonymizer."""
    is_field = isinstance(error, FieldError) and error.path not in ((), ("body",))
    return 422 if is_field and error.status == 400 else error.status


ROUTES: tuple[DialectRoute, ...] = (
    typed_route(
        "/analyze",
        "presidio",
        ANALYZE,
        (TokenClassification.name, ZeroShotTokenClassification.name),
        analyze,
        render_presidio,
        list[RecognizerResult],
        list[list[RecognizerResult]],
    ),
    DialectRoute(
        path="/anonymize",
        dialect="presidio",
        handle=anonymize,
        render_error=render_presidio,
        status=anonymizer_status,
        form=ANONYMIZE,
        answers=(AnonymizeResponse,),
    ),
)
