"""Packing and unpacking of batches, padding buckets, and limits of outputs.

tests/integration checks on a real predictor that answers do not depend on the other texts of a batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_transformer.app.loading import load_model
from hf_transformer.app.pipelines import (
    FittedBinding,
    PipelineBuilder,
    fit_task,
    padding_policy,
)
from hf_transformer.app.settings import max_shared_bytes, scheduler_settings
from hf_transformer.config.options import Config
from hf_transformer.core.batch import EncodingBatchBuilder, PaddingBuckets, PaddingPolicy, padding_buckets
from hf_transformer.core.contract import ContractError, InputSignature, OutputSignature, Signature
from hf_transformer.core.pipeline import PredictivePipeline
from hf_transformer.core.remote import outputs_in_shared_memory
from hf_transformer.core.scheduler import MAX_OUTPUT_BYTES, MAX_SHARED_OUTPUT_BYTES, Scheduler
from hf_transformer.errors import PredictorError
from hf_transformer.observability.metrics import Metrics
from hf_transformer.tasks.base import TOKENS, Axis
from hf_transformer.types.tensors import ModelSpec, Tensor, TensorSpec
from hf_transformer.types.tokenization import Encoding
from tests.core.scheduling import text
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
EIGHTS = replace(RIGHT, buckets=PaddingBuckets(8, 100))


def encoding(length: int) -> Encoding:
    return Encoding(list(range(1, length + 1)), [0] * (length - 1) + [1])


@pytest.mark.parametrize(
    ("changes", "policy", "lengths", "ids", "mask", "types"),
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
    ids=["right", "left", "no padding", "fixed shapes", "no batch axis", "a bucket", "a bucket, no batch axis"],
)
def test_inputs_are_padded_by_the_policy(
    changes: Any, policy: PaddingPolicy, lengths: list[int], ids: Any, mask: Any, types: Any
) -> None:
    packed = EncodingBatchBuilder(replace(MASKED, **changes), policy).pack([*map(encoding, lengths)])
    assert [tensor.data.tolist() for tensor in packed.inputs] == [ids, mask, types]
    assert [tensor.data.dtype.name for tensor in packed.inputs] == ["int64", "int64", "int32"]
    assert (packed.real, packed.real + packed.padding) == (sum(lengths), packed.inputs[0].data.size)
    rows, width = packed.inputs[0].data.size // packed.inputs[0].shape[-1], packed.inputs[0].shape[-1]
    assert packed.sizes == {"logits": rows * width * 5 * 4}


@pytest.mark.parametrize("policy", [RIGHT, LEFT, EIGHTS], ids=["right", "left", "a bucket"])
@pytest.mark.parametrize("batch_axis", [True, False], ids=["batch axis", "none"])
def test_each_item_gets_its_own_rows_without_padding(batch_axis: bool, policy: PaddingPolicy) -> None:
    items = [encoding(2), encoding(3)] if batch_axis else [encoding(3)]
    builder = EncodingBatchBuilder(replace(MASKED, batch_axis=batch_axis, max_rows=len(items)), policy)
    packed = builder.pack(items)
    width = packed.inputs[0].shape[-1]
    data = np.arange(len(items) * width * 5, dtype=np.float32).reshape(len(items), width, 5)
    outputs = {"logits": Tensor("logits", "FP32", data if batch_axis else data[0])}
    unpacked = [rows["logits"].tolist() for rows in builder.unpack(items, packed, outputs)]
    tokens = [range(width - len(item), width) if policy.left else range(len(item)) for item in items]
    assert unpacked == [data[row, [*columns]].tolist() for row, columns in enumerate(tokens)]


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
    builder, items = EncodingBatchBuilder(MASKED, RIGHT), [encoding(3), encoding(3)]
    outputs = {"logits": Tensor("logits", datatype, np.zeros(shape))}
    with pytest.raises(PredictorError) as caught:
        next(builder.unpack(items, builder.pack(items), outputs))
    assert says in str(caught.value)


@pytest.mark.parametrize(("sizes", "allowed"), [((-1, 5), True), ((-1, -1), False)], ids=["known", "unknown"])
def test_shared_memory_is_used_only_for_outputs_of_known_size(sizes: tuple[int, ...], allowed: bool) -> None:
    signature = replace(MASKED, outputs=(replace(LOGITS, sizes=sizes),))
    builder = EncodingBatchBuilder(
        signature, RIGHT, max_tokens=100, max_output_bytes=120, allow_in_shared_memory=lambda size: size <= 180
    )
    limits = builder.limits(encoding(3))  # a row has 60 bytes
    assert [limits.allow(rows, 3, 3 * rows) for rows in (2, 3, 4)] == [True, allowed, False]


# Buckets of --pad_to_multiple_of


@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 40), (40, 40), (41, 41)]
)
def test_a_bucket_is_a_multiple_or_the_longest_and_never_shorter_than_the_text(tokens: int, width: int) -> None:
    assert PaddingBuckets(16, 40).of(tokens) == width
    assert PaddingBuckets(512, 100).of(tokens) == 100
    assert padding_buckets(1, 512) is None and padding_buckets(8, 100) == PaddingBuckets(8, 100)


def test_texts_of_one_bucket_are_equally_long_for_the_queue_and_its_limits() -> None:
    rounded, exact = EncodingBatchBuilder(MASKED, EIGHTS, max_tokens=40), EncodingBatchBuilder(MASKED, RIGHT)
    assert [rounded.bucket(encoding(length))[1] for length in (1, 8, 9, 99, 100)] == [8, 8, 16, 100, 100]
    assert [exact.bucket(encoding(length))[1] for length in (1, 8, 9)] == [1, 8, 9]
    limits = rounded.limits(encoding(9))
    assert [limits.allow(rows, 16, 16 * rows) for rows in (2, 3)] == [True, False]
    assert [rounded.pack([encoding(length)]).inputs[0].shape for length in (8, 9, 99)] == [(1, 8), (1, 16), (1, 100)]
    free = EncodingBatchBuilder(replace(MASKED, outputs=(LOGITS, replace(LOGITS, name="free", sizes=(-1, -1)))), RIGHT)
    assert free.pack([encoding(2), encoding(3)]).sizes == {"logits": 2 * 3 * 5 * 4}, "only known sizes"


FLAGS = ("--model_name=bert", "--pad_to_multiple_of=16")


def policy_of(binding: FittedBinding) -> PaddingPolicy:
    return padding_policy(binding.config, binding.tokenizer, binding.signature, binding.model_config)


def test_the_longest_bucket_is_the_length_of_truncation() -> None:
    for flag, buckets in ((), PaddingBuckets(16, 128)), (("--max_model_len=100",), PaddingBuckets(16, 100)):
        assert policy_of(binding_of(GOOD, *FLAGS, *flag)).buckets == buckets
    assert policy_of(binding_of(GOOD, "--model_name=bert", "--pad_to_multiple_of=1")).buckets is None
    inputs = tuple(replace(tensor, shape=(24,)) for tensor in GOOD.inputs)
    outputs = tuple(replace(tensor, shape=(24, *tensor.shape[1:])) for tensor in GOOD.outputs)
    fixed = binding_of(replace(GOOD, inputs=inputs, outputs=outputs), *FLAGS)
    policy = policy_of(fixed)
    assert (fixed.signature.length, policy.buckets) == (24, None), "a fixed length needs no buckets"
    assert EncodingBatchBuilder(fixed.signature, policy).pack([encoding(5)]).inputs[0].shape == (1, 24)


def test_a_model_that_would_read_the_padding_is_refused() -> None:
    binding = binding_of(GOOD, *FLAGS)
    bare = replace(GOOD, inputs=tuple(tensor for tensor in GOOD.inputs if tensor.name != "attention_mask"))
    says = r"--pad_to_multiple_of=16: the model gets no attention_mask.* expected 1, or"
    with pytest.raises(ContractError, match=says):
        fit_task(binding.config, binding.task, bare)
    assert fit_task(replace(binding.config, pad_to_multiple_of=1), binding.task, bare)[1].masked is False
    optional = replace(
        GOOD, inputs=tuple(replace(tensor, optional=tensor.name != "input_ids") for tensor in GOOD.inputs)
    )
    with pytest.raises(ContractError, match="add attention_mask to --tensor_input_names"):
        fit_task(replace(binding.config, tensor_input_names=("input_ids",)), binding.task, optional)


# Limits of outputs, inline and in shared memory


class Sharing(ScriptedPredictor):
    """Shares outputs of up to ``room`` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def shares(self, size: int) -> bool:
        return size <= self.room


def settings_of(*flags: str) -> Config:
    return config(f"--model_dir={MODEL_FOLDER}", "--model_name=bert", *flags)


GRPC = "--predictor_protocol=grpc-v2"


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        pytest.param((), MAX_SHARED_OUTPUT_BYTES, id="default"),
        # A lost region sends them in the response.
        pytest.param(("--max_predictor_response_bytes=6000000",), 6_000_000, id="small responses"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=6000000"), 6_000_000, id="small messages"),
        pytest.param((GRPC, "--grpc_max_receive_message_length=-1"), MAX_SHARED_OUTPUT_BYTES, id="any messages"),
        pytest.param(("--grpc_max_receive_message_length=6000000",), MAX_SHARED_OUTPUT_BYTES, id="REST"),
        pytest.param(("--predictor_shared_memory_bytes=6000000",), 6_000_000, id="a small region"),
        pytest.param(("--predictor_shared_memory=off",), 0, id="no shared memory"),
        pytest.param(("--max_batch_output_bytes=5000000",), 0, id="small flag"),
        pytest.param(("--max_batch_output_bytes=50000000",), 0, id="large flag"),
    ],
)
def test_shared_outputs_have_the_default_limit_unless_a_flag_sets_one(flags: tuple[str, ...], limit: int) -> None:
    predictor = Sharing(2**40)
    bound = outputs_in_shared_memory(max_shared_bytes(settings_of(*flags)), predictor) or (lambda size: False)
    sizes = MAX_OUTPUT_BYTES, 6_000_000, MAX_SHARED_OUTPUT_BYTES
    for size in (5_000_000, 50_000_000, *sizes, *[size + 1 for size in sizes]):
        assert bound(size) == (size <= limit), size
    predictor.room = MAX_OUTPUT_BYTES
    assert not bound(MAX_OUTPUT_BYTES + 1)


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ((), MAX_OUTPUT_BYTES),
        (("--max_predictor_response_bytes=3000000",), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000"), 3_000_000),
        ((GRPC, "--grpc_max_receive_message_length=3000000", "--max_predictor_response_bytes=2000000"), 2_000_000),
        (("--grpc_max_receive_message_length=3000000",), MAX_OUTPUT_BYTES),
        (("--max_batch_output_bytes=5000000", "--max_predictor_response_bytes=3000000"), 5_000_000),
    ],
)
def test_inline_outputs_fit_into_a_response(flags: tuple[str, ...], limit: int) -> None:
    assert scheduler_settings(settings_of(*flags), 1).max_batch_output_bytes == limit


@pytest.mark.parametrize(("flag", "inline", "shared"), [(None, 4, 8), (2**20, 1, 1), (2**24, 16, 16)])
async def test_a_batch_is_limited_by_the_way_of_its_outputs(flag: int | None, inline: int, shared: int) -> None:
    options = settings_of(*([] if flag is None else [f"--max_batch_output_bytes={flag}"]))
    loaded = load_model(options)
    vocabulary = loaded.tokenizer.vocab_size
    ids, logits = TensorSpec("input_ids", "INT64", (-1,)), TensorSpec("logits", "FP32", (-1, vocabulary))
    tokens = 2**20 // (4 * vocabulary)  # with 1 MiB of outputs
    predictor = Sharing(0)
    with ThreadPoolExecutor(1) as executor:
        build = PipelineBuilder(options, loaded, predictor, Metrics().of("bert"), executor)
        pipeline = build(ModelSpec("bert", "1", (ids,), (logits,), 64))
    assert isinstance(pipeline, PredictivePipeline)
    assert isinstance(pipeline._scheduler, Scheduler)
    limits = pipeline._scheduler._builder.limits(text(tokens))
    for room, limit in ((0, inline), (2**30, shared), (0, inline)):  # the region exists, then is lost
        predictor.room = room
        assert [rows for rows in range(1, 65) if limits.allow(rows, tokens, rows * tokens)] == [*range(1, limit + 1)]


@pytest.mark.parametrize(
    ("policy", "mask"),
    [
        (RIGHT, [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]),
        (LEFT, [[0, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]]),
    ],
)
def test_the_mask_hides_tokens_that_are_not_attended_to(policy: PaddingPolicy, mask: list[list[int]]) -> None:
    builder = EncodingBatchBuilder(MASKED, replace(policy, hides_tokens=True))
    items = [replace(encoding(3), attended=2), encoding(3), encoding(4)]
    packed = builder.pack(items)
    assert packed.inputs[1].data.tolist() == mask
    assert builder.pack([replace(encoding(3), attended=2)]).inputs[1].data.tolist() == [[1, 1, 0]]
    logits = np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    rows = [row["logits"] for row in builder.unpack(items, packed, {"logits": Tensor("logits", "FP32", logits)})]
    assert [len(row) for row in rows] == [3, 3, 4]  # hidden tokens have outputs, too
