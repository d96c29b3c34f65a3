"""The pure parts of a batch, its widths, and how large its outputs may be.

That answers do not depend on neighbours is shown on the real predictor, in tests/integration.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.wiring import (
    PipelineBuilder,
    fit_task,
    load_model,
    outputs_in_shared_memory,
    padding_policy,
    scheduler_settings,
)
from hf_transformer.config.options import Config
from hf_transformer.core.batch import EncodingBatchBuilder, PaddingBuckets, PaddingPolicy, padding_buckets
from hf_transformer.core.contract import ContractError, InputSignature, OutputSignature, Signature
from hf_transformer.core.pipeline import PredictivePipeline
from hf_transformer.core.scheduler import OUTPUT_BYTES, SHARED_OUTPUT_BYTES
from hf_transformer.errors import PredictorError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding
from tests.core.bench import text
from tests.doctor.test_doctor import GOOD, binding_of
from tests.integration.server.processes import MODEL_FOLDER
from tests.support.configuring import config
from tests.support.scripted_predictor import ScriptedPredictor

IDS = InputSignature("input_ids", "input_ids", "INT64")
MASK = InputSignature("mask", "attention_mask", "INT64")
TYPES = InputSignature("types", "token_type_ids", "INT32")
LOGITS = OutputSignature("logits", "logits", "FP32", (TOKENS, Axis(name="vocabulary", minimum=5)), (-1, 5))
MASKED = Signature((IDS, MASK, TYPES), (LOGITS,), 4, None, True, None, True)
RIGHT, LEFT = PaddingPolicy(pad_id=9, left=False), PaddingPolicy(pad_id=9, left=True)
EIGHTS = replace(RIGHT, widths=PaddingBuckets(8, 100))


def encoding(length: int) -> Encoding:
    return Encoding(list(range(1, length + 1)), [0] * (length - 1) + [1])


@pytest.mark.parametrize(
    ("changes", "filling", "lengths", "ids", "mask", "types"),
    [
        ({}, RIGHT, [2, 3], [[1, 2, 9], [1, 2, 3]], [[1, 1, 0], [1, 1, 1]], [[0, 1, 0], [0, 0, 1]]),
        ({}, LEFT, [2, 3], [[9, 1, 2], [1, 2, 3]], [[0, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 0, 1]]),
        ({}, RIGHT, [3, 3], [[1, 2, 3]] * 2, [[1, 1, 1]] * 2, [[0, 0, 1]] * 2),
        (
            {"exact_rows": 3, "length": 4},
            RIGHT,
            [2, 1],
            [[1, 2, 9, 9], [1, 9, 9, 9], [1, 9, 9, 9]],
            [[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
            [[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
        ),
        ({"max_rows": 1, "batch_axis": False}, RIGHT, [2], [1, 2], [1, 1], [0, 1]),
        (
            {},
            EIGHTS,
            [2, 5],
            [[1, 2] + [9] * 6, [1, 2, 3, 4, 5, 9, 9, 9]],
            [[1, 1] + [0] * 6, [1] * 5 + [0] * 3],
            [[0, 1] + [0] * 6, [0] * 4 + [1] + [0] * 3],
        ),
        ({"max_rows": 1, "batch_axis": False}, EIGHTS, [1], [1] + [9] * 7, [1] + [0] * 7, [1] + [0] * 7),
    ],
    ids=["right", "left", "no padding", "fixed shapes", "no batch axis", "a width", "a width, no batch axis"],
)
def test_padding(changes: Any, filling: PaddingPolicy, lengths: list[int], ids: Any, mask: Any, types: Any) -> None:
    packed = EncodingBatchBuilder(replace(MASKED, **changes), filling).pack([*map(encoding, lengths)])
    assert [one.data.tolist() for one in packed.inputs] == [ids, mask, types]
    assert [one.data.dtype.name for one in packed.inputs] == ["int64", "int64", "int32"]
    assert (packed.real, packed.real + packed.padding) == (sum(lengths), packed.inputs[0].data.size)
    rows, width = packed.inputs[0].data.size // packed.inputs[0].shape[-1], packed.inputs[0].shape[-1]
    assert packed.sizes == {"logits": rows * width * 5 * 4}


@pytest.mark.parametrize("filling", [RIGHT, LEFT, EIGHTS], ids=["right", "left", "a width"])
@pytest.mark.parametrize("batch_axis", [True, False], ids=["batch axis", "none"])
def test_each_item_gets_its_own_rows_without_padding(batch_axis: bool, filling: PaddingPolicy) -> None:
    items = [encoding(2), encoding(3)] if batch_axis else [encoding(3)]
    form = EncodingBatchBuilder(replace(MASKED, batch_axis=batch_axis, max_rows=len(items)), filling)
    packed = form.pack(items)
    width = packed.inputs[0].shape[-1]
    data = np.arange(len(items) * width * 5, dtype=np.float32).reshape(len(items), width, 5)
    outputs = {"logits": Tensor("logits", "FP32", data if batch_axis else data[0])}
    found = [rows["logits"].tolist() for rows in form.unpack(items, packed, outputs)]
    tokens = [range(width - len(item), width) if filling.left else range(len(item)) for item in items]
    assert found == [data[row, [*own]].tolist() for row, own in enumerate(tokens)]


@pytest.mark.parametrize(
    ("datatype", "shape", "says"),
    [
        pytest.param("FP64", (2, 3, 5), "as FP64", id="datatype"),
        pytest.param("FP32", (2, 3), "expected [2, 3, -1]", id="rank"),
        pytest.param("FP32", (1, 3, 5), "expected [2, 3, -1]", id="rows"),
        pytest.param("FP32", (2, 2, 5), "expected [2, 3, -1]", id="tokens"),
        pytest.param("FP32", (2, 3, 4), "4 along vocabulary", id="vocabulary"),
    ],
)
def test_a_wrong_response_is_refused(datatype: str, shape: tuple[int, ...], says: str) -> None:
    form, items = EncodingBatchBuilder(MASKED, RIGHT), [encoding(3), encoding(3)]
    outputs = {"logits": Tensor("logits", datatype, np.zeros(shape))}
    with pytest.raises(PredictorError) as caught:
        next(form.unpack(items, form.pack(items), outputs))
    assert says in str(caught.value)


@pytest.mark.parametrize(("sizes", "allowed"), [((-1, 5), True), ((-1, -1), False)], ids=["known", "unknown"])
def test_more_bytes_of_outputs_only_where_their_sizes_are_known(sizes: tuple[int, ...], allowed: bool) -> None:
    signature = replace(MASKED, outputs=(replace(LOGITS, sizes=sizes),))
    form = EncodingBatchBuilder(
        signature, RIGHT, max_tokens=100, max_output_bytes=120, allow_in_shared_memory=lambda size: size <= 180
    )
    limits = form.limits(encoding(3))  # a row has 60 bytes
    assert [limits.allow(rows, 3, 3 * rows) for rows in (2, 3, 4)] == [True, allowed, False]


# Widths that are multiples of --pad_to_multiple_of


@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 40), (40, 40), (41, 41)]
)
def test_a_width_is_a_multiple_or_the_longest_and_never_less_than_the_text(tokens: int, width: int) -> None:
    assert PaddingBuckets(16, 40).of(tokens) == width
    assert PaddingBuckets(512, 100).of(tokens) == 100
    assert padding_buckets(1, 512) is None and padding_buckets(8, 100) == PaddingBuckets(8, 100)


def test_texts_of_one_width_are_equally_long_for_the_queue_and_its_limits() -> None:
    rounded, exact = EncodingBatchBuilder(MASKED, EIGHTS, max_tokens=40), EncodingBatchBuilder(MASKED, RIGHT)
    assert [rounded.bucket(encoding(length))[1] for length in (1, 8, 9, 99, 100)] == [8, 8, 16, 100, 100]
    assert [exact.bucket(encoding(length))[1] for length in (1, 8, 9)] == [1, 8, 9]
    limits = rounded.limits(encoding(9))
    assert [limits.allow(rows, 16, 16 * rows) for rows in (2, 3)] == [True, False]
    assert [rounded.pack([encoding(length)]).inputs[0].shape for length in (8, 9, 99)] == [(1, 8), (1, 16), (1, 100)]
    free = EncodingBatchBuilder(replace(MASKED, outputs=(LOGITS, replace(LOGITS, name="free", sizes=(-1, -1)))), RIGHT)
    assert free.pack([encoding(2), encoding(3)]).sizes == {"logits": 2 * 3 * 5 * 4}, "sizes that are known"


FLAGS = ("--model_name=bert", "--pad_to_multiple_of=16")


def test_the_longest_width_is_that_at_which_texts_are_cut() -> None:
    for flag, widths in ((), PaddingBuckets(16, 128)), (("--max_model_len=100",), PaddingBuckets(16, 100)):
        pair = binding_of(GOOD, *FLAGS, *flag)
        assert padding_policy(pair.config, pair.tokenizer, pair.signature, pair.model_config).widths == widths
    pair = binding_of(GOOD, "--model_name=bert", "--pad_to_multiple_of=1")
    assert padding_policy(pair.config, pair.tokenizer, pair.signature, pair.model_config).widths is None
    inputs = tuple(replace(one, shape=(24,)) for one in GOOD.inputs)
    outputs = tuple(replace(one, shape=(24, *one.shape[1:])) for one in GOOD.outputs)
    fixed = binding_of(replace(GOOD, inputs=inputs, outputs=outputs), *FLAGS)
    found = padding_policy(fixed.config, fixed.tokenizer, fixed.signature, fixed.model_config)
    assert (fixed.signature.length, found.widths) == (24, None), "a fixed length is what counts"
    assert EncodingBatchBuilder(fixed.signature, found).pack([encoding(5)]).inputs[0].shape == (1, 24)


def test_a_model_that_would_read_the_padding_is_refused() -> None:
    pair = binding_of(GOOD, *FLAGS)
    bare = replace(GOOD, inputs=tuple(one for one in GOOD.inputs if one.name != "attention_mask"))
    says = r"--pad_to_multiple_of=16: the model gets no attention_mask.* expected 1, or"
    with pytest.raises(ContractError, match=says):
        fit_task(pair.config, pair.task, bare)
    assert fit_task(replace(pair.config, pad_to_multiple_of=1), pair.task, bare)[1].masked is False
    optional = replace(GOOD, inputs=tuple(replace(one, optional=one.name != "input_ids") for one in GOOD.inputs))
    with pytest.raises(ContractError, match="add attention_mask to --tensor_input_names"):
        fit_task(replace(pair.config, tensor_input_names=("input_ids",)), pair.task, optional)


# How large outputs may be, by the way that they travel


class Sharing(ScriptedPredictor):
    """Would have outputs of up to ``room`` bytes in shared memory."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def shares(self, size: int) -> bool:
        return size <= self.room


def settings_of(*flags: str) -> Config:
    return config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert", *flags)


GRPC = "--predictor_protocol=grpc-v2"


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        pytest.param((), SHARED_OUTPUT_BYTES, id="default"),
        # They may come in the response after all.
        pytest.param(("--max_predictor_response_bytes=6000000",), 6_000_000, id="small responses"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=6000000"), 6_000_000, id="small messages"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=-1"), SHARED_OUTPUT_BYTES, id="any messages"),
        pytest.param(("--grpc_max_receive_message_length=6000000",), SHARED_OUTPUT_BYTES, id="REST"),
        pytest.param(("--predictor_shared_memory_bytes=6000000",), 6_000_000, id="a small region"),
        pytest.param(("--predictor_shared_memory=off",), 0, id="no shared memory"),
        pytest.param(("--max_batch_output_bytes=5000000",), 0, id="small flag"),
        pytest.param(("--max_batch_output_bytes=50000000",), 0, id="large flag"),
    ],
)
def test_more_is_allowed_where_no_flag_says_how_much(flags: tuple[str, ...], most: int) -> None:
    predictor = Sharing(2**40)
    bound = outputs_in_shared_memory(settings_of(*flags), predictor) or (lambda size: False)
    limits = OUTPUT_BYTES, 6_000_000, SHARED_OUTPUT_BYTES
    for size in (5_000_000, 50_000_000, *limits, *[limit + 1 for limit in limits]):
        assert bound(size) == (size <= most), size
    predictor.room = OUTPUT_BYTES
    assert not bound(OUTPUT_BYTES + 1)


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ((), OUTPUT_BYTES),
        (("--max_predictor_response_bytes=3000000",), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000"), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000", "--max_predictor_response_bytes=2000000"), 2_000_000),
        (("--grpc_max_receive_message_length=3000000",), OUTPUT_BYTES),
        (("--max_batch_output_bytes=5000000", "--max_predictor_response_bytes=3000000"), 5_000_000),
    ],
)
def test_what_comes_inline_fits_into_a_response(flags: tuple[str, ...], most: int) -> None:
    assert scheduler_settings(settings_of(*flags), 1).max_batch_output_bytes == most


@pytest.mark.parametrize(("flag", "inline", "shared"), [(None, 4, 8), (2**20, 1, 1), (2**24, 16, 16)])
async def test_a_batch_has_what_its_way_allows(flag: int | None, inline: int, shared: int) -> None:
    options = settings_of(*([] if flag is None else [f"--max_batch_output_bytes={flag}"]))
    parts = load_model(options)
    vocabulary = parts.tokenizer.vocab_size
    ids, logits = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("logits", "FP32", (-1, vocabulary))
    tokens = 2**20 // (4 * vocabulary)  # as many as have 1 MiB of outputs
    predictor = Sharing(0)
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(options, parts, predictor, Metrics("bert"), executor)
        pipeline = build(ModelSpec("bert", "1", (ids,), (logits,), 64))
    assert isinstance(pipeline, PredictivePipeline)
    limits = pipeline._scheduler._form.limits(text(tokens))
    for room, most in ((0, inline), (2**30, shared), (0, inline)):  # the region is there, and is lost
        predictor.room = room
        assert [rows for rows in range(1, 65) if limits.allow(rows, tokens, rows * tokens)] == [*range(1, most + 1)]
