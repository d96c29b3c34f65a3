"""Make the GLiNER test models: trained ones of spans, for the demo too, and token-level, one of each with random
weights, and one bi-encoder of each with random weights.

Run it in an environment with torch==2.13.0, gliner==0.2.29 and onnx, from anywhere; bi-encoders need the service there,
too (.venv-models-gliner has all):

    python scripts/models/train_gliner.py [NAME...]

It writes deploy/model_repository/gliner, and for each other model a folder in tests/model_repository and one in
tests/task_models: gliner_config.json, the tokenizer's files, and 1/model.onnx as gliner exports it, without the names
of inner values. A bi-encoder has the folder NAME_labels beside NAME, with its second encoder; both files are as
``hf-transformer export`` writes them, since those of gliner have the same labels for all texts of a batch. The answers
of gliner with the same weights, which are not committed, are the goldens
tests/goldens/zero_shot_token_classification.json, made in the same run. Names make these models alone.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from gliner.config import BiEncoderSpanConfig, BiEncoderTokenConfig, UniEncoderSpanConfig, UniEncoderTokenConfig
from gliner.model import BiEncoderSpanGLiNER, BiEncoderTokenGLiNER, UniEncoderSpanGLiNER, UniEncoderTokenGLiNER
from playground_texts import write_playground
from short_names import shorten
from transformers import AutoTokenizer

ROOT: Final = Path(__file__).resolve().parents[2]
SEED, TEXTS = 5, 300
NEAR: Final = 2e-5
"""Texts with a score so near to the threshold have no golden: rounding decides about them."""


@dataclass(frozen=True)
class Model:
    """A model to make: its folders, ``span`` or ``token``, and the steps of training; 0 for random weights. ``mode`` is
    the span_mode of one of spans.

    ``labels`` is the hidden size of a bi-encoder's encoder of labels, 0 for a uni-encoder; ``fusion`` is a bi-encoder's
    post_fusion_schema. Bi-encoders have random weights.

    Models with random weights read other tokens of words and of labels than trained ones, and keep combining marks.
    """

    folder: str
    files: str
    kind: str
    steps: int
    pooling: str = "first"
    mode: str = "markerV0"
    labels: int = 0
    fusion: str = ""

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]


def _of_tests(name: str, kind: str, steps: int, pooling: str = "first", labels: int = 0) -> Model:
    files = f"tests/task_models/{name}"
    return Model(f"tests/model_repository/{name}", files, kind, steps, pooling, labels=labels)


HIDDEN: Final = 16
MODELS: Final = (
    Model("deploy/model_repository/gliner", "deploy/model_repository/gliner", "span", 2400),
    _of_tests("gliner_token", "token", 900),
    _of_tests("gliner_random", "span", 0, "mean"),
    _of_tests("gliner_token_random", "token", 0, "last"),
    _of_tests("gliner_bi", "span", 0, labels=8),
    _of_tests("gliner_bi_token", "token", 0, "mean", labels=HIDDEN),
)
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
LABEL_TOKENS: Final = 32
"""The tokens that a bi-encoder reads of a label; gliner truncates labels to model_max_length of their tokenizer."""
BI_LABELS: Final = [*LABELS, "Person", "CITY", "Straßenname", "公司", "place of birth, if known, else of residence"]
BI_LABELS.append("a person, a city or a company; " * 5)
"""Labels of different lengths for bi-encoders, in upper case, too, and one of more than LABEL_TOKENS."""


def new_model(made: Model) -> Any:
    """A model of two layers with random weights, for labels one layer."""
    torch.manual_seed(SEED)
    accents = {} if made.steps else {"strip_accents": False}
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests/task_models/tokenizers/uncased", **accents)
    tokenizer.model_max_length = 256
    settings = {"model_name": "tiny", "hidden_size": HIDDEN, "max_width": 4, "max_len": 100, "dropout": 0.0}
    settings |= {"subtoken_pooling": made.pooling, "embed_ent_token": bool(made.steps)}
    if made.labels:
        # No prompt, so no marker tokens. As in released models, -1 stands for those of the tokenizer.
        labels_tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests/task_models/tokenizers/cased")
        labels_tokenizer.model_max_length = LABEL_TOKENS
        settings |= {"encoder_config": encoder(len(tokenizer), HIDDEN, 2, 256), "labels_encoder": "tiny-labels"}
        settings |= {"labels_encoder_config": encoder(len(labels_tokenizer), made.labels, 1, LABEL_TOKENS)}
        settings |= {"post_fusion_schema": made.fusion}
        tokenizers = {"tokenizer": tokenizer, "labels_tokenizer": labels_tokenizer}
        if made.kind == "span":
            return BiEncoderSpanGLiNER(BiEncoderSpanConfig(span_mode=made.mode, **settings), **tokenizers)
        return BiEncoderTokenGLiNER(BiEncoderTokenConfig(**settings), **tokenizers)
    tokenizer.add_tokens(["<<ENT>>", "<<SEP>>"], special_tokens=True)
    size = len(tokenizer)
    settings |= {"encoder_config": encoder(size, HIDDEN, 2, 256), "vocab_size": size}
    settings |= {"class_token_index": tokenizer.convert_tokens_to_ids("<<ENT>>")}
    if made.kind == "span":
        return UniEncoderSpanGLiNER(UniEncoderSpanConfig(span_mode=made.mode, **settings), tokenizer=tokenizer)
    return UniEncoderTokenGLiNER(UniEncoderTokenConfig(**settings), tokenizer=tokenizer)


def encoder(vocabulary: int, hidden: int, layers: int, positions: int) -> dict[str, Any]:
    """The encoder_config of a small BERT."""
    settings = {"model_type": "bert", "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers}
    settings |= {"num_attention_heads": 4, "intermediate_size": 2 * hidden, "max_position_embeddings": positions}
    return settings | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@torch.no_grad()
def spread(model: Any, made: Model) -> tuple[float, ...]:
    """Scale random weights, drawn with a small deviation, so that words and labels differ and logits have DEVIATION.

    Returns QUANTILES of the scores of texts.
    """
    for name, weights in model.model.named_parameters():
        if weights.dim() == 2 and "word_embeddings" not in name:
            weights *= 5 if "token_rep_layer" in name else 2
    model.eval()
    draw, inner = random.Random(SEED), model.model
    examples = [example(draw, model.data_processor.words_splitter) for _ in range(16)]
    if made.labels:  # which the collator of training shuffles
        batch = model.collate_batch([{**one, "ner": None} for one in examples], BI_LABELS)
    else:
        collate = model.data_collator_class(model.config, data_processor=model.data_processor, prepare_labels=True)
        batch = collate(examples)
    last = inner.prompt_rep_layer[-1] if hasattr(inner, "prompt_rep_layer") else inner.scorer.out_mlp[-1]
    deviation = DEVIATION
    if made.labels and made.kind == "span" and made.mode == "markerV0":  # without their means, labels differ more
        deviation /= 2  # there are more scores far from the mean
        spans, labels = inner.span_rep_layer.span_rep_layer.out_project[-1], inner(**batch).prompts_embedding
        last.bias -= labels.mean(dim=(0, 1))
        vectors = inner(**batch, return_embeddings=True).span_embeddings
        spans.bias -= vectors[batch["span_mask"].view(vectors.shape[:-1])].mean(dim=0)
    for _ in range(2):
        logits = inner(**batch).logits
        factor = deviation / logits[logits != 0].std()
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
    known = BI_LABELS if made.labels else LABELS
    while len(cases) < TEXTS:
        threshold = draw.choice(thresholds)
        parameters = {"flat_ner": draw.random() < 0.6, "multi_label": draw.random() < 0.4}
        text, labels = text_of(draw, hard, sentences), draw.sample(known, draw.randint(1, 25))
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


FILES: Final = ("gliner_config.json", "tokenizer.json", "tokenizer_config.json")


def write(model: Any, folder: Path, files: Path) -> None:
    """Export the model as gliner does: model.onnx in the folder of a model of Triton, the other files in ``files``."""
    with tempfile.TemporaryDirectory() as made:
        model.export_to_onnx(made)
        write_onnx(Path(made, "model.onnx"), folder)
        write_files(Path(made), files, FILES)


def write_bi_encoder(model: Any, folder: Path, files: Path) -> None:
    """Write both graphs of a bi-encoder as the service's export does: the one of labels to the folder NAME_labels."""
    from hf_transformer.commands.export.gliner_model import GlinerGraph, LabelsGraph
    from hf_transformer.commands.export.model_file import write_model

    prepared = model.prepare_batch(["Anna Smith lives in Berlin.", "Hi."], ["person", "a city or a company"])
    batch = model.collate_batch(prepared["input_x"], prepared["entity_types"])
    labels = {name: batch[f"labels_{name}"] for name in ("input_ids", "attention_mask")}
    batch["labels_embeddings"] = model.model.token_rep_layer.encode_labels(**labels).detach().expand(2, -1, -1)
    with tempfile.TemporaryDirectory() as made:
        for graph, inputs, target in (
            (GlinerGraph(model.model), batch, folder),
            (LabelsGraph(model.model), labels, folder.with_name(f"{folder.name}_labels")),
        ):
            path = Path(made, target.name, "model.onnx")
            write_model(graph.eval(), path, "onnx", {tensor.name: inputs[tensor.name] for tensor in graph.inputs})
            write_onnx(path, target)
        model.save_pretrained(made)
        write_files(Path(made), files, [*FILES, *(f"labels_tokenizer/{name}" for name in FILES[1:])])


def write_onnx(path: Path, folder: Path) -> None:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, folder / "1/model.onnx")
    shorten(folder / "1/model.onnx")


def write_files(made: Path, files: Path, names: Sequence[str]) -> None:
    """Copy small files. A wheel carries those of tokenizers, so without spaces."""
    for name in names:
        (files / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made / name, files / name)
        if Path(name).name == "tokenizer.json":
            tokenizer = json.loads((files / name).read_text(encoding="utf-8"))
            written = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
            (files / name).write_text(f"{written}\n", encoding="utf-8")


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
            thresholds = spread(model, made)
        (write_bi_encoder if made.labels else write)(model, ROOT / made.folder, ROOT / made.files)
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
