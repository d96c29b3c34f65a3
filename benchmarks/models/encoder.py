"""A BERT encoder in torch, on the GPU if there is one: the models of benchmarks.gpu, in Triton's Python backend.

DLPack carries the tensors, so any numpy works. Weights come from ``model.safetensors`` in the same folder, by the names
of transformers' BertModel; without the file they are random, of the size in config.pbtxt.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
import triton_python_backend_utils as pb_utils

POSITIONS = 512
EPSILON = 1e-12
LABELS = 2
VECTOR = 128
"""Components of a token's vector."""


class TritonPythonModel:
    """Maps ``input_ids`` and ``attention_mask`` INT64 [B, S] to the outputs that ``output`` names, with + between.

    last_hidden_state FP16 [B, S, hidden]; sentence_embedding FP32 [B, hidden], the mean over the mask with length 1,
    and embedding_norm FP32 [B, 1]; token_weights FP32 [B, S] and token_vectors FP16 [B, S, 128], linear layers with
    random weights in place of BGE-M3's; logits FP32 [B, 2]. On a CPU FP16 outputs are computed in float32.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Load or make the weights, and run once."""
        parameters = json.loads(args["model_config"])["parameters"]
        numbers = {name: value["string_value"] for name, value in parameters.items()}
        self.layers, self.hidden, self.heads = (int(numbers[name]) for name in ("layers", "hidden", "heads"))
        self.outputs = numbers["output"].split("+")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.float16 if self.device.type == "cuda" else torch.float32
        path = Path(__file__).with_name("model.safetensors")
        weights = read_safetensors(path) if path.exists() else self.random_weights(int(numbers["vocabulary"]))
        self.weights = {name: weight.to(self.device, self.dtype) for name, weight in weights.items()}
        torch.manual_seed(1)
        self.classifier, self.token_weights, self.token_vectors = (
            (torch.randn(size, self.hidden) * 0.02).to(self.device, self.dtype) for size in (LABELS, 1, VECTOR)
        )
        torch.set_num_threads(1)
        with torch.inference_mode():
            self.encode(torch.ones(2, 16, dtype=torch.int64), torch.ones(2, 16, dtype=torch.int64))

    def random_weights(self, vocabulary: int) -> dict[str, torch.Tensor]:
        """Weights of BERT's initial distribution: normal, 0.02 wide."""
        torch.manual_seed(0)
        hidden, inner = self.hidden, 4 * self.hidden
        shapes = {"word": (vocabulary, hidden), "position": (POSITIONS, hidden), "token_type": (2, hidden)}
        weights = {f"embeddings.{name}_embeddings.weight": torch.randn(*size) * 0.02 for name, size in shapes.items()}
        dense = {f"attention.self.{name}": (hidden, hidden) for name in ("query", "key", "value")}
        dense |= {"attention.output.dense": (hidden, hidden)}
        dense |= {"intermediate.dense": (inner, hidden), "output.dense": (hidden, inner)}
        for layer in range(self.layers):
            for name, size in dense.items():
                weights[f"encoder.layer.{layer}.{name}.weight"] = torch.randn(*size) * 0.02
                weights[f"encoder.layer.{layer}.{name}.bias"] = torch.zeros(size[0])
        norms = ["embeddings", *(f"encoder.layer.{i}.{part}output" for i in range(self.layers) for part in PARTS)]
        for name in norms:
            weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"] = (
                torch.ones(hidden),
                torch.zeros(hidden),
            )
        return weights

    def linear(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The dense layer of that name."""
        return functional.linear(values, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The layer normalization of that name."""
        weight, bias = (self.weights[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return functional.layer_norm(values, (self.hidden,), weight, bias, EPSILON)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The hidden states [B, S, hidden] of the last layer (Devlin et al., 2018)."""
        ids, mask = ids.to(self.device, non_blocking=True), mask.to(self.device, non_blocking=True)
        batch, length = ids.shape
        table = self.weights
        states = table["embeddings.word_embeddings.weight"][ids]
        states = states + table["embeddings.position_embeddings.weight"][:length]
        states = self.norm("embeddings", states + table["embeddings.token_type_embeddings.weight"][0])
        seen = mask.bool()[:, None, None, :]
        for layer in range(self.layers):
            name = f"encoder.layer.{layer}"
            query, key, value = (
                self.linear(f"{name}.attention.self.{part}", states)
                .view(batch, length, self.heads, self.hidden // self.heads)
                .transpose(1, 2)
                for part in ("query", "key", "value")
            )
            update = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
            update = self.linear(
                f"{name}.attention.output.dense", update.transpose(1, 2).reshape(batch, length, self.hidden)
            )
            states = self.norm(f"{name}.attention.output", states + update)
            update = functional.gelu(self.linear(f"{name}.intermediate.dense", states))
            states = self.norm(f"{name}.output", states + self.linear(f"{name}.output.dense", update))
        return states

    def answer(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs of a batch, on the CPU."""
        states, outputs = self.encode(ids, mask), {}
        if "last_hidden_state" in self.outputs:
            outputs["last_hidden_state"] = states.to(torch.float16)
        if "logits" in self.outputs:
            outputs["logits"] = functional.linear(states[:, 0], self.classifier).float()
        if "sentence_embedding" in self.outputs:
            weights = mask.to(self.device)[:, :, None].float()
            mean = (states.float() * weights).sum(1) / weights.sum(1)
            outputs["embedding_norm"] = mean.norm(dim=1, keepdim=True)
            outputs["sentence_embedding"] = mean / outputs["embedding_norm"]
        if "token_weights" in self.outputs:
            outputs["token_weights"] = (functional.linear(states, self.token_weights)[:, :, 0] + 1).relu().float()
        if "token_vectors" in self.outputs:
            outputs["token_vectors"] = functional.linear(states, self.token_vectors).to(torch.float16)
        return {name: values.cpu() for name, values in outputs.items()}

    @torch.inference_mode()
    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch: Triton merges only requests of the same shape."""
        ids, mask = (
            torch.cat([torch.from_dlpack(pb_utils.get_input_tensor_by_name(one, name)) for one in requests])
            for name in ("input_ids", "attention_mask")
        )
        rows = [pb_utils.get_input_tensor_by_name(one, "input_ids").shape()[0] for one in requests]
        parts = {name: values.split(rows) for name, values in self.answer(ids, mask).items()}
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor.from_dlpack(name, part[number].contiguous()) for name, part in parts.items()]
            )
            for number in range(len(requests))
        ]


PARTS = ("attention.", "")
"""The two sublayers of a layer that end in a layer normalization, as prefixes of "output"."""


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """All float tensors in a safetensors file: the length of a JSON header, the header, raw values."""
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", content)
    header, values = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
    types = {"F32": torch.float32, "F16": torch.float16}
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__" and about["dtype"] in types:
            begin, end = about["data_offsets"]
            count = math.prod(about["shape"])
            flat = torch.frombuffer(values[begin:end], dtype=types[about["dtype"]], count=count)
            tensors[name] = flat.view(about["shape"])
    return tensors
