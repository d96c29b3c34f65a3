"""What is read of a generative model's files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hf_transformer.errors import LoadError
from hf_transformer.generation.parts import GenerationParts, load_generation_parts
from hf_transformer.model_parts import load_parts
from hf_transformer.tokenizer.files import ModelFiles
from tests.api.generating import FOLDER, tokenizer_of
from tests.configuring import config
from tests.triton_repository import DEMO_MODEL, DEMO_MODELS


def read(folder: Path, model: dict[str, Any], generation: dict[str, Any] | None = None) -> GenerationParts:
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_generation_parts(ModelFiles(folder, folder, model), tokenizer_of(), None)


@pytest.mark.parametrize(
    ("model", "generation", "eos", "pad"),
    [
        ({"eos_token_id": 5, "pad_token_id": 6}, None, {5}, 6),
        ({"eos_token_id": 5, "pad_token_id": 6}, {"eos_token_id": [7, 8]}, {7, 8}, 6),
        ({"eos_token_id": 5}, {"eos_token_id": None, "pad_token_id": 9}, set(), 9),
        ({}, {}, set(), 0),
        ({"eos_token_id": 2, "pad_token_id": -1}, None, {2}, 0),
    ],
    ids=["config alone", "several", "none", "nothing", "no padding"],
)
def test_the_ids_that_end_a_text(
    tmp_path: Path, model: dict[str, Any], generation: dict[str, Any] | None, eos: set[int], pad: int
) -> None:
    parts = read(tmp_path, model, generation)
    assert set(parts.eos_ids) == eos
    assert (parts.pad_id, parts.decoder_start_ids) == (pad, ())
    assert parts.chat_template is None


@pytest.mark.parametrize(
    ("model", "generation", "start"),
    [
        ({"decoder_start_token_id": 0}, None, (0,)),
        ({"bos_token_id": 3}, None, (3,)),
        ({"decoder_start_token_id": 2}, {"decoder_start_token_id": 4, "forced_bos_token_id": 1}, (4, 1)),
    ],
    ids=["its own", "the first of a text", "a forced one"],
)
def test_what_a_decoder_begins_with(
    tmp_path: Path, model: dict[str, Any], generation: dict[str, Any] | None, start: tuple[int, ...]
) -> None:
    assert read(tmp_path, {"is_encoder_decoder": True, **model}, generation).decoder_start_ids == start
    assert read(tmp_path, model).decoder_start_ids == ()


def test_what_is_no_id_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"eos_token_id in generation_config.json or config.json: expected token ids"):
        read(tmp_path, {}, {"eos_token_id": "</s>"})
    for beyond in (2**31, 2**64 - 1):
        with pytest.raises(LoadError, match=f"pad_token_id in .*: expected token ids, got {beyond}"):
            read(tmp_path, {}, {"pad_token_id": beyond})
    assert read(tmp_path, {}, {"pad_token_id": 2**31 - 1}).pad_id == 2**31 - 1
    with pytest.raises(LoadError, match="has no decoder_start_token_id"):
        read(tmp_path, {"is_encoder_decoder": True}, {})


def test_the_test_models_are_told_by_their_architecture() -> None:
    parts = load_parts(config(f"--model_dir={FOLDER}", "--temperature=0.5", "--max_new_tokens=9", MAX_LENGTH="40"))
    assert parts.task.name == "text_generation" and parts.generation is not None
    assert parts.generation.chat_template is not None
    generation = parts.task.settings.generation
    assert (generation.max_length, generation.temperature, generation.max_new_tokens) == (40, 0.5, 9)
    t5 = load_parts(config(f"--model_dir={DEMO_MODELS / 't5'}"))
    assert t5.task.name == "text2text_generation" and t5.generation is not None
    assert t5.generation.decoder_start_ids


def test_a_chat_template_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages[0].content }}?")
    for given in (str(file), "{{ messages[0].content }}?"):
        parts = load_parts(config(f"--model_dir={FOLDER}", f"--chat_template={given}"))
        assert parts.generation is not None and parts.generation.chat_template is not None
        assert parts.generation.chat_template.render([{"role": "user", "content": "Hi"}]) == "Hi?"
    with pytest.raises(LoadError, match="--chat_template: expected a file or a Jinja template"):
        load_parts(config(f"--model_dir={FOLDER}", "--chat_template=no-such-file"))


def test_flags_of_generation_have_no_effect_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    flags = ["--temperature=0.5", "--do_sample", "--chat_template={{ x }}", "--return_full_text=false"]
    parts = load_parts(config(f"--model_dir={DEMO_MODEL}", *flags))
    assert parts.generation is None
    said = [record.getMessage() for record in caplog.records]
    for flag in ("--temperature=0.5", "--do_sample=true", "--return_full_text=false", "--chat_template"):
        assert f"{flag} has no effect for fill_mask" in said
