"""Export the generative test models to ONNX, the weights under the names that they have in the checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import torch
from short_names import shorten
from transformers import DynamicCache, GPT2LMHeadModel, T5ForConditionalGeneration

OPSET: Final = 17  # old enough for every Triton container since 2023
TOLERANCE: Final = 1e-4
MOST_BYTES: Final = 1_000_000


class CausalWithPast(torch.nn.Module):
    """input_ids [B,S], attention_mask [B,P+S], position_ids [B,S] and the cache of P tokens -> logits [B,S,V], the
    cache of P+S tokens: per layer a key and a value of [B,heads,P,D], by optimum's names. P may be 0.
    """

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.model = model
        layers = range(model.config.n_layer)
        parts = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
        self.inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{part}" for part in parts)]
        self.outputs = ["logits", *(f"present.{part}" for part in parts)]
        cache = {0: "batch", 2: "past"}
        self.axes = {
            "input_ids": {0: "batch", 1: "sequence"},
            "attention_mask": {0: "batch", 1: "total"},
            "position_ids": {0: "batch", 1: "sequence"},
            "logits": {0: "batch", 1: "sequence"},
            **{f"past_key_values.{part}": cache for part in parts},
            **{f"present.{part}": {0: "batch", 2: "total"} for part in parts},
        }

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        before, new = past[0].shape[2], ids.shape[1]
        # A token sees the cache and the new tokens up to itself, as far as the mask says that they are there.
        seen = torch.arange(before + new)[None, :] <= torch.arange(before, before + new)[:, None]
        allowed = seen[None, None] & mask.to(torch.bool)[:, None, None, :]
        added = (1.0 - allowed.to(torch.float32)) * torch.finfo(torch.float32).min
        cache = DynamicCache(ddp_cache_data=list(zip(past[::2], past[1::2], strict=True)))
        output = self.model(
            input_ids=ids, attention_mask=added, position_ids=positions, past_key_values=cache, use_cache=True
        )
        present = [part for layer in output.past_key_values.layers for part in (layer.keys, layer.values)]
        return (output.logits, *present)

    def example(self, batch: int, new: int, before: int) -> tuple[torch.Tensor, ...]:
        """Arbitrary ids and caches; the last row has masked places."""
        generator = torch.Generator().manual_seed(batch * 1000 + new)
        config = self.model.config
        mask = torch.ones((batch, before + new), dtype=torch.int64)
        if before > 1:
            mask[-1, :2] = 0
        shape = (batch, config.n_head, before, config.n_embd // config.n_head)
        return (
            torch.randint(5, config.vocab_size, (batch, new), generator=generator),
            mask,
            torch.arange(before, before + new).expand(batch, new),
            *(torch.randn(shape, generator=generator) for _ in range(2 * config.n_layer)),
        )

    shapes = ((1, 1, 0), (1, 12, 0), (1, 1, 12), (3, 5, 7), (8, 1, 40))


class EncoderDecoder(torch.nn.Module):
    """input_ids [B,S], attention_mask [B,S], decoder_input_ids [B,T] -> logits [B,T,V], without a cache."""

    inputs = ("input_ids", "attention_mask", "decoder_input_ids")
    outputs = ("logits",)
    axes: Final = {
        "input_ids": {0: "batch", 1: "sequence"},
        "attention_mask": {0: "batch", 1: "sequence"},
        "decoder_input_ids": {0: "batch", 1: "target"},
        "logits": {0: "batch", 1: "target"},
    }

    def __init__(self, model: T5ForConditionalGeneration) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, decoder_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        least = torch.finfo(torch.float32).min
        added = ((1.0 - mask.to(torch.float32)) * least)[:, None, None, :]
        steps = torch.arange(decoder_ids.shape[1])
        causal = (1.0 - (steps[None, :] <= steps[:, None]).to(torch.float32)) * least
        logits: torch.Tensor = self.model(
            input_ids=ids,
            attention_mask=added,
            decoder_input_ids=decoder_ids,
            decoder_attention_mask=causal[None, None],
            use_cache=False,
        ).logits
        return (logits,)

    def example(self, batch: int, source: int, target: int) -> tuple[torch.Tensor, ...]:
        """Arbitrary ids; the last text is shorter and padded."""
        generator = torch.Generator().manual_seed(batch * 1000 + source)
        mask = torch.ones((batch, source), dtype=torch.int64)
        mask[-1, max(1, source - 2) :] = 0
        size = self.model.config.vocab_size
        return (
            torch.randint(3, size, (batch, source), generator=generator) * mask,
            mask,
            torch.randint(0, size, (batch, target), generator=generator),
        )

    shapes = ((1, 1, 1), (1, 9, 4), (3, 5, 7), (8, 40, 1))


def export(wrapper: CausalWithPast | EncoderDecoder, path: Path) -> None:
    """Write model.onnx and check it.

    Raises ValueError if an output differs from torch's by more than TOLERANCE or the file has more than MOST_BYTES.
    """
    wrapper.model.set_attn_implementation("eager")
    wrapper.train(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        # The tracing exporter is old and says so. It is the one that keeps the names of the weights.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            wrapper,
            wrapper.example(2, 5, 3),
            str(path),
            input_names=list(wrapper.inputs),
            output_names=list(wrapper.outputs),
            dynamic_axes=wrapper.axes,
            opset_version=OPSET,
            external_data=False,
            dynamo=False,
            do_constant_folding=False,  # folding would transpose the weights and lose their names
        )
    shorten(path)
    onnx.checker.check_model(str(path), full_check=True)
    _compare(wrapper, path)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB", flush=True)


def _compare(wrapper: Any, path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for shape in wrapper.shapes:
        inputs = wrapper.example(*shape)
        with torch.no_grad():
            expected = wrapper(*inputs)
        found = session.run(None, {name: tensor.numpy() for name, tensor in zip(wrapper.inputs, inputs, strict=True)})
        for name, one, other in zip(wrapper.outputs, expected, found, strict=True):
            difference = float(np.abs(one.numpy() - other).max())
            if other.shape != tuple(one.shape) or difference > TOLERANCE:
                raise ValueError(f"{path}: {name} differs from the model by {difference} for shape {shape}")
