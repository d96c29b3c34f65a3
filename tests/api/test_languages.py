"""src_lang and tgt_lang in every API of text2text_generation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.generation.pipeline import GenerationPipeline
from hf_transformer.generation.task import Text2TextGeneration
from hf_transformer.generation.types import LANGUAGES, Generator
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.api.generating import ALL, ServedModel, client_of, served_model
from tests.generation.scripted import pipeline_of
from tests.tiny_tokenizers.languages import nllb

TEXT = "the house"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = nllb(tmp_path_factory.mktemp("nllb") / "nllb")
    return load_tokenizer(folder, json.loads((folder / "config.json").read_text()))


def translator(tokenizer: Tokenizer) -> type[ServedModel]:
    class Translator(ServedModel):
        def pipeline(self, generator: Generator) -> GenerationPipeline:
            return pipeline_of(tokenizer, generator, self.executor, task=self.made_task, decoder_start_ids=(2,))

    return Translator


def v2(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}], "parameters": parameters}


REQUESTS: dict[str, tuple[str, Any]] = {
    "v1": ("/v1/models/gpt2:predict", lambda fields: {"instances": [TEXT], "parameters": fields}),
    "v2": ("/v2/models/gpt2/infer", v2),
    "generate": ("/v2/models/gpt2/generate", lambda fields: {"text_input": TEXT, "parameters": fields}),
    "completions": ("/openai/v1/completions", lambda fields: {"model": "gpt2", "prompt": TEXT, **fields}),
}


@pytest.mark.parametrize("api", REQUESTS)
async def test_every_api_has_the_languages(tokenizer: Tokenizer, api: str) -> None:
    path, body = REQUESTS[api]
    kind = translator(tokenizer)
    async with (
        served_model(kind, task=Text2TextGeneration, supported_fields=[*ALL, *LANGUAGES]) as made,
        client_of(made.app) as client,
    ):
        response = await client.post(path, json=body({"src_lang": "deu_Latn", "tgt_lang": "fra_Latn"}))
        assert response.status_code == 200, response.text
        [(prompt, _)] = made.generator.asked
        assert tokenizer.id_to_token(prompt.ids[0]) == "deu_Latn"
        assert [tokenizer.id_to_token(number) for number in prompt.decoder_start] == ["</s>", "fra_Latn"]
        for field in LANGUAGES:
            response = await client.post(path, json=body({field: "fra_Latm"}))
            assert response.status_code == 400
            assert f"{field}: expected one of the model's 202 languages, got 'fra_Latm'; near ones: fra_Latn" in (
                response.text
            )
            for wrong, status in ((7, 400), ("", 400), ("x" * 33, 413)):
                assert (await client.post(path, json=body({field: wrong}))).status_code == status


@pytest.mark.parametrize("api", REQUESTS)
async def test_other_models_refuse_them(api: str) -> None:
    path, body = REQUESTS[api]
    async with served_model() as made, client_of(made.app) as client:
        response = await client.post(path, json=body({"tgt_lang": "fra_Latn"}))
        assert response.status_code == 400
        assert "the model has no languages to choose" in response.text
