"""Makes tiny GLiNER models with random weights and the library's answers, in an environment that has gliner:

    .venv-models-gliner/bin/python -m tests.models.gliner_checkpoints FOLDER

Each model is a folder as the library saves it, with its goldens in goldens.json.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODELS = {
    "span": ("span", "markerV0", "first"),
    "last_word": ("span", "markerV2", "mean"),
    "convolutions": ("span", "conv_max", "last"),
    "token": ("token", "", "mean"),
    "bi_span": ("span", "markerV0", "first", 8),
    "bi_convolutions": ("span", "conv_max", "mean", 16),
    "bi_token": ("token", "", "last", 24),
    "bi_fused": ("span", "markerV0", "mean", 8, "l2l-l2t-t2t"),
}
"""Name -> ``span`` or ``token``, span_mode, subtoken_pooling; of a bi-encoder also the hidden size of the encoder of
labels, and post_fusion_schema. markerV2 reads padded words, and conv_max no spans."""


def main(folder: Path) -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "models"))
    import train_gliner

    train_gliner.torch.set_num_threads(1)
    train_gliner.TEXTS = 40
    for name, (kind, mode, pooling, *labels) in MODELS.items():
        made = train_gliner.Model("", "", kind, 0, pooling, mode, *labels)
        model = train_gliner.new_model(made)
        thresholds = train_gliner.spread(model, made)
        model.save_pretrained(folder / name)
        cases = train_gliner.goldens(model, made, thresholds)
        (folder / name / "goldens.json").write_text(json.dumps(cases), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
