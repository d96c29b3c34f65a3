"""Make the GLiNER test models: trained ones of spans, for the demo too, and token-level, and one of each with random
weights.

Run it in an environment with torch==2.13.0, gliner==0.2.29 and onnx, from anywhere:

    python scripts/models/train_gliner.py [NAME...]

It writes deploy/model_repository/gliner, and for each other model a folder in tests/model_repository and one in
tests/task_models: gliner_config.json, the tokenizer's files, and 1/model.onnx as gliner exports it, without the names
of inner values. The answers of gliner with the same weights, which are not committed, are the goldens
tests/goldens/zero_shot_token_classification.json, made in the same run. Names make these models alone.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import onnx
import torch
from gliner.config import UniEncoderSpanConfig, UniEncoderTokenConfig
from gliner.model import UniEncoderSpanGLiNER, UniEncoderTokenGLiNER
from playground_texts import write_playground
from transformers import AutoTokenizer

ROOT: Final = Path(__file__).resolve().parents[2]
SEED, TEXTS = 5, 300
NEAR: Final = 2e-5
"""Texts with a score so near to the threshold have no golden: rounding decides about them."""


@dataclass(frozen=True)
class Model:
    """A model to make: its folders, ``span`` or ``token``, and the steps of training; 0 for random weights. ``mode`` is
    the span_mode of one of spans.

    Models with random weights read other tokens of words and of labels than trained ones, and keep combining marks.
    """

    folder: str
    files: str
    kind: str
    steps: int
    pooling: str = "first"
    mode: str = "markerV0"

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]


def _of_tests(name: str, kind: str, steps: int, pooling: str = "first") -> Model:
    return Model(f"tests/model_repository/{name}", f"tests/task_models/{name}", kind, steps, pooling)


MODELS: Final = (
    Model("deploy/model_repository/gliner", "deploy/model_repository/gliner", "span", 2400),
    _of_tests("gliner_token", "token", 900),
    _of_tests("gliner_random", "span", 0, "mean"),
    _of_tests("gliner_token_random", "token", 0, "last"),
)
HIDDEN: Final = 16
DEVIATION: Final = 2.0
"""The standard deviation of logits of random weights, so that scores differ."""
THRESHOLDS: Final = (0.1, 0.3, 0.5)
"""Those of trained models. Models with random weights have QUANTILES of their scores."""
QUANTILES: Final = (0.9, 0.97, 0.99)
NAMES: Final = {
    "person": "Anna Smith|John Miller|Maria|Peter|Anna|John|Maria Smith|Peter Miller".split("|"),
    "city": "Berlin|Paris|London|Rome|New York|Madrid".split("|"),
    "company": "Siemens|Acme Corp|Google|Acme|Nokia".split("|"),
}
TEMPLATES: Final = (
    "{person} lives in {city} and works for {company}.",
    "{person} works at {company} in {city}.",
    "The hotel in {city} was wonderful.",
    "{company} is in {city}.",
    "{person} and {person} met in {city}.",
    "In {city}, {person} founded {company}.",
)
HARD: Final = (
    "東京大学 は日本 שלום עולם مرحبا بالعالم 😀👍 x@y.de +49-30 well-known a_b-c café 1999. (see) 3.14".split()
)
MARKS: Final = "नमस्ते दुनिया สวัสดี Zoe\u0308 cafe\u0301 பெயர் Tie\u0302\u0301ng שָׁלוֹם مَرْحَبًا a\u0301\u0302\u0303b".split()
"""Words with combining marks."""
LABELS: Final = [*NAMES, *"date drug email address product event language law number phone time animal plant".split()]
LABELS.extend(f"thing {number}" for number in range(10))


def new_model(made: Model) -> Any:
    """A model of two layers with random weights."""
    torch.manual_seed(SEED)
    accents = {} if made.steps else {"strip_accents": False}
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests/task_models/tokenizers/uncased", **accents)
    tokenizer.model_max_length = 256
    tokenizer.add_tokens(["<<ENT>>", "<<SEP>>"], special_tokens=True)
    size = len(tokenizer)
    encoder = {"model_type": "bert", "vocab_size": size, "hidden_size": HIDDEN, "num_hidden_layers": 2}
    encoder |= {"num_attention_heads": 4, "intermediate_size": 2 * HIDDEN, "max_position_embeddings": 256}
    encoder |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = {"model_name": "tiny", "hidden_size": HIDDEN, "max_width": 4, "max_len": 100, "encoder_config": encoder}
    settings |= {"vocab_size": size, "class_token_index": tokenizer.convert_tokens_to_ids("<<ENT>>"), "dropout": 0.0}
    settings |= {"subtoken_pooling": made.pooling, "embed_ent_token": bool(made.steps)}
    if made.kind == "span":
        return UniEncoderSpanGLiNER(UniEncoderSpanConfig(span_mode=made.mode, **settings), tokenizer=tokenizer)
    return UniEncoderTokenGLiNER(UniEncoderTokenConfig(**settings), tokenizer=tokenizer)


@torch.no_grad()
def spread(model: Any) -> tuple[float, ...]:
    """Scale random weights, drawn with a small deviation, so that words and labels differ and logits have DEVIATION.

    Returns QUANTILES of the scores of texts.
    """
    for name, weights in model.model.named_parameters():
        if weights.dim() == 2 and "word_embeddings" not in name:
            weights *= 5 if "token_rep_layer" in name else 2
    model.eval()
    collate = model.data_collator_class(model.config, data_processor=model.data_processor, prepare_labels=True)
    draw, inner = random.Random(SEED), model.model
    batch = collate([example(draw, model.data_processor.words_splitter) for _ in range(16)])
    last = inner.prompt_rep_layer[-1] if hasattr(inner, "prompt_rep_layer") else inner.scorer.out_mlp[-1]
    for _ in range(2):
        logits = inner(**batch).logits
        factor = DEVIATION / logits[logits != 0].std()
        last.weight *= factor
        last.bias *= factor
    scores = inner(**batch).logits.sigmoid()
    if model.config.span_mode == "token_level":
        scores = scores.min(dim=-1).values  # about those of single words
    quantiles = torch.quantile(scores[scores != 0.5], torch.tensor(QUANTILES))
    return tuple(round(float(quantile), 3) for quantile in quantiles)


def example(draw: random.Random, splitter: Any) -> dict[str, Any]:
    """A sentence in words with its entities."""
    words: list[str] = []
    entities = []
    for part in (
        " ".join(draw.choices(TEMPLATES, k=draw.randint(1, 3))).replace("{", "|{").replace("}", "}|").split("|")
    ):
        kind = part.strip("{}")
        text = draw.choice(NAMES[kind]) if part.startswith("{") else part
        added = [word for word, _, _ in splitter(text)]
        if part.startswith("{"):
            entities.append((len(words), len(words) + len(added) - 1, kind))
        words += added
    labels = [*NAMES, *draw.sample(LABELS[3:], draw.randint(0, 3))]
    draw.shuffle(labels)
    return {"tokenized_text": words, "ner": entities, "ner_labels": labels}


def train(model: Any, steps: int) -> None:
    """Train the model on sentences of TEMPLATES."""
    draw, optimizer = random.Random(SEED), torch.optim.Adam(model.model.parameters(), 3e-3)
    collate = model.data_collator_class(model.config, data_processor=model.data_processor, prepare_labels=True)
    model.train()
    for _ in range(steps):
        batch = collate([example(draw, model.data_processor.words_splitter) for _ in range(16)])
        loss = model.model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def text_of(draw: random.Random, hard: list[str], sentences: int) -> str:
    """A text of sentences and words in several scripts.

    No word may become nothing in the tokenizer, as combining marks do where it strips accents: gliner 0.2.29 counts
    such a word in text_lengths and in its offsets but not in words_mask. So its answer names words beside the entity,
    and its recurrent layer reads a word of zeros at the end, which changes scores.
    """
    parts = []
    for _ in range(draw.randint(1, sentences)):
        parts.append(draw.choice(TEMPLATES).format(**{kind: draw.choice(names) for kind, names in NAMES.items()}))
        parts += draw.choices(hard, k=draw.randint(0, 3))
    return " ".join(parts)


def goldens(model: Any, made: Model, thresholds: tuple[float, ...]) -> list[dict[str, Any]]:
    """The library's answers to TEXTS texts with 1 to 25 labels; scores with 7 decimals."""
    draw, cases = random.Random(SEED + 1), []
    hard, sentences = (HARD, 4) if made.steps else ([*HARD, *MARKS, *MARKS], 2)
    while len(cases) < TEXTS:
        threshold = draw.choice(thresholds)
        parameters = {"flat_ner": draw.random() < 0.6, "multi_label": draw.random() < 0.4}
        text, labels = text_of(draw, hard, sentences), draw.sample(LABELS, draw.randint(1, 25))
        labels[: draw.randint(0, 3)] = draw.sample([*NAMES], draw.randint(1, 3))
        labels = [*dict.fromkeys(labels)]
        found, *others = (
            [
                [e["start"], e["end"], e["label"], round(e["score"], 7)]
                for e in model.predict_entities(text, labels, threshold=near, **parameters)
            ]
            for near in (threshold, threshold - NEAR, threshold + NEAR)
        )
        if all(other == found for other in others):
            cases.append({"text": text, "labels": labels, "threshold": threshold, **parameters, "entities": found})
    return cases


def write(model: Any, folder: Path, files: Path) -> None:
    """Export the model as gliner does: model.onnx in the folder of a model of Triton, the other files in ``files``."""
    for needed in (folder / "1", files):
        needed.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        model.export_to_onnx(made)
        (folder / "1/model.onnx").write_bytes(shortened(onnx.load(str(Path(made, "model.onnx")))))
        for name in ("gliner_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(Path(made, name), files / name)
        # A wheel carries it, so without spaces.
        tokenizer = json.loads((files / "tokenizer.json").read_text(encoding="utf-8"))
        written = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
        (files / "tokenizer.json").write_text(f"{written}\n", encoding="utf-8")


def shortened(model: Any) -> bytes:
    """The file of a model, without the names of nodes and with short names of inner values, a third of a tiny file."""
    graph = model.graph
    kept = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
    names: dict[str, str] = {}
    shorten_names(graph, kept, names)
    return bytes(model.SerializeToString())


def shorten_names(graph: Any, kept: set[str], names: dict[str, str]) -> None:
    """Renames the values of a graph and of the graphs in its nodes, which may read those around them."""
    del graph.value_info[:]
    for node in graph.node:
        node.name = node.doc_string = ""
        for values in (node.input, node.output):
            values[:] = [
                value if value in kept or not value else names.setdefault(value, f"v{len(names)}") for value in values
            ]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                for value in attribute.g.output:
                    value.name = names.setdefault(value.name, f"v{len(names)}")
                shorten_names(attribute.g, kept | {value.name for value in attribute.g.initializer}, names)


def main() -> None:
    torch.set_num_threads(1)
    path = ROOT / "tests/goldens/zero_shot_token_classification.json"
    wanted = sys.argv[1:] or [made.name for made in MODELS]
    answers = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for made in MODELS:
        if made.name not in wanted:
            continue
        model, thresholds = new_model(made), THRESHOLDS
        if made.steps:
            train(model, made.steps)
        else:
            thresholds = spread(model)
        write(model, ROOT / made.folder, ROOT / made.files)
        write_playground(ROOT / made.folder)
        answers[made.name] = goldens(model, made, thresholds)
        print(made.name, model.predict_entities("Anna Smith lives in Berlin and works for Siemens.", [*NAMES]))
    about = {"gliner": "0.2.29", "torch": torch.__version__, "score_absolute": 1e-5}
    cases = ",\n".join(
        f'"{made.name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in answers[made.name]) + "\n]"
        for made in MODELS
    )
    path.write_text(f'{{"about": {json.dumps(about)},\n{cases}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
