"""Lays out the model repository of the test Triton.

The demo's models are whole in deploy/model_repository. The folders of tests/model_repository hold what differs from
model to model, a config.pbtxt each. What they share, the code and the weights, is linked into place here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.families import MODEL as FAMILY_MODEL
from tests.support.families import NAMES as FAMILY_NAMES
from tests.support.families import answers

TESTS: Final = Path(__file__).resolve().parents[1]
DEMO_MODELS: Final = TESTS.parent / "deploy" / "model_repository"
DEMO_MODEL: Final = DEMO_MODELS / "bert"
VARIANTS: Final = TESTS / "model_repository"
SHARED_CODE: Final = VARIANTS / "onnx_model.py"
DEMO_WEIGHTS: Final = VARIANTS / "bert_masked" / "1" / "model.onnx"
TASK_MODELS: Final = TESTS / "task_models"
GENERATION_CODE: Final = VARIANTS / "generation"
GENERATION: Final = {
    "gpt2_logits": "logits_model.py",
    "gpt2_past": "logits_model.py",
    "gpt2_past_unplaced": "logits_model.py",
    "gpt2_tokens": "token_model.py",
    "gpt2_tokens_unary": "token_model.py",
    "gpt2_vllm": "text_model.py",
    "gpt2_families": "family_model.py",
    "gpt2_llmapi": "llmapi_model.py",
    "gpt2_llmapi_unary": "llmapi_model.py",
    "gpt2_random": "random_model.py",
    "gpt2_tutorial": "tutorial_model.py",
    "gpt2_vision": "vision_model.py",
    "gpt2_vision_urls": "vision_model.py",
    "t5_logits": "logits_model.py",
}
"""Generative model -> its model.py, under GENERATION_CODE; the other files there are what that one needs."""
SAME_WEIGHTS: Final = {
    **{name: "minibert_mean" for name in ("minibert_cls", "minibert_max", "minibert_last")},
    **{name: name.partition("_")[0] for name in GENERATION},
    "minibert_vllm": "minibert_pooled",
}
"""Model -> the model whose weights it has too."""


def model_names() -> list[str]:
    """Every model there is: the demo model `bert`, then the others in the order of their names."""
    others = {path.parent.name for folder in (DEMO_MODELS, VARIANTS) for path in folder.glob("*/config.pbtxt")}
    return ["bert", *sorted(others - {"bert"})]


def task_model_folder(name: str) -> Path:
    """The Hugging Face folder of a model: config.json, the tokenizer's files and sentence-transformers' if it has any.

    That of the demo model for its variants and the faults. Raises ValueError for a name not in model_names().
    """
    if name not in model_names():
        raise ValueError(f"no such test model: {name}")
    own = name.partition("_")[0] if name in GENERATION else name
    return next((folder / own for folder in (DEMO_MODELS, TASK_MODELS) if (folder / own).is_dir()), DEMO_MODEL)


def weights_of(name: str) -> Path:
    """The model.onnx of a model: its own, the one that it shares, or the demo model's (with an attention mask)."""
    if name == "bert":
        return DEMO_WEIGHTS
    own = Path(SAME_WEIGHTS.get(name, name), "1", "model.onnx")
    return next((folder / own for folder in (DEMO_MODELS, VARIANTS) if (folder / own).is_file()), DEMO_WEIGHTS)


def lay_out(target: Path, models: Iterable[str] | None = None) -> None:
    """Build a repository for `tritonserver --model-repository target`, of all models or of the named ones.

    Those of the demo are the deployed ones, with their Python backend's configuration as config.pbtxt. target is made
    if it is absent. Raises ValueError for a name that is not in model_names().
    """
    known = model_names()
    names = known if models is None else list(models)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such test model: {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names:
        version = target / name / "1"
        version.mkdir(parents=True)
        demo = DEMO_MODELS / name
        if demo.is_dir():
            _fill(version, demo / "configs" / "python.pbtxt", demo / "1" / "model.py", demo / "1" / "model.onnx")
        elif name in GENERATION:
            _fill_generation(version, name)
        else:
            own = (DEMO_MODELS / "gliner" if name.startswith("gliner_") else VARIANTS / name) / "1" / "model.py"
            code = own if own.is_file() else SHARED_CODE
            _fill(version, VARIANTS / name / "config.pbtxt", code, weights_of(name))


@contextmanager
def held(repository: Path) -> Iterator[None]:
    """Keeps fault_slow from answering during the context, for tests of what happens meanwhile."""
    file = repository / "fault_slow" / "1" / "held"
    file.touch()
    try:
        yield
    finally:
        file.unlink()


def _fill(version: Path, config: Path, code: Path, weights: Path) -> None:
    shutil.copyfile(config, version.parent / "config.pbtxt")
    shutil.copyfile(code, version / "model.py")
    # A link, since twenty copies of the weights per test run would stay in pytest's temporary folders. Not one for
    # the code: __file__ must lie beside the weights.
    (version / "model.onnx").symlink_to(weights)


def _fill_generation(version: Path, name: str) -> None:
    _fill(version, VARIANTS / name / "config.pbtxt", GENERATION_CODE / GENERATION[name], weights_of(name))
    for code in GENERATION_CODE.glob("*.py"):
        shutil.copyfile(code, version / code.name)
    for file in ("tokenizer.json", "config.json", "generation_config.json"):
        (version / file).symlink_to(task_model_folder(name) / file)
    if name == FAMILY_MODEL:
        texts = {family: answers(family) for family in FAMILY_NAMES}
        (version / "families.json").write_text(json.dumps(texts), encoding="utf-8")
