"""JSON schemas (2020-12) of each task's instances, parameters and predictions, for the API's description.

They say what the tasks' own code takes and gives; nothing is validated by them while the service runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hf_transformer.tasks.base import Servable, TaskSettings
from hf_transformer.tasks.entities import STRATEGIES
from hf_transformer.tasks.fill_mask import DEFAULT_TOP_K, MAX_TARGET_LENGTH, MAX_TARGETS
from hf_transformer.tasks.generation_schemas import text2text_generation, text_generation
from hf_transformer.tasks.question_answering import MAX_ANSWER_LEN
from hf_transformer.tasks.schema_forms import (
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    any_of,
    array,
    by_number,
    flag,
    integer,
    nullable,
    record,
    string_or_strings,
    text,
)
from hf_transformer.tasks.task_schemas import TaskSchemas, parameters_of
from hf_transformer.tasks.text_embedding import MAX_PROMPT_LENGTH
from hf_transformer.tasks.token_classification import MAX_DELIMITER_LENGTH
from hf_transformer.tasks.zero_shot_classification import DEFAULT_TEMPLATE, MAX_LABELS
from hf_transformer.types import Json

SYNTAX = re.compile(r"[\^$\\.*+?()\[\]{}|/]")
"""Characters with a meaning in the regular expressions of JSON schemas (ECMA-262); re.escape escapes others too."""


def schemas_of(task: Servable) -> TaskSchemas:
    """The schemas of one served task, with the service's own defaults."""
    return SCHEMAS[task.name](task.settings)


def logit_parameters(settings: TaskSettings) -> dict[str, Schema]:
    return {
        "return_probabilities": flag(
            "Answer with probabilities; in the kserve format.", settings.return_probabilities or None
        ),
        "return_raw_logits": flag("Answer with the logits; in the kserve format.", settings.return_raw_logits or None),
    }


def truncation() -> Schema:
    return flag("Whether a text that is longer than the model is cut (true) or refused with 413 (false).")


def stride() -> Schema:
    return integer("Tokens that neighbouring windows of a long text share.", 0)


def one_text(**more: Json) -> Schema:
    """The text itself or {"text": ...}."""
    string = {**STRING, **more}
    return any_of(string, record({"text": string}))


def fill_mask(settings: TaskSettings) -> TaskSchemas:
    mask = settings.vocabulary.mask_token or ""
    pattern = SYNTAX.sub(r"\\\g<0>", mask)
    candidate = record({"score": NUMBER, "token": INTEGER, "token_str": STRING, "sequence": STRING})
    # A token that the model bans has the logit -inf, for which JSON has only null.
    whole = array(array(by_number({"type": ["string", "number", "null"]})))
    return TaskSchemas(
        instance=one_text(pattern=pattern, description=f"A text with {mask} where a token is wanted."),
        parameters=parameters_of(
            settings,
            **logit_parameters(settings),
            top_k=integer("Candidates per mask; in the pipeline format.", 1, DEFAULT_TOP_K),
            targets=string_or_strings(
                f"The only candidates, at most {MAX_TARGETS} of {MAX_TARGET_LENGTH} characters; in the pipeline "
                "format.",
                minItems=1,
                maxItems=MAX_TARGETS,
            ),
            truncation=truncation(),
        ),
        prediction=any_of(
            {**STRING, "description": "The best tokens."}, array(candidate), array(array(candidate)), whole
        ),
        example=f"The capital of france is {mask}.",
    )


def sequence_classification(settings: TaskSettings) -> TaskSchemas:
    pair = record({"text": STRING, "text_pair": {"type": ["string", "null"]}}, "text_pair")
    return TaskSchemas(
        instance=any_of(STRING, pair, description="A text, or a pair of texts."),
        parameters=parameters_of(
            settings,
            **logit_parameters(settings),
            top_k=nullable(
                {"type": "integer", "minimum": 1}, "Labels that are given, null for all; in the pipeline format.", 1
            ),
            function_to_apply=nullable(
                {"type": "string", "enum": ["default", "none", "softmax", "sigmoid"]},
                "What turns logits into scores; in the pipeline format.",
                "default",
            ),
            truncation=truncation(),
        ),
        prediction=any_of(
            {**INTEGER, "description": "The best label's number."},
            by_number(NUMBER),
            array(record({"label": STRING, "score": NUMBER})),
        ),
        example="What a fine day.",
    )


def token_classification(settings: TaskSettings) -> TaskSchemas:
    words = array(STRING, minItems=1)
    word = {"word": STRING, "start": INTEGER, "end": INTEGER}
    return TaskSchemas(
        instance=any_of(
            *one_text()["anyOf"],
            words,
            record({"tokens": words}),
            record({"words": words}),
            description="A text, or its words.",
        ),
        parameters=parameters_of(
            settings,
            **logit_parameters(settings),
            return_offsets_mapping=flag(
                "Give each token's first and last character beside the predictions.",
                settings.return_offsets_mapping or None,
            ),
            aggregation_strategy=nullable(
                {"type": "string", "enum": list(STRATEGIES)},
                "How tokens become entities; in the pipeline format.",
                settings.aggregation_strategy,
            ),
            ignore_labels=string_or_strings('Labels that are left out, "O" if not given; in the pipeline format.'),
            delimiter=any_of(
                {**STRING, "maxLength": MAX_DELIMITER_LENGTH},
                array({**STRING, "maxLength": MAX_DELIMITER_LENGTH}, minItems=1, maxItems=1),
                {"type": "null"},
                description="What joins the words of an instance; in the pipeline format.",
            ),
            truncation=truncation(),
            stride=stride(),
        ),
        prediction=any_of(
            array(array(INTEGER), minItems=1, maxItems=1, description="Each token's best label, in one more list."),
            array(by_number(NUMBER)),
            array(record({"entity": STRING, "score": NUMBER, "index": INTEGER, **word})),
            array(record({"entity_group": STRING, "score": NUMBER, **word})),
        ),
        example="Angela Merkel was born in Hamburg.",
    )


def question_answering(settings: TaskSettings) -> TaskSchemas:
    some = {**STRING, "minLength": 1}
    answer = record({"score": NUMBER, "start": INTEGER, "end": INTEGER, "answer": STRING})
    tokens = "Tokens of a window, question included; at most as many as the model takes."
    return TaskSchemas(
        instance=record({"question": some, "context": some}),
        parameters=parameters_of(
            settings,
            top_k=integer("Answers that are given.", 1, 1),
            max_answer_len=integer("Tokens of the longest answer.", 1, MAX_ANSWER_LEN),
            handle_impossible_answer=flag("Whether an empty answer is one.", False),
            align_to_words=flag("Whether answers are extended to whole words.", True),
            max_seq_len={**integer(tokens, 1), "maximum": settings.max_length},
            doc_stride=integer("Tokens that neighbouring windows of a long context share.", 0),
            stride=integer("Another name of doc_stride.", 0),
            max_question_len=integer("Checked and without effect, as in the pipeline.", 1),
            truncation=truncation(),
        ),
        prediction=any_of(answer, array(answer)),
        example={"question": "Where does Anna live?", "context": "Anna lives in Hamburg."},
    )


def zero_shot_classification(settings: TaskSettings) -> TaskSchemas:
    labels = any_of(
        array(STRING, minItems=1, maxItems=MAX_LABELS),
        {**STRING, "minLength": 1},
        {"type": "null"},
        description="In a list or with commas between; an instance's own go before those in parameters.",
    )
    some = {**STRING, "minLength": 1}
    named = [record({name: some, "candidate_labels": labels}, "candidate_labels") for name in ("sequence", "text")]
    return TaskSchemas(
        instance=any_of(some, *named, description='A text; "sequences" is another name of "sequence".'),
        parameters=parameters_of(
            settings,
            candidate_labels=labels,
            hypothesis_template=text(f"A text with {{}} where the label goes; {DEFAULT_TEMPLATE!r} if not given."),
            multi_label=flag("Whether several labels may fit, each with a score of its own.", False),
            truncation=truncation(),
        ),
        prediction=record({"sequence": STRING, "labels": array(STRING), "scores": array(NUMBER)}),
        example="The match ended with two goals.",
        example_parameters={"candidate_labels": ["sport", "weather", "food"]},
    )


def rerank(settings: TaskSettings) -> TaskSchemas:
    texts = array(STRING, minItems=1)
    pairs = [record({"query": STRING, name: texts}) for name in ("texts", "documents")]
    scored = [record({name: INTEGER, "score": NUMBER, "text": STRING}, "text") for name in ("index", "corpus_id")]
    return TaskSchemas(
        instance=any_of(*pairs, description="A query and the texts to rank."),
        parameters=parameters_of(
            settings,
            top_n=integer("Texts that are given; all if not given.", 1),
            return_documents=flag("Whether the texts are given too.", False),
            raw_scores=flag("Logits instead of scores between 0 and 1.", False),
            truncation=truncation(),
        ),
        prediction=any_of(*map(array, scored), description="The best first."),
        example={"query": "What do cats eat?", "texts": ["Paris is a city.", "Cats eat fish."]},
    )


def text_embedding(settings: TaskSettings) -> TaskSchemas:
    files = settings.sentence_transformers
    token = {**INTEGER, "minimum": 0, "maximum": settings.vocabulary.vocab_size - 1}
    windows = settings.on_overflow == "window"
    prompts = sorted(files.prompts) if files else []
    return TaskSchemas(
        instance=any_of(
            *one_text()["anyOf"],
            record({"token_ids": array(token, minItems=1)}),
            description="A text, or its tokens with the special ones.",
        ),
        parameters=parameters_of(
            settings,
            normalize=flag("Whether vectors have the length 1."),
            dimensions=integer("Components of a vector that are given.", 1),
            prompt_name=nullable({"type": "string", "enum": prompts}, "Which of the model's prompts goes in front.")
            if prompts
            else {"type": "null", "description": "The model has no prompts."},
            prompt=text("A text that goes in front.", maxLength=MAX_PROMPT_LENGTH),
            truncation=truncation(),
            stride=stride() if windows else {"type": "null", "description": "Only --on_overflow=window has one."},
        ),
        prediction=array(NUMBER, minItems=1),
        example="What a fine day.",
    )


def feature_extraction(settings: TaskSettings) -> TaskSchemas:
    return TaskSchemas(
        instance=one_text(),
        parameters=parameters_of(settings, truncation=truncation()),
        prediction=array(array(array(NUMBER)), minItems=1, maxItems=1, description="A vector per token, in one list."),
        example="What a fine day.",
    )


SCHEMAS: Mapping[str, Callable[[TaskSettings], TaskSchemas]] = {
    "fill_mask": fill_mask,
    "sequence_classification": sequence_classification,
    "token_classification": token_classification,
    "question_answering": question_answering,
    "zero_shot_classification": zero_shot_classification,
    "rerank": rerank,
    "text_embedding": text_embedding,
    "feature_extraction": feature_extraction,
    "text_generation": text_generation,
    "text2text_generation": text2text_generation,
}
"""By the task's name."""
