"""Loads a GLiNER model with its own library, and takes samples of the library's answers.

The inputs of a sample are those that the service makes of the same texts and labels, so the comparison includes the
splitting of words, the prompt of labels and the spans.

Source: model.py of gliner 0.2.29.
"""

from __future__ import annotations

import json
import warnings
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor

from hf_transformer.commands.export.checkpoint import Checkpoint, explained
from hf_transformer.commands.export.config_pbtxt import GraphTensor
from hf_transformer.commands.export.gliner_folder import ENCODERS, require_trust
from hf_transformer.commands.export.graph import Graph
from hf_transformer.commands.export.model_file import Inputs, Sample, padded_inputs
from hf_transformer.commands.export.token_heads import stored_weights
from hf_transformer.core.batch import PaddingPolicy
from hf_transformer.core.batch_rules import batch_rules
from hf_transformer.core.contract import fit_signature
from hf_transformer.core.labelled_batch import LabelledBatchBuilder, LabelledShape
from hf_transformer.errors import ContextLengthExceeded, LoadError
from hf_transformer.tasks.base import TaskSettings
from hf_transformer.tasks.declaration import BATCH, SEQUENCE
from hf_transformer.tasks.zero_shot_token_classification import ZeroShotTokenClassification
from hf_transformer.tokenizer.files import GLINER, LABELS_FOLDER, read_counted
from hf_transformer.tokenizer.model_files import find_model_files
from hf_transformer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from hf_transformer.types.tensors import Array, ModelSpec, TensorSpec
from hf_transformer.types.tokenization import Encoding, LabelledEncoding

WORDS, SPANS, LABELS = "words", "spans", "labels"
"""Names of dynamic axes beside those of other models."""
VECTORS = "labels_embeddings"
"""The output of a bi-encoder's model of labels, and the input of its model of texts."""
NAMES = (
    "date of birth,person,city,company,product,event,language,law,phone number,address,animal,plant,drug,disease,"
    "currency,song,river,island,sport,weapon,vehicle,building,dish,treaty,river bank"
).split(",")
SHORT = "Hi."
MIDDLE = "Anna Smith lives in Berlin and works for Siemens."
LONGER = "In 1999, John-Paul Miller (see x@y.de) met 3.14 people of Acme Corp at the river Rhine, near well-known Köln!"
LONG = " ".join([LONGER] * 12)
BATCHES: Sequence[Sequence[tuple[str, int]]] = (
    ((MIDDLE, 3), (SHORT, 1), (LONGER, 7)),
    ((SHORT, 1),),
    ((LONG, 2),),
    ((MIDDLE, 12),),
    ((LONGER, 4), (LONGER, 4)),
    ((SHORT, len(NAMES)), (LONG, 1), (MIDDLE, 5), (LONGER, 2)),
)
"""Sample texts, each with the number of its labels. The trace uses the largest batch."""
LABEL_BATCHES: Sequence[Sequence[str]] = (
    NAMES,
    NAMES[:1],
    (LONGER, "person", f"{LONGER} {MIDDLE}", "Köln"),
    ("city", "city", "Person"),
)
"""Sample labels of different lengths."""


@dataclass(frozen=True, slots=True)
class GlinerModel:
    """A model in its library, and the service's task for it. ``labels`` is a bi-encoder's tokenizer of labels."""

    library: Any
    checkpoint: Checkpoint
    task: ZeroShotTokenClassification
    labels: Tokenizer | None


class GlinerGraph(Graph):
    """Calls a GLiNER model with what the service sends: logits [B,L,W,C] of spans, or token-level ones [B,L,C,3].

    L is the number of words, W the width of a span in words, C the number of labels. All axes but W are dynamic. Only
    markers of spans (markerV0, for example) read the spans; other layers compute all spans from the words. A
    bi-encoder reads labels_embeddings FP32 [B,C,D], the vectors of each text's labels.
    """

    def __init__(self, model: Any) -> None:
        config = model.config
        token_level = config.span_mode == "token_level"
        inputs = [
            *(GraphTensor(name, (BATCH, SEQUENCE), "INT64") for name in ("input_ids", "attention_mask", "words_mask")),
            GraphTensor("text_lengths", (BATCH, 1), "INT64"),
        ]
        self.reads_spans = not token_level and config.span_mode.startswith("marker")
        if self.reads_spans:
            inputs.append(GraphTensor("span_idx", (BATCH, SPANS, 2), "INT64"))
            inputs.append(GraphTensor("span_mask", (BATCH, SPANS), "BOOL"))
        if is_bi_encoder(config):
            inputs.append(GraphTensor(VECTORS, (BATCH, LABELS, config.hidden_size)))
        axes = (BATCH, WORDS, LABELS, 3) if token_level else (BATCH, WORDS, config.max_width, LABELS)
        super().__init__(inputs, [GraphTensor("logits", axes)])
        self.model = model
        self.width = None if token_level else config.max_width

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = self.named(tensors)
        if self.width is not None and not self.reads_spans:  # all spans of the words; the model takes their number
            lengths = inputs["text_lengths"]
            spans = lengths.new_zeros((len(lengths), int(lengths.max()) * self.width, 2))
            inputs |= {"span_idx": spans, "span_mask": spans[:, :, 0] == 0}
        if VECTORS in inputs:
            inputs["labels_embeds"] = inputs.pop(VECTORS)
        return (self.model(**inputs).logits,)


class LabelsGraph(Graph):
    """The vectors [B,D] of labels, by the second encoder of a bi-encoder and its projection."""

    def __init__(self, model: Any) -> None:
        inputs = [GraphTensor(name, (BATCH, SEQUENCE), "INT64") for name in ("input_ids", "attention_mask")]
        super().__init__(inputs, [GraphTensor(VECTORS, (BATCH, model.config.hidden_size))])
        self.encoders = model.token_rep_layer

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return (self.encoders.encode_labels(**self.named(tensors)),)


def is_bi_encoder(config: Any) -> bool:
    """Whether a configuration of the library is of a model whose labels have an encoder of their own."""
    return bool(getattr(config, "labels_encoder", None))


def load_gliner(settings: Namespace, folder: Path, scratch: Path) -> GlinerModel:
    """Loads the model, after a download from the hub if needed.

    Writes the tokenizer with its marker tokens, that of a bi-encoder's labels, and gliner_config.json, to ``scratch``:
    a folder on the hub may lack the tokenizers of its encoders.

    Raises LoadError for missing or invalid files, for missing weights, and for a tokenizer that the task can't use.
    """
    transformers.logging.set_verbosity_error()
    own, trusting = read_counted(folder / GLINER, required=True), settings.trust_remote_code
    with explained(f"{settings.model_id}: the gliner library can't load it"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for encoder in ENCODERS:
            if own.get(encoder.name) and not isinstance(own.get(encoder.config), dict):
                name = str(own[encoder.name])
                config, _ = transformers.PretrainedConfig.get_config_dict(name, token=settings.token)
                require_trust(config, encoder, settings)
        import gliner

        library = gliner.GLiNER.from_pretrained(
            settings.model_id,
            revision=settings.revision,
            token=settings.token,
            _attn_implementation="eager",  # others depend on the device, or don't support tracing
        )
        library.data_processor.transformer_tokenizer.save_pretrained(scratch)
        if is_bi_encoder(library.config):
            library.data_processor.labels_tokenizer.save_pretrained(scratch / LABELS_FOLDER)
            # The library leaves this encoder's attention to transformers.
            library.model.token_rep_layer.labels_encoder.model.set_attn_implementation("eager")
        library.config.to_json_file(scratch / GLINER)
    # The library leaves out values that equal its defaults.
    written = own | read_counted(scratch / GLINER, required=True)
    (scratch / GLINER).write_text(json.dumps(written, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    _require_weights(library.model, stored_weights(settings, ""), settings)
    files = find_model_files(str(scratch), str(scratch), trust_remote_code=trusting)
    tokenizer = load_tokenizer(files.tokenizer_folder, files.config, trust_remote_code=trusting)
    task = ZeroShotTokenClassification(TaskSettings(files.config, tokenizer, max_length=tokenizer.max_length))
    labels = None
    if is_bi_encoder(library.config):
        config = library.config.labels_encoder_config.to_dict()
        labels = load_tokenizer(scratch / LABELS_FOLDER, config, trust_remote_code=trusting)
    model = library.model.to(torch.float32).train(False)
    head = ZeroShotTokenClassification.export_head
    checkpoint = Checkpoint(files, task.name, tokenizer, None, model, {}, head, None)
    return GlinerModel(library, checkpoint, task, labels)


def _require_weights(model: Any, stored: Mapping[str, Tensor], settings: Namespace) -> None:
    """Raises LoadError for a parameter without a stored weight, which the library draws at random."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if missing := [same[0] for same in names.values() if stored.keys().isdisjoint(same)]:
        listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise LoadError(f"{settings.model_id} has no weights for {listed}")


def gliner_graphs(model: GlinerModel) -> list[tuple[Graph, partial[list[Sample]]]]:
    """The graph of the model, with all inputs that its task sends, and that of a bi-encoder's labels; each with a
    function that takes samples."""
    texts = GlinerGraph(model.checkpoint.model)
    graphs: list[tuple[Graph, partial[list[Sample]]]] = [(texts, partial(take_gliner_samples, texts, model))]
    if model.labels is not None:
        labels = LabelsGraph(model.checkpoint.model)
        graphs.append((labels, partial(take_labels_samples, labels, model, model.labels)))
    for graph, _ in graphs:
        graph.train(False)
    return graphs


def take_gliner_samples(graph: Graph, model: GlinerModel) -> list[Sample]:
    """Runs the library on sample texts with several numbers of labels.

    Raises LoadError if the library reads other tokens than the service, or a call of it fails.
    """
    rules = batch_rules(model.checkpoint.files.config, None)
    builder = _builder(graph, model)
    samples = []
    with explained("the gliner library can't run it"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for texts in BATCHES:
            groups: dict[tuple[int, int, int], list[tuple[LabelledEncoding, Mapping[str, Array]]]] = {}
            for text, count in texts:
                encoding, text, labels = _encoded(model.task, text, NAMES[:count])
                key = (
                    len(encoding.ids) if rules.equal_lengths else 0,
                    len(encoding.words) if model.task.reads_word_padding else 0,
                    encoding.labels if model.task.reads_label_padding else 0,
                )
                logits = _library_logits(model, text, labels, encoding)
                groups.setdefault(key, []).append((encoding, {"logits": logits}))
            samples += [_sample(builder, group) for group in groups.values()]
    return sorted(samples, key=lambda sample: len(sample.alone), reverse=True)


def take_labels_samples(graph: Graph, model: GlinerModel, tokenizer: Tokenizer) -> list[Sample]:
    """Runs the library's encoder of labels on each sample label alone.

    Raises LoadError if the library reads other tokens than the service, or a call of it fails.
    """
    own = model.library.config.labels_encoder_config.to_dict()
    rules = batch_rules(own, None)
    pad_id = tokenizer.pad_id if rules.pad_id is None else rules.pad_id
    samples = []
    with explained("the gliner library can't encode labels"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for labels in LABEL_BATCHES:
            groups: dict[int, list[tuple[Encoding, Mapping[str, Array]]]] = {}
            for label, encoding in zip(labels, tokenizer.encode(labels), strict=True):
                vector = _library_vectors(model, label, encoding)
                length = len(encoding.ids) if rules.equal_lengths else 0
                groups.setdefault(length, []).append((encoding, {VECTORS: vector}))
            for group in groups.values():
                encodings, expected = zip(*group, strict=True)
                alone = [padded_inputs(graph, [encoding], pad_id, rules.left) for encoding in encodings]
                sizes = {BATCH: len(encodings), SEQUENCE: max(map(len, encodings))}
                inputs = padded_inputs(graph, encodings, pad_id, rules.left)
                samples.append(Sample(inputs, expected, alone, sizes, left=False))
    return sorted(samples, key=lambda sample: len(sample.alone), reverse=True)


def _library_vectors(model: GlinerModel, label: str, encoding: Encoding) -> Array:
    """The library's vector of a label alone. Raises LoadError if it reads other tokens than the service."""
    tokens = model.library.data_processor.labels_tokenizer([label], return_tensors="pt", truncation=True)
    if tokens["input_ids"][0].tolist() != encoding.ids:
        raise LoadError(
            f"the library reads other tokens than the service of the label {label[:60]!r}: "
            f"{tokens['input_ids'][0].tolist()[:40]}, expected {encoding.ids[:40]}"
        )
    encoders = model.library.model.token_rep_layer
    vector: Array = encoders.encode_labels(tokens["input_ids"], tokens["attention_mask"])[0].to(torch.float32).numpy()
    return vector


def _builder(graph: Graph, model: GlinerModel) -> LabelledBatchBuilder:
    """The service's builder of batches for the graph."""
    inputs, outputs = (
        tuple(
            TensorSpec(one.name, one.datatype, tuple(-1 if isinstance(axis, str) else axis for axis in one.axes[1:]))
            for one in tensors
        )
        for tensors in (graph.inputs, graph.outputs)
    )
    task, checkpoint = model.task, model.checkpoint
    spec = ModelSpec("model", "1", inputs, outputs, max_batch_size=len(max(BATCHES, key=len)))
    signature = fit_signature(spec, task.outputs, extras=task.inputs, task=task.name)
    rules = batch_rules(checkpoint.files.config, None)
    policy = PaddingPolicy(checkpoint.tokenizer.pad_id if rules.pad_id is None else rules.pad_id, left=rules.left)
    return LabelledBatchBuilder(
        signature, policy, LabelledShape(task.width, task.reads_word_padding, task.reads_label_padding)
    )


def _encoded(
    task: ZeroShotTokenClassification, text: str, labels: Sequence[str]
) -> tuple[LabelledEncoding, str, Sequence[str]]:
    """The encoding of a text by the service, with as much of the text and as many labels as the model can read."""
    options = task.options({})
    while True:
        try:
            item = task.item({"text": text, "labels": [*labels]}, ("instances", 0), options)
            [[encoding]] = task.settings.vocabulary.encode_windows(task.texts(item, options), options.tokenization)
        except ContextLengthExceeded:
            if len(labels) == 1:
                raise
            labels = labels[: len(labels) // 2]
            continue
        if not encoding.truncated:
            return cast(LabelledEncoding, encoding), text, labels
        text, labels = (
            (text[: len(text) // 2], labels) if len(text) > len(SHORT) else (text, labels[: len(labels) // 2])
        )


def _library_logits(model: GlinerModel, text: str, labels: Sequence[str], encoding: LabelledEncoding) -> Array:
    """The library's logits of a text alone. Gives the encoding the library's vectors of labels for a bi-encoder.

    Raises LoadError if the library reads other tokens than the service.
    """
    prepared = model.library.prepare_batch([text], [*labels])
    batch = model.library.collate_batch(prepared["input_x"], prepared["entity_types"])
    for name, own in (("input_ids", encoding.ids), ("words_mask", encoding.words_mask)):
        if batch[name][0].tolist() != own:
            raise LoadError(
                f"the library reads other tokens than the service of the text {text[:60]!r} with {len(labels)} labels: "
                f"{name} is {batch[name][0].tolist()[:40]}, expected {own[:40]}"
            )
    if model.task.is_bi_encoder:
        encoders = model.library.model.token_rep_layer
        vectors = encoders.encode_labels(batch["labels_input_ids"], batch["labels_attention_mask"])
        encoding.vectors = vectors.to(torch.float32).numpy()
    logits: Array = model.library.run_batch(batch).logits[0].to(torch.float32).numpy()
    return logits


def _sample(builder: LabelledBatchBuilder, group: Iterable[tuple[LabelledEncoding, Mapping[str, Array]]]) -> Sample:
    encodings, expected = zip(*group, strict=True)
    sizes = {
        BATCH: len(encodings),
        WORDS: max(len(encoding.words) for encoding in encodings),
        LABELS: max(encoding.labels for encoding in encodings),
    }
    alone = [_tensors(builder, [encoding]) for encoding in encodings]
    return Sample(_tensors(builder, encodings), expected, alone, sizes, left=False)


def _tensors(builder: LabelledBatchBuilder, encodings: Sequence[LabelledEncoding]) -> Inputs:
    """The inputs of a batch, in the order of the graph's."""
    return {
        tensor.name: torch.from_numpy(np.ascontiguousarray(tensor.data)) for tensor in builder.pack(encodings).inputs
    }
