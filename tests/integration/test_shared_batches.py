"""An answer equals that of its text alone, whatever shares the batch, for models that do not care by themselves."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.conftest import Serve
from tests.support.service import Service
from tests.support.triton_repository import task_model_folder

WORDS = "Anna lives in Paris and works for Acme in the city on the river since last winter".split()
TEXTS = [" ".join(WORDS[: 1 + number % len(WORDS)]) + " </s>" * (number % 3) for number in range(48)]
CONFIGS: dict[str, dict[str, Any]] = {
    "eos_pooled": {"model_type": "bart", "architectures": ["BartForSequenceClassification"], "eos_token_id": 2},
    "reads_last": {"model_type": "xlnet", "architectures": ["XLNetForSequenceClassification"]},
}


@pytest.fixture(params=CONFIGS)
def service(request: pytest.FixtureRequest, serve: Serve, tmp_path: Path) -> Any:
    """A model of the real Triton with RoBERTa's tokenizer and a config.json of its architecture."""
    name = request.param
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(task_model_folder("ner_roberta") / file, tmp_path / file)
    labels = {"id2label": {str(number): f"L{number}" for number in range(3)}, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[name], **labels}))
    with serve.own(name, "v2", f"--model_dir={tmp_path}", "--return_raw_logits") as running:
        yield running.wait_until(f"/v1/models/{name}")


async def together(service: Service, texts: Sequence[Any]) -> list[Any]:
    """The answers to texts that are sent at once, each by a client of its own."""
    limits = httpx.Limits(max_connections=len(texts))
    async with httpx.AsyncClient(
        base_url=service.url, limits=limits, trust_env=False, verify=False, timeout=60.0
    ) as client:
        path = f"/v1/models/{service.model}:predict"
        found = await asyncio.gather(*(client.post(path, json={"instances": [text]}) for text in texts))
    assert [one.status_code for one in found] == [200] * len(texts), found[0].text
    return [one.json()["predictions"][0] for one in found]


def assert_equal(found: Sequence[Any], expected: Sequence[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


async def test_concurrent_texts_share_batches_and_have_the_answers_of_single_ones(service: Service) -> None:
    alone = [service.predict([text])[0] for text in TEXTS]
    assert len({str(one) for one in alone}) == len({tuple(text.split()) for text in TEXTS})
    for _ in range(3):
        assert_equal(await together(service, TEXTS), alone)
    batches = service.metric("hf_transformer_batch_instances_count")
    assert_equal(service.predict(TEXTS), alone)
    assert service.metric("hf_transformer_batch_instances_count") < batches + len(TEXTS) / 2, "texts do share batches"


async def test_concurrent_pairs_have_the_answers_of_single_ones(service: Service) -> None:
    pairs = [{"text": text, "text_pair": other} for text, other in zip(TEXTS, TEXTS[5:], strict=False)]
    alone = [service.predict([pair])[0] for pair in pairs]
    assert_equal(await together(service, pairs), alone)
