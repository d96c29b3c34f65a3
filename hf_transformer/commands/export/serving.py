"""How an exported model is served: two commands, and a manifest for KServe."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from hf_transformer.commands.export.settings import ExportSettings

TRITON_PORT = 8000
"""Triton's own for REST; the service has 8080."""
NEEDS = {"onnx": "onnxruntime", "torchscript": "torch"}
"""What the Python backend runs each format with."""


def flags(settings: ExportSettings, task: str) -> list[str]:
    """What the service has to be told of this model, beside where it is."""
    names = [f"--model_name={settings.model_name}"]
    if settings.task is not None:
        names.append(f"--task={task}")
    return names


def commands(folder: Path, settings: ExportSettings, task: str) -> str:
    """Triton on this machine, and the service in front of it."""
    repository = folder.parent.resolve()
    service = [
        "hf-transformer",
        *flags(settings, task),
        f"--model_dir={repository / folder.name}",
        f"--predictor_host=localhost:{TRITON_PORT}",
    ]
    needed = ""
    if settings.backend == "python":
        needed = f"  # Triton's Python needs {NEEDS[settings.format]} and numpy<2.\n"
    return f"{needed}  tritonserver --model-repository={shlex.quote(str(repository))}\n  {shlex.join(service)}\n"


def manifest(settings: ExportSettings, task: str) -> str:
    """An InferenceService; its storage holds the folder that the model's own lies in."""
    arguments = "".join(f"          - {json.dumps(flag)}\n" for flag in flags(settings, task))
    storage = json.dumps(f"pvc://models/{settings.output.resolve().name}")
    image = ""
    if settings.backend == "python":
        needed = NEEDS[settings.format]
        image = f"      # Triton's own image has no {needed} in its Python: name one that has.\n"
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {_kubernetes_name(settings.model_name)}
spec:
  predictor:
    model:
      modelFormat:
        name: triton
      protocolVersion: v2
      storageUri: {storage}
{image}\
  transformer:
    containers:
      - name: kserve-container
        image: hf-transformer:latest
        args:
{arguments}\
          - --predictor_protocol=v2
          # Not ready while Triton is not, so that no request is sent to a pod that can't answer it.
          - --enable_predictor_health_check=true
        env:
          # Filled with the same folder: the tokenizer is in it.
          - name: STORAGE_URI
            value: {storage}
"""


def _kubernetes_name(name: str) -> str:
    """Lower-case letters, digits and hyphens, a letter first."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain[:1].isalpha() else f"model-{plain}".rstrip("-")
