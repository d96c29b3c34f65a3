"""src_lang and tgt_lang: the ids of transformers' own tokenizers, for each request by itself."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from hf_transformer.errors import InvalidInput
from hf_transformer.generation.tokens import TokenGenerator
from hf_transformer.generation.types import LANGUAGES, Prompt, Sampling
from hf_transformer.tokenizer.languages import Languages
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import TensorSpec
from hf_transformer.types.tokenization import TokenIds
from tests.generation.scripted import ScriptedGenerator, asking, context, pipeline_of, steps
from tests.generation.scripted_models import ScriptedLLM, ids, model, settings
from tests.generation.scripted_models import steps as steps_of
from tests.generation.test_tokens import NEEDED, OUTPUTS
from tests.generation.tiny_model import PROMPTS, VARIANTS, generator
from tests.tiny_tokenizers.languages import FOLDERS

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
TEXTS = ["the house", "über große Straße", "", "a  house, 123"]
PAIRS = {
    "nllb": ("deu_Latn", "fra_Latn"),
    "nllb-legacy": ("deu_Latn", "zul_Latn"),
    "nllb-german": ("eng_Latn", "deu_Latn"),
    "mbart": ("de_DE", "ro_RO"),
    "mbart50": ("en_XX", "zh_CN"),
    "m2m100": ("de", "fr"),
}
START = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("languages")
    return cache(lambda name: FOLDERS[name](root / name))


@pytest.fixture(scope="module")
def ours(folders: Any) -> Any:
    def load(name: str) -> Tokenizer:
        folder: Path = folders(name)
        return load_tokenizer(folder, json.loads((folder / "config.json").read_text()))

    return cache(load)


@pytest.fixture(scope="module")
def theirs(folders: Any) -> Any:
    @cache
    def load(name: str) -> Any:
        return transformers.AutoTokenizer.from_pretrained(str(folders(name)))

    return load


async def prompts_of(tokenizer: Tokenizer, *texts: Any, interface: str = "tokens", **options: Any) -> list[Prompt]:
    """The prompts that a model gets."""
    made = ScriptedGenerator(lambda *_: steps([5]), supported_fields=LANGUAGES)
    made.interface = interface  # type: ignore[misc]
    names = {field: field for field in LANGUAGES if field in options}
    with ThreadPoolExecutor(1) as executor:
        pipeline = pipeline_of(tokenizer, made, executor, decoder_start_ids=(START,))
        async with await pipeline.start(asking(*texts, names=names, **options), context()) as generation:
            await generation.collect()
    return [prompt for prompt, _ in made.asked]


@pytest.mark.parametrize("name", PAIRS)
async def test_ids_are_those_of_transformers(ours: Any, theirs: Any, name: str) -> None:
    source, target = PAIRS[name]
    tokenizer, auto = ours(name), theirs(name)
    default = auto.src_lang
    for own, wanted in ((source, source), (None, default)):
        options = {"src_lang": own} if own else {}
        found = await prompts_of(tokenizer, *TEXTS, tgt_lang=target, **options)
        for text, prompt in zip(TEXTS, sorted(found, key=lambda one: TEXTS.index(one.text)), strict=True):
            inputs = auto._build_translation_inputs(text, return_tensors=None, src_lang=wanted, tgt_lang=target)
            assert list(prompt.ids) == inputs["input_ids"]
            assert prompt.decoder_start == (START, inputs["forced_bos_token_id"])
    auto.src_lang = default
    [plain] = await prompts_of(tokenizer, TEXTS[0])
    assert (list(plain.ids), plain.decoder_start) == (auto(TEXTS[0])["input_ids"], ())


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("code", ["fra", "cmn_Hans"])
async def test_marian_gets_a_mark(ours: Any, theirs: Any, text: str, code: str) -> None:
    [prompt] = await prompts_of(ours("marian"), text, tgt_lang=code)
    assert list(prompt.ids) == theirs("marian")(f">>{code}<< {text}")["input_ids"]
    assert prompt.ids[0] == theirs("marian").convert_tokens_to_ids(f">>{code}<<")
    assert (prompt.text, prompt.decoder_start) == (f">>{code}<< {text}", ())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nllb", {"tgt_lang": "fra_Latm"}, r"^parameters.tgt_lang: expected one of the model's 202 languages, got "
         r"'fra_Latm'; near ones: .*fra_Latn"),
        ("nllb", {"src_lang": "fr"}, r"^parameters.src_lang: .* near ones: fra_Latn"),
        ("nllb", {"src_lang": "</s>"}, r"^parameters.src_lang: .* such as "),
        ("mbart", {"tgt_lang": "fr_FR"}, r"^parameters.tgt_lang: .*'fr_FR'; near ones: .*fr_XX"),
        ("m2m100", {"tgt_lang": "__fr__"}, r"^parameters.tgt_lang: .*near ones: "),
        ("marian", {"tgt_lang": "fre"}, r"^parameters.tgt_lang: expected one of the model's 3 .*near ones: fra"),
        ("marian", {"src_lang": "en"}, r"^parameters.src_lang: expected a parameter that this tokens model supports"),
    ],
    ids=["misspelt", "short", "special token", "other region", "token", "marian", "marian's source"],
)  # fmt: skip
async def test_unknown_languages_are_refused(ours: Any, name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await prompts_of(ours(name), "the house", **options)


def test_a_long_code_is_refused_in_a_short_message() -> None:
    languages = Languages({"fra_Latn": 1, "deu_Latn": 2}, 0)
    with pytest.raises(InvalidInput) as caught:
        languages.id("fra_" * 100_000, ("parameters", "tgt_lang"))
    assert len(str(caught.value)) < 200


async def test_a_model_without_languages_refuses_them(ours: Any) -> None:
    plain = load_tokenizer(Path("deploy/model_repository/t5"), {})
    assert Languages.of(plain) is None
    with pytest.raises(InvalidInput, match=r"^parameters.tgt_lang: .*; the model has no languages to choose"):
        await prompts_of(plain, "the house", tgt_lang="fra_Latn")


async def test_token_ids_have_their_language_already(ours: Any) -> None:
    [prompt] = await prompts_of(ours("nllb"), TokenIds((4, 5, 2)), tgt_lang="fra_Latn")
    assert prompt.decoder_start == (START, ours("nllb").token_to_id("fra_Latn"))
    with pytest.raises(InvalidInput, match=r"^parameters.src_lang: expected no language; token ids have"):
        await prompts_of(ours("nllb"), TokenIds((4, 5, 2)), src_lang="fra_Latn")
    with pytest.raises(InvalidInput, match=r"^instances\[0\]: expected no token ids with parameters.tgt_lang"):
        await prompts_of(ours("marian"), TokenIds((4, 5, 2)), tgt_lang="fra")


async def test_a_model_of_logits_mixes_no_languages() -> None:
    """Sequences with different starts share batches, and each has the text that it has alone."""
    variant = VARIANTS["encoder-decoder"]
    starts = [(START,), (START, 7), (START, 9), (START, 11)]
    async with generator(variant, decoder_start_ids=(START,)) as (made, predictor):

        async def write(index: int) -> list[int]:
            prompt = Prompt("", PROMPTS[index], decoder_start=starts[index % 4])
            sampling = Sampling(greedy=True, max_tokens=12)
            return [number async for step in made.generate(prompt, sampling, context()) for number in step.ids]

        found = await asyncio.gather(*map(write, range(16)))
        assert max(predictor.rows) > 4
        for index, answer in enumerate(found):
            wanted = predictor.model.greedy(starts[index % 4], 12, PROMPTS[index])
            assert answer == [number for number in wanted if number != 2]


async def test_a_token_model_gets_the_start() -> None:
    decoder = tuple(TensorSpec(name, "INT32", (-1,)) for name in ("decoder_input_ids", "decoder_input_lengths"))
    spec = model((*NEEDED, *decoder), OUTPUTS)
    predictor = ScriptedLLM(ids(START, 7, 20, 21, length=4))
    made = TokenGenerator(spec, predictor, settings(decoder_start_ids=(START,)))
    assert {*LANGUAGES} <= made.supported_fields
    prompt = Prompt("", (5, 6), decoder_start=(START, 7))
    answer = await steps_of(made, prompt, Sampling(max_tokens=5, greedy=True))
    assert [number for step in answer for number in step.ids] == [20, 21]
    sent = predictor.calls[0].inputs
    assert np.ravel(sent["decoder_input_ids"]).tolist() == [START, 7]
    assert np.ravel(sent["decoder_input_lengths"]).tolist() == [2]
    assert not {*LANGUAGES} & TokenGenerator(model(NEEDED, OUTPUTS), predictor, settings()).supported_fields
