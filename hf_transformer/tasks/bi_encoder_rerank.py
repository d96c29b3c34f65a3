"""rerank with an embedding model: query and texts are encoded once each, and compared by their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hf_transformer.errors import LoadError
from hf_transformer.tasks.base import Outputs, TaskSettings
from hf_transformer.tasks.parameters import Parameters, read_output_format
from hf_transformer.tasks.rerank import Rerank, RerankItem, RerankOptions
from hf_transformer.tasks.similarity import DENSE, max_sim, sparse_dot
from hf_transformer.tasks.text_embedding import TextEmbedding
from hf_transformer.types.request import Json
from hf_transformer.types.tensors import Array
from hf_transformer.types.tokenization import Encoding, TextInput, Tokenization

SIDES: Sequence[tuple[str, ...]] = (("query",), ("document", "passage", "corpus"))
"""Names of the prompts for queries and for documents, as in encode_query and encode_document."""
OF_EMBEDDING = ("dimensions", "normalize", "truncation")
"""Parameters that text_embedding reads."""


@dataclass(frozen=True, slots=True)
class BiEncoderOptions(RerankOptions):
    """A request's parameters, with text_embedding's options for the query and for the documents."""

    sides: tuple[Any, ...] = ()


class BiEncoderRerank(Rerank):
    """Reads the outputs of text_embedding. A score is the model's similarity of the query's and the text's vectors:
    the model's own function of dense vectors, a dot product of sparse vectors, or MaxSim of vectors per token.

    A part is the text's representation as a query and as a document, since prompts may be excluded from pooling.
    """

    has_windows = True
    reads_sentence_transformers = True
    parameters = ("output_format", "top_n", "return_documents", "raw_scores", *OF_EMBEDDING)

    def _read_outputs(self, settings: TaskSettings) -> None:
        self._embedding = TextEmbedding(settings)
        self.outputs = self._embedding.outputs
        name = settings.sentence_transformers.similarity if settings.sentence_transformers else "cosine"
        if name not in DENSE:
            raise LoadError(f"similarity_fn_name is {name[:60]!r}, expected one of {', '.join(DENSE)}")
        self._dense = DENSE[name]

    def options(self, parameters: Mapping[str, Json]) -> BiEncoderOptions:
        checked = Parameters(parameters, self.parameters)
        own = {name: parameters[name] for name in OF_EMBEDDING if name in checked}
        sides = tuple(self._embedding.options(own | self._side(names)) for names in SIDES)
        return BiEncoderOptions(
            output_format=read_output_format(checked, self.settings),
            top_n=checked.integer("top_n", 1, 1) if "top_n" in checked else None,
            return_documents=checked.flag("return_documents", False),
            raw_scores=checked.flag("raw_scores", False),
            prompt="",
            overflow=sides[0].overflow,
            sides=sides,
        )

    def _side(self, names: tuple[str, ...]) -> dict[str, Json]:
        """The parameters of text_embedding for a query or a document."""
        if "input_type" in self._embedding.parameters:
            return {"input_type": names[0]}
        files = self.settings.sentence_transformers
        name = next((name for name in names if files and name in files.prompts), None)
        return {} if name is None else {"prompt_name": name}

    def texts(self, item: RerankItem, options: RerankOptions) -> Sequence[TextInput]:
        query, document = _sides(options)
        texts = [*self._embedding.texts(item.query, query)]
        for text in item.texts:
            texts += self._embedding.texts(text, document)
        return texts

    def text_path(self, path: str, index: int) -> str:
        return f"{path}.texts[{index - 1}]" if index else f"{path}.query"

    def tokenization(self, options: RerankOptions) -> Tokenization:
        return self._embedding.tokenization(_sides(options)[0])

    def decode_cost(self, encoding: Encoding, options: RerankOptions) -> int:
        return self._embedding.decode_cost(encoding, _sides(options)[0])

    def decode(self, item: RerankItem, encoding: Encoding, outputs: Outputs, options: RerankOptions) -> Any:
        query, document = _sides(options)
        part = self._embedding.decode(item.query, encoding, outputs, query)
        if replace(query, prompt=document.prompt, prompt_from=document.prompt_from) == document:
            return part, part
        return part, self._embedding.decode(item.query, encoding, outputs, document)

    def answer(self, item: RerankItem, parts: Sequence[Sequence[Any]], options: RerankOptions) -> Json:
        sides = _sides(options)
        vectors = [
            self._embedding.answer(item.query, [[window[index > 0 and 1] for window in windows]], sides[index > 0])
            for index, windows in enumerate(parts)
        ]
        return self.ranked(item, self._scores(vectors[0], vectors[1:]), options)

    def _scores(self, query: Any, documents: Sequence[Any]) -> Array:
        """Compares representations in the forms of text_embedding's answers, float32 [texts]."""
        if isinstance(query, dict):
            return sparse_dot(query, documents)  # type: ignore[arg-type]
        if query.ndim > 1:
            return max_sim(query, documents)
        return self._dense(query, np.stack(documents))


def _sides(options: RerankOptions) -> tuple[Any, ...]:
    return options.sides if isinstance(options, BiEncoderOptions) else ()
