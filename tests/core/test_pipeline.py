"""The trial of a model whose tokenizer knows few words, as those of genomes do: any token will do for it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hf_transformer.model_parts import load_parts
from hf_transformer.model_wiring import pipeline_builder
from hf_transformer.observability.metrics import Metrics
from hf_transformer.types import ModelSpec, TensorSpec
from tests.configuring import config
from tests.generation.tokenizers import without_unknown
from tests.scripted_predictor import ScriptedPredictor


@pytest.mark.asyncio
async def test_a_tokenizer_of_few_words(tmp_path: Path) -> None:
    folder = without_unknown(tmp_path / "model")
    labels = {
        "id2label": {"0": "a", "1": "b"},
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
    }
    (folder / "config.json").write_text(json.dumps(labels))
    options = config(f"--model_dir={folder}", "--model_name=genes")
    spec = ModelSpec("genes", "1", (TensorSpec("input_ids", "INT64", (-1,)),), (TensorSpec("logits", "FP32", (2,)),), 8)
    predictor = ScriptedPredictor()
    with ThreadPoolExecutor(1) as executor:
        pipeline = pipeline_builder(options, load_parts(options), predictor, Metrics("genes"), executor)(spec)
        trial = asyncio.create_task(pipeline.canary())
        async with asyncio.timeout(20):
            while not predictor.calls:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
        assert predictor.calls[0].ids.tolist() == [[0]]
        trial.cancel()
        await asyncio.wait([trial])
