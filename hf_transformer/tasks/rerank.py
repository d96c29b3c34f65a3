"""rerank: which texts answer a query best, scored pair by pair by a cross-encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hf_transformer.errors import InvalidInput, LoadError, describe
from hf_transformer.tasks.base import OutputFormat, Overflow, Task, TaskSettings
from hf_transformer.tasks.labels import read_labels, text_logits
from hf_transformer.tasks.numerics import require_numbers, sigmoid
from hf_transformer.tasks.parameters import Parameters, read_output_format, read_prompt, read_truncation
from hf_transformer.tasks.tensors import Field
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput

PARAMETERS = ("output_format", "top_n", "return_documents", "raw_scores", "prompt_name", "prompt", "truncation")


@dataclass(frozen=True, slots=True)
class RerankOptions:
    """One request's choices. ``top_n`` None gives all texts; ``raw_scores`` logits instead of scores. ``prompt`` stands
    in front of the query."""

    output_format: OutputFormat
    top_n: int | None
    return_documents: bool
    raw_scores: bool
    prompt: str
    overflow: Overflow


@dataclass(frozen=True, slots=True)
class RerankItem:
    """A query and its texts, at least one."""

    query: str
    texts: tuple[str, ...]


class Rerank(Task[RerankItem, RerankOptions, float]):
    """Reads ``logits`` [1] of each pair (query, text).

    The answer is a list with an object per text, the best first, equal scores in the order of the texts:
        kserve          {"index", "score"} and, if documents are wanted, "text", as in text-embeddings-inference
                        (KServe has no such task)
        pipeline        {"corpus_id", "score"} and "text", as CrossEncoder.rank in sentence-transformers

    The score is the sigmoid of the logit. As in CrossEncoder it is the logit itself where config.json names torch's
    Identity as activation function.
    """

    name = "rerank"
    parameters = PARAMETERS
    other_names = ("text_ranking",)
    instead_of_logits = " (its requests have the parameter raw_scores)"
    fields = (Field("query"), Field("texts", ("documents",), many=True))

    def __init__(self, settings: TaskSettings) -> None:
        super().__init__(settings)
        count = len(read_labels(settings.model_config))
        if count != 1:
            raise LoadError(
                f"rerank needs a model that gives one score per pair, and config.json (id2label, num_labels; 2 where "
                f"it has neither) tells {count} labels; a classifier is served with --task=sequence_classification"
            )
        self._sigmoid = has_sigmoid(settings.cross_encoder.activation_fn, settings.model_config)
        self.outputs = (text_logits(count),)

    def options(self, parameters: Mapping[str, Json]) -> RerankOptions:
        given, files = Parameters(parameters, self.parameters), self.settings.cross_encoder
        return RerankOptions(
            output_format=read_output_format(given, self.settings),
            top_n=given.integer("top_n", 1, 1) if "top_n" in given else None,
            return_documents=given.flag("return_documents", False),
            raw_scores=given.flag("raw_scores", False),
            prompt=read_prompt(given, files.prompts, files.default_prompt_name),
            overflow=read_truncation(given, self.settings),
        )

    def item(self, instance: Json, where: str, options: RerankOptions) -> RerankItem:
        if not isinstance(instance, dict) or instance.keys() not in ({"query", "texts"}, {"query", "documents"}):
            raise InvalidInput.of(
                f'{where}: expected {{"query": string, "texts": list of strings}} ("documents" is another name '
                f"for texts), got {describe(instance)}"
            )
        query = instance["query"]
        if not isinstance(query, str):
            raise InvalidInput.of(f"{where}.query: expected a string, got {describe(query)}")
        name = "texts" if "texts" in instance else "documents"
        texts = instance[name]
        if not isinstance(texts, list) or not texts:
            found = describe(texts) if texts != [] else "an empty one"
            raise InvalidInput.of(f"{where}.{name}: expected a list of strings, got {found}")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise InvalidInput.of(f"{where}.{name}[{index}]: expected a string, got {describe(text)}")
        return RerankItem(query, tuple(texts))

    def texts(self, item: RerankItem, options: RerankOptions) -> Sequence[TextInput]:
        return [(options.prompt + item.query, text) for text in item.texts]

    def text_name(self, where: str, number: int) -> str:
        return f"{where}.texts[{number}]"

    def answer_size(self, encoding: Encoding, options: RerankOptions) -> int:
        return 2 + len(encoding) * options.return_documents

    def decode(
        self, item: RerankItem, encoding: Encoding, outputs: Mapping[str, Array], options: RerankOptions
    ) -> float:
        require_numbers(outputs["logits"])
        return float(outputs["logits"][0])

    def answer(self, item: RerankItem, parts: Sequence[Sequence[float]], options: RerankOptions) -> Json:
        logits = np.array([windows[0] for windows in parts], np.float32)
        scores = sigmoid(logits) if self._sigmoid and not options.raw_scores else logits
        best = np.argsort(-scores, kind="stable")[: options.top_n].tolist()
        index_name = "index" if options.output_format == "kserve" else "corpus_id"
        answers: list[Json] = [{index_name: index, "score": float(scores[index])} for index in best]
        if options.return_documents:
            for answer, index in zip(answers, best, strict=True):
                answer["text"] = item.texts[index]
        return answers


def has_sigmoid(activation_fn: str | None, model_config: Mapping[str, Json]) -> bool:
    """Whether scores are sigmoids of logits, by the activation function that CrossEncoder writes.

    Args:
        activation_fn: from config_sentence_transformers.json, which wins; None if it names none.
        model_config: config.json, where versions before 6 have it.

    Raises:
        LoadError: it is neither torch's Sigmoid nor its Identity.
    """
    ours = model_config.get("sentence_transformers")
    older = ours.get("activation_fn") if isinstance(ours, dict) else None
    name = activation_fn or older or model_config.get("sbert_ce_default_activation_function")
    if name is None:
        return True
    package, _, function = str(name).rpartition(".")
    if package.partition(".")[0] == "torch" and function in ("Sigmoid", "Identity"):
        return function == "Sigmoid"
    raise LoadError(
        f"the model names the activation function {str(name)[:100]!r}; "
        "rerank knows torch.nn.Sigmoid and torch.nn.Identity"
    )
