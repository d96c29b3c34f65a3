"""``hf-transformer export``, run as users run it, and what it writes served by Triton and the service; and for each
task, whether a service gives the committed goldens."""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from hf_transformer.commands.export.command import run
from hf_transformer.commands.local_triton import LocalTriton
from tests.goldens.checkpoints import checkpoint
from tests.integration import (
    test_feature_extraction,
    test_fill_mask,
    test_question_answering,
    test_rerank,
    test_sequence_classification,
    test_text_embedding,
    test_token_classification,
    test_zero_shot_classification,
)
from tests.integration.generating import CASES, TOKENS
from tests.support.service import Service

ROOT = Path(__file__).parents[2]
PIPELINE = {"output_format": "pipeline"}
AS_TOKENS = "--user_special_tokens=tokens"


def generation(service: Service, model: str) -> None:
    """Greedy texts, some prompts of different lengths in one request."""
    kind = model.partition("_")[0]
    cases = CASES[kind][::3]
    found = service.predict([case["prompt"] for case in cases], {"max_new_tokens": TOKENS, "return_full_text": False})
    assert [answer["generated_text"] for (answer,) in found] == [case["text"] for case in cases]


CHECKS: Mapping[str, Callable[[Service, str], None]] = {
    "fill_mask": test_fill_mask.check_goldens,
    "sequence_classification": test_sequence_classification.check_goldens,
    "text_embedding": test_text_embedding.check_goldens,
    "feature_extraction": test_feature_extraction.check_goldens,
    "token_classification": test_token_classification.check_goldens,
    "question_answering": test_question_answering.check_goldens,
    "rerank": test_rerank.check_goldens,
    "zero_shot_classification": test_zero_shot_classification.check_goldens,
    "text_generation": generation,
    "text2text_generation": generation,
}


def triton_with_torch() -> Path:
    """The environment that scripts/test_models makes; HF_TRANSFORMER_MODELS_TRITON_ENVIRONMENT names another."""
    return Path(os.environ.get("HF_TRANSFORMER_MODELS_TRITON_ENVIRONMENT") or ROOT / ".venv-models-triton")


def printed_by(flags: Sequence[str]) -> str:
    """The output of the command. Raises the command's errors."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run(flags, os.environ) == 0
    return printed.getvalue()


class Exports:
    """Checkpoints of the test models, exports of them in one repository, and a Triton that has one loaded at a time."""

    def __init__(self, folder: Path, triton: LocalTriton) -> None:
        self._folder = folder
        self._triton = triton
        self._printed: dict[str, str] = {}
        self.repository = folder / "repository"

    def checkpoint(self, model: str) -> Path:
        """The Hugging Face folder of a test model, weights included."""
        made = self._folder / "checkpoints"
        return made / model if (made / model).is_dir() else checkpoint(model, made)

    def export(self, source: Path, *flags: str, name: str | None = None) -> tuple[str, str]:
        """Exports into the repository; the model's name there and what was printed."""
        name = name or "_".join([source.name, *(flag.strip("-").replace("=", "_") for flag in flags)])
        if name in self._printed:
            return name, self._printed[name]
        flags = (f"--model_id={source}", f"--output={self.repository}", f"--model_name={name}", *flags)
        printed = printed_by([*flags, "--backend=python"])
        assert "same outputs in " in printed
        self._printed[name] = printed
        return name, printed

    @property
    def grpc_address(self) -> str:
        """Triton's."""
        return self._triton.grpc_address

    def load(self, name: str) -> None:
        """Has Triton load a model, which stays."""
        self._ask(name, "load")

    @contextmanager
    def loaded(self, name: str) -> Iterator[None]:
        """Has Triton load a model; each has a process of its own with torch in it, so none stays."""
        self.load(name)
        try:
            yield
        finally:
            self._ask(name, "unload")

    @contextmanager
    def serve(self, name: str, *flags: str, protocol: str = "grpc-v2") -> Iterator[Service]:
        """A service that has nothing but the exported folder. Special tokens in texts are tokens, as in the goldens."""
        address = self._triton.http_address if protocol == "v2" else self._triton.grpc_address
        folder = self.repository / name
        predictor = (f"--predictor_host={address}", f"--predictor_protocol={protocol}")
        with (
            self.loaded(name),
            Service(f"--model_name={name}", f"--model_dir={folder}", AS_TOKENS, *predictor, *flags) as service,
        ):
            yield service.wait_until(f"/v1/models/{name}")

    def infer(self, name: str, inputs: dict[str, Sequence[Any]]) -> dict[str, Any]:
        """The outputs, by name, of a batch of INT64 tensors, asked of Triton itself."""
        tensors = [
            {"name": key, "shape": [len(rows), len(rows[0])], "datatype": "INT64", "data": rows}
            for key, rows in inputs.items()
        ]
        url = f"http://{self._triton.http_address}/v2/models/{name}/infer"
        response = httpx.post(url, json={"inputs": tensors}, timeout=60.0, trust_env=False).raise_for_status()
        return {output["name"]: output for output in response.json()["outputs"]}

    def _ask(self, name: str, what: str) -> None:
        url = f"http://{self._triton.http_address}/v2/repository/models/{name}/{what}"
        response = httpx.post(url, timeout=120.0, trust_env=False)
        assert response.status_code == 200, response.text
