"""Triton's generate extension."""

from __future__ import annotations

from hf_transformer.api.generate_request import (
    ABOUT,
    BAD_WORDS,
    END_ID,
    EXCLUDE,
    FINISH,
    FURTHER,
    NEW_TOKENS,
    NO_TOKEN,
    PAD_ID,
    PROMPT_TOKENS,
    RANDOM_SEED,
    SAMPLING,
)
from hf_transformer.api.openai.bodies import GENERATION
from hf_transformer.api.openapi.operations import EVENTS, WORK, Described, answer, body, event_of, failures, ref, work
from hf_transformer.tasks.generation_schemas import text_generation
from hf_transformer.tasks.schema_forms import INTEGER, STRING, Schema, any_of, array, flag, nullable, record, text
from hf_transformer.types import Json

TAG = "Generate"
ERROR = ref("Error")


def paths(about: Described) -> dict[str, Json]:
    """By path."""
    found = {}
    for path, suffix, more in (("", "", ()), ("/versions/{version}", "Version", ("Version",))):
        for route, name, summary, ok in (
            ("generate", "generate", "The text of a prompt", answer(ref("GenerateResponse"), "The text.")),
            (
                "generate_stream",
                "generateStream",
                "The text of a prompt, as it comes",
                answer(event_of(ref("GenerateResponse")), "Server-sent events with a piece of the text each.", EVENTS),
            ),
        ):
            if about.task.name not in GENERATION:
                summary += f": needs the task {' or '.join(GENERATION)}; this service does {about.task.name}"
            found[f"/v2/models/{{model}}{path}/{route}"] = work(
                f"{name}{suffix}",
                summary,
                TAG,
                body(ref("GenerateRequest"), {"text_input": "The capital of france is", "max_tokens": 20}),
                ok,
                "Model",
                *more,
                fails=failures(WORK, ERROR),
            )
    return found


def schemas(about: Described) -> dict[str, Schema]:
    """Components."""
    generative = about.task.name in GENERATION
    of_task = about.schemas if generative else text_generation(about.task.settings)
    parameters = {
        **of_task.parameters["properties"],
        EXCLUDE: flag("Whether the prompt is no part of the answer."),
        **{switch: flag(f"Whether {name} is told.") for switch, name in FURTHER.items()},
        BAD_WORDS: any_of({"enum": ["", None]}, array(STRING, maxItems=0), description="Not possible."),
        END_ID: nullable({"type": "integer", "minimum": NO_TOKEN}, "A token that ends a text, -1 for none at all."),
        PAD_ID: nullable({"type": "integer", "minimum": NO_TOKEN}, "Of no use here: padding is no part of a text."),
        RANDOM_SEED: nullable({"type": "integer"}, "Another name of seed."),
    }
    inside = any_of(record(parameters, *parameters), {"type": "null"}, description="Parameters may also stand beside.")
    optional = {
        SAMPLING: text("JSON text with the fields of vLLM's SamplingParams."),
        **{name: {"type": ["string", "null"]} for name in ABOUT},
        "parameters": inside,
        **parameters,
    }
    texts = any_of(STRING, array(STRING, minItems=2))
    told = {FINISH: texts, PROMPT_TOKENS: INTEGER, NEW_TOKENS: any_of(INTEGER, array(INTEGER, minItems=2))}
    return {
        "GenerateRequest": record({"text_input": STRING, **optional}, *optional),
        "GenerateResponse": record(
            {
                "id": STRING,
                "model_name": STRING,
                "model_version": STRING,
                "choice": INTEGER,
                "text_output": texts,
                **told,
            },
            "id",
            "choice",
            *told,
        ),
    }
