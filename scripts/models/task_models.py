"""The table of the predictive test models, and how an untrained one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import task_sentences as worlds
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

CONFIGS: Final = {
    "Bert": transformers.BertConfig,
    "Roberta": transformers.RobertaConfig,
    "XLMRoberta": transformers.XLMRobertaConfig,
}


@dataclass(frozen=True)
class TaskModel:
    """One model: its class, its tokenizer, its labels and how long it is trained.

    learns says how the loss is made: classes, flags (one or several yes-or-no labels), number, tokens, span or
    meanings. max_length is in tokens.
    """

    name: str
    architecture: str
    tokenizer: str
    learns: str
    draw: Callable[[Random], worlds.Example] | None
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    hidden_size: int = 32
    max_length: int = 128
    steps: int = 500

    @property
    def family(self) -> str:
        """Bert, Roberta or XLMRoberta."""
        return self.architecture.split("For")[0].removesuffix("Model")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        names = ("input_ids", "attention_mask")
        return (*names, "token_type_ids") if self.family == "Bert" else names

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the model's outputs."""
        return {"span": ("start_logits", "end_logits"), "meanings": ("last_hidden_state",)}.get(
            self.learns, ("logits",)
        )


MODELS: Final = (
    TaskModel("sentiment", "BertForSequenceClassification", "uncased", "classes", worlds.sentiment, worlds.SENTIMENTS),
    TaskModel(
        "emotions",
        "XLMRobertaForSequenceClassification",
        "unigram",
        "flags",
        worlds.emotions,
        worlds.EMOTION_LABELS,
        "multi_label_classification",
    ),
    TaskModel("toxicity", "RobertaForSequenceClassification", "byte_level", "flags", worlds.toxicity, ("toxic",)),
    TaskModel(
        "stars",
        "BertForSequenceClassification",
        "uncased",
        "number",
        worlds.stars,
        ("LABEL_0",),
        "regression",
        steps=800,
    ),
    TaskModel(
        "paraphrase",
        "BertForSequenceClassification",
        "uncased",
        "classes",
        worlds.paraphrase,
        worlds.PARAPHRASE_LABELS,
        steps=900,
    ),
    TaskModel("ner", "BertForTokenClassification", "uncased", "tokens", worlds.entities, worlds.ENTITY_LABELS),
    TaskModel("ner_cased", "BertForTokenClassification", "cased", "tokens", worlds.entities, worlds.ENTITY_LABELS),
    TaskModel(
        "ner_roberta",
        "RobertaForTokenClassification",
        "byte_level_prefixed",
        "tokens",
        worlds.entities,
        worlds.ENTITY_LABELS,
        max_length=64,
        steps=900,
    ),
    TaskModel("minibert_mean", "BertModel", "uncased", "meanings", None, hidden_size=48, steps=300),
    TaskModel("cross", "BertForSequenceClassification", "uncased", "flags", worlds.relevance, ("LABEL_0",), steps=900),
    TaskModel("nli", "BertForSequenceClassification", "uncased", "classes", worlds.nli, worlds.NLI_LABELS, steps=900),
    TaskModel("squad", "BertForQuestionAnswering", "uncased", "span", worlds.question, hidden_size=64, steps=3000),
)


def new_model(spec: TaskModel, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The untrained model: two layers, no dropout."""
    roberta = spec.family != "Bert"
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 2 * spec.hidden_size,
        # RoBERTa counts positions from the padding id + 1.
        "max_position_embeddings": spec.max_length + (tokenizer.pad_token_id + 1 if roberta else 0),
        "type_vocab_size": 1 if roberta else 2,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.1,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "problem_type": spec.problem_type,
    }
    if spec.labels:
        settings["id2label"] = dict(enumerate(spec.labels))
        settings["label2id"] = {label: index for index, label in enumerate(spec.labels)}
    config = CONFIGS[spec.family](**settings)
    model = getattr(transformers, spec.architecture)(config)
    config.architectures = [spec.architecture]
    return model
