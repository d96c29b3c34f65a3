"""Clients of text-embeddings-inference: huggingface_hub, langchain-huggingface and haystack, with nothing but the URL.

Beside what every program is given it takes the name of a function below, and its arguments.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from huggingface_hub import AsyncInferenceClient, InferenceClient
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from task import answer, plain


def embedding(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """Vectors of ``texts`` by each client."""
    texts = task["texts"]
    hub, awaited = InferenceClient(base_url=url), AsyncInferenceClient(base_url=url)
    # From 1.2.2 on, langchain takes no URL in ``model``; its clients do.
    chain = HuggingFaceEndpointEmbeddings(model="any/name", huggingfacehub_api_token="none")
    chain.client, chain.async_client = hub, awaited
    kind: dict[str, Any] = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "normalize": True}
    documents = HuggingFaceAPIDocumentEmbedder(**kind).run([Document(content=text) for text in texts])["documents"]

    async def waited() -> dict[str, Any]:
        return {
            "hub": plain(await awaited.feature_extraction(texts)),
            "langchain": await chain.aembed_documents(texts),
            "similarity": await awaited.sentence_similarity(texts[0], other_sentences=texts),
        }

    return {
        "hub": plain(hub.feature_extraction(texts)),
        "one": plain(hub.feature_extraction(texts[0])),
        "raw": plain(hub.feature_extraction(texts, normalize=False, truncate=True, truncation_direction="right")),
        "short": plain(hub.feature_extraction(texts, dimensions=4)),
        "similarity": hub.sentence_similarity(texts[0], other_sentences=texts),
        "langchain": chain.embed_documents(texts),
        "langchain_query": chain.embed_query(texts[0]),
        "haystack": [document.embedding for document in documents],
        "haystack_text": HuggingFaceAPITextEmbedder(**kind).run(texts[0])["embedding"],
        "async": asyncio.run(waited()),
    }


def ranking(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """The order and scores of ``texts`` for ``query`` by haystack's ranker."""
    documents = [Document(id=str(index), content=text) for index, text in enumerate(task["texts"])]
    rankings = {}
    for name, settings in {"scores": {}, "raw": {"raw_scores": True}}.items():
        ranker = HuggingFaceTEIRanker(url=url, max_retries=1, **settings)
        ranked = ranker.run(query=task["query"], documents=documents)["documents"]
        rankings[name] = [[int(document.id), document.score] for document in ranked]
    return rankings


def pipelines(url: str, task: dict[str, Any]) -> Any:
    """The result of a method of huggingface_hub's client for ``arguments``."""
    found = getattr(InferenceClient(base_url=url), task["method"])(**task["arguments"])
    return {"found": [dict(one) for one in found] if isinstance(found, list) else dict(found)}


def use(task: dict[str, Any]) -> dict[str, Any]:
    function = {"embedding": embedding, "ranking": ranking, "pipelines": pipelines}[sys.argv[1]]
    found: dict[str, Any] = function(f"http://{task['http']}", task)
    return found


answer(use)
