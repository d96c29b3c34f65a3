"""How an exported model is served: two commands, and a manifest for KServe."""

from __future__ import annotations

import json
import re
import shlex
from argparse import Namespace
from pathlib import Path

TRITON_PORT = 8000
"""Triton's own for REST; the service has 8080."""
LIBRARY = {"onnx": "onnxruntime", "torchscript": "torch"}
"""What the Python backend runs each format with."""
MANIFEST = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: {name}
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


def flags(settings: Namespace, task: str) -> list[str]:
    """The service's flags for this model, without the place of its folder."""
    return [f"--model_name={settings.model_name}", *([] if settings.task is None else [f"--task={task}"])]


def commands(folder: Path, settings: Namespace, task: str) -> str:
    """Triton on this machine, and the service in front of it."""
    repository = folder.parent.resolve()
    places = [f"--model_dir={repository / folder.name}", f"--predictor_host=localhost:{TRITON_PORT}"]
    note = ""
    if settings.backend == "python":
        note = f"  # Triton's Python needs {LIBRARY[settings.format]} and numpy<2.\n"
    service = shlex.join(["hf-transformer", *flags(settings, task), *places])
    return f"{note}  tritonserver --model-repository={shlex.quote(str(repository))}\n  {service}\n"


def manifest(settings: Namespace, task: str) -> str:
    """An InferenceService; its storage has the model repository with the model's folder."""
    image = ""
    if settings.backend == "python":
        image = f"      # Triton's own image has no {LIBRARY[settings.format]} in its Python: name one that has.\n"
    # Kubernetes wants lower-case letters, digits and hyphens, a letter first.
    name = re.sub(r"[^a-z0-9]+", "-", settings.model_name.lower()).strip("-")
    return MANIFEST.format(
        name=name if name[:1].isalpha() else f"model-{name}".rstrip("-"),
        storage=json.dumps(f"pvc://models/{settings.output.resolve().name}"),
        image=image,
        arguments="".join(f"          - {json.dumps(flag)}\n" for flag in flags(settings, task)),
    )
