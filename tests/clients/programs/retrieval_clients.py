"""Clients of Cohere, Voyage, Jina and NVIDIA NIM, with nothing but the URL: cohere, voyageai and LangChain's.

Beside what every program is given it takes the name of a function below, and its arguments.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import cohere
import voyageai
from langchain_community.document_compressors import jina_rerank
from langchain_community.embeddings import jina
from langchain_core.documents import Document
from langchain_nvidia_ai_endpoints import NVIDIAEmbeddings, NVIDIARerank
from task import answer

KEY = "none"


def embedding(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Vectors of ``texts`` as queries and as documents, by each client."""
    texts, model = task["texts"], task["model"]
    first, second = cohere.Client(KEY, base_url=url), cohere.ClientV2(KEY, base_url=url)
    types = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    queries: dict[str, Any] = {"texts": texts, "model": model, "input_type": "search_query"}
    typed = second.embed(**queries, embedding_types=types, truncate="START", output_dimension=16).embeddings
    voyage = voyageai.Client(api_key=KEY, base_url=f"{url}/v1")
    late = voyage.contextualized_embed([texts, texts[:1]], model, input_type="document")
    jina.JINA_API_URL = f"{url}/v1/embeddings"
    langchain = jina.JinaEmbeddings(jina_api_key=KEY, model_name=model)
    nim = NVIDIAEmbeddings(base_url=f"{url}/v1", model=model, api_key=KEY, truncate="END")
    return {
        "query": {
            "cohere": first.embed(**queries).embeddings,
            "cohere_v2": second.embed(**queries, embedding_types=["float"]).embeddings.float_,
            "voyage": voyage.embed(texts, model, input_type="query").embeddings,
            "nim": [nim.embed_query(text) for text in texts],
        },
        "document": {
            "cohere": first.embed(**{**queries, "input_type": "search_document"}).embeddings,
            "voyage": voyage.embed(texts, model, input_type="document").embeddings,
            "nim": nim.embed_documents(texts),
        },
        "jina": langchain.embed_documents(texts),
        "types": {name: getattr(typed, "float_" if name == "float" else name) for name in types},
        "voyage_int8": voyage.embed(texts, model, input_type="query", output_dtype="int8").embeddings,
        "voyage_ubinary": voyage.embed(texts, model, input_type="query", output_dtype="ubinary").embeddings,
        "models": [one.id for one in NVIDIAEmbeddings.get_available_models(base_url=f"{url}/v1", api_key=KEY)],
        "late": [one.embeddings for one in late.results],
        "errors": {
            "cohere": failure(lambda: second.embed(**{**queries, "model": "other"}, embedding_types=["float"])),
            "voyage": failure(lambda: voyage.embed(texts, "other")),
            "cohere_long": failure(
                lambda: second.embed(
                    **{**queries, "texts": ["word " * 999]}, embedding_types=["float"], truncate="NONE"
                )
            ),
            "voyage_long": failure(lambda: voyage.embed(["word " * 999], model, truncation=False)),
            "nim": failure(
                lambda: NVIDIAEmbeddings(base_url=f"{url}/v1", model=model, dimensions=999).embed_query("a")
            ),
        },
    }


def ranking(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Indices and scores of ``texts`` for ``query``, best first, by each client."""
    texts, query, model = task["texts"], task["query"], task["model"]
    first, second = cohere.Client(KEY, base_url=url), cohere.ClientV2(KEY, base_url=url)
    asked: dict[str, Any] = {"model": model, "query": query, "documents": texts}
    voyage = voyageai.Client(api_key=KEY, base_url=f"{url}/v1")
    jina_rerank.JINA_API_URL = f"{url}/v1/rerank"
    langchain = jina_rerank.JinaRerank(jina_api_key=KEY, model=model, top_n=len(texts))
    nim = NVIDIARerank(base_url=f"{url}/v1", model=model, api_key=KEY)
    documents = [Document(page_content=text, metadata={"index": index}) for index, text in enumerate(texts)]
    return {
        "scores": {
            "cohere": pairs(first.rerank(**asked).results),
            "cohere_v2": pairs(second.rerank(**asked).results),
            "voyage": pairs(voyage.rerank(query, texts, model).results),
            "jina": [[result["index"], result["relevance_score"]] for result in langchain.rerank(texts, query)],
        },
        "top": pairs(second.rerank(**asked, top_n=1, max_tokens_per_doc=64).results),
        "top_voyage": pairs(voyage.rerank(query, texts, model, top_k=1).results),
        "documents": [result.document.text for result in first.rerank(**asked, return_documents=True).results],
        "logits": [
            [result.metadata["index"], result.metadata["relevance_score"]]
            for result in nim.compress_documents(documents, query)
        ],
        "errors": {
            "cohere": failure(lambda: second.rerank(**{**asked, "documents": []})),
            "voyage": failure(lambda: voyage.rerank(query, [], model)),
        },
    }


def pairs(results: list[Any]) -> list[list[Any]]:
    return [[one.index, one.relevance_score] for one in results]


def failure(ask: Callable[[], Any]) -> list[str]:
    """The kind and the words of an error."""
    try:
        ask()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def main(task: dict[str, Any]) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    program = {"embedding": embedding, "ranking": ranking}[sys.argv[1]]
    return program(f"http://{task['http']}", task)


answer(main)
