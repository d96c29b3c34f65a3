"""What a model's folder in Triton's repository layout holds beside the model."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_transformer.commands.export.config_pbtxt import config_pbtxt
from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.settings import ExportSettings
from hf_transformer.errors import LoadError
from hf_transformer.tokenizer.files import SETTINGS_FILES, VOCABULARY_FILES, ModelFiles, find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer

BESIDE = (
    *SETTINGS_FILES,
    *VOCABULARY_FILES,
    "merges.txt",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "?_*/config.json",
    "*.tiktoken",
    "additional_chat_templates/*.jinja",
)
"""What the service reads of a model's folder, as patterns."""
MODELS = Path(__file__).with_name("python_models")
CODE = {"onnx": "onnx_model.py", "torchscript": "torch_model.py"}
"""What runs each format in the Python backend."""
SAMPLE = "The capital of France is Paris, déjà vu."


def fill(folder: Path, graph: Graph, files: ModelFiles, task: str, settings: ExportSettings) -> None:
    """Everything beside the model itself: config.pbtxt, model.py where the Python backend runs it, tokenizer files."""
    (folder / "config.pbtxt").write_text(config_pbtxt(graph, settings, task), encoding="utf-8")
    if settings.backend == "python":
        shutil.copyfile(MODELS / CODE[settings.format], folder / "1" / "model.py")
    patterns = (*BESIDE, "*.py") if settings.trust_remote_code else BESIDE
    for source in dict.fromkeys((files.model_folder, files.tokenizer_folder)):
        for pattern in patterns:
            for found in source.glob(pattern):
                copy = folder / found.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, copy)


def require_loadable(folder: Path, tokenizer: Tokenizer, settings: ExportSettings) -> None:
    """The service starts from the folder alone.

    Raises:
        LoadError: files that the tokenizer needs were not copied.
    """
    trusting = settings.trust_remote_code
    files = find_model_files(None, str(folder), trust_remote_code=trusting)
    found = load_tokenizer(files.tokenizer_folder, files.config, trust_remote_code=trusting)
    ids = [one.encode([SAMPLE])[0].ids for one in (tokenizer, found)]
    if list(ids[0]) != list(ids[1]):
        raise LoadError(f"the tokenizer in {folder.name} gives other tokens than that of {settings.model_id}")
