"""Exports every text architecture that transformers has, tiny and with random weights, and says how each one ended.

    .venv-models/bin/python -m tests.models.sweep [--only Bert] [--jobs 2] [--seconds 120] [--page docs/export.md]

Each architecture is made, saved with a small tokenizer and exported in a process of its own: as ONNX, and where that is
refused as TorchScript. The export compares the file with the model for each text alone, and with the file's own answers
in batches. With --page the table between the two marks of that page is written anew. Takes about 25 minutes.
"""

# Types are checked in an environment without torch.
# mypy: ignore-errors

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import transformers
from transformers.models.auto import configuration_auto

from hf_transformer.commands.export.command import run
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.generation.task import ALL_TASKS
from hf_transformer.tasks import find_task
from tests.models.test_architectures import TEXT, architectures
from tests.tiny_tokenizers.trained import save, wordpiece

SIZES = {
    **dict.fromkeys("hidden_size d_model n_embd emb_dim dim model_dim width d_embed".split(), 32),
    **dict.fromkeys("num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers".split(), 2),
    **dict.fromkeys("num_decoder_layers num_encoder_layers num_blocks".split(), 2),
    **dict.fromkeys("num_attention_heads n_head n_heads num_heads encoder_attention_heads".split(), 4),
    **dict.fromkeys("decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads".split(), 4),
    **dict.fromkeys("num_key_value_heads num_kv_heads multi_query_group_num".split(), 2),
    **dict.fromkeys("intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff dff d_inner n_inner".split(), 64),
    **dict.fromkeys("hidden_dim ffn_hidden_size inner_size moe_intermediate_size d_intermediate".split(), 64),
    **dict.fromkeys("shared_expert_intermediate_size feed_forward_size".split(), 64),
    **dict.fromkeys("head_dim d_kv d_head attention_head_size kv_channels key_size value_size".split(), 8),
    **dict.fromkeys("max_position_embeddings n_positions max_seq_len max_source_positions".split(), 256),
    **dict.fromkeys("num_experts num_local_experts n_routed_experts moe_num_experts".split(), 4),
    **dict.fromkeys("num_experts_per_tok moe_topk moe_k".split(), 2),
    **{"embedding_size": 32, "word_embed_proj_dim": 32, "attention_window": 16, "sliding_window": 16},
    **{"local_attention": 16, "rotary_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
    **{"num_random_blocks": 1, "block_size": 16, "axial_pos_embds": False, "initializer_range": 0.2, "init_std": 0.2},
}
"""Small values for the names that configurations have for a size."""
MARKS = ("<!-- sweep -->", "<!-- /sweep -->")


def main() -> int:
    """Runs the sweep; the exit code is 1 if an export ended with a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="part of the architectures' names")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=120, help="for one export")
    parser.add_argument(
        "--results", type=Path, default=Path("build/sweep.jsonl"), help="what is in it is not run again"
    )
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    options.results.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    done = {row["architecture"] for row in known}
    every = sorted({(name, model_type) for kind in TEXT for model_type, name in architectures(kind)})
    left = [one for one in every if options.only in one[0] and one[0] not in done]
    with ThreadPoolExecutor(options.jobs) as pool, options.results.open("a") as file:
        for row in pool.map(lambda one: swept(*one, options.seconds), left):
            known.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{row['architecture']:48} {row['result']:12} {row['why'][:150]}", flush=True)
    if options.page is not None:
        before, _, rest = options.page.read_text().partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        options.page.write_text(f"{before}{MARKS[0]}\n{table(known, len(every))}\n{MARKS[1]}{after}")
    return int(any(row["result"] == "traceback" for row in known))


def swept(architecture: str, model_type: str, seconds: int) -> dict[str, str]:
    """One architecture: its task, how it ended and why. Forks, since importing torch takes longer than an export."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            result = exported(architecture, model_type)
        except BaseException as error:  # the process ends here, whatever it was
            result = {"result": "traceback", "why": f"{type(error).__name__}: {error}"[:300]}
        os.write(writing, json.dumps(result).encode()[:60_000])
        os._exit(0)
    os.close(writing)
    deadline, output = time.monotonic() + seconds, b""
    while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.05)
    else:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        output = pipe.read()
    result = json.loads(output) if output else {"result": "no end", "why": f"killed, or not over after {seconds} s"}
    return {"architecture": architecture, "model_type": model_type, **result}


def exported(architecture: str, model_type: str) -> dict[str, str]:
    """Makes and exports one, in this process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            config = made(architecture, model_type, folder / "source")
        except Exception as error:
            return {"result": "not made", "why": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
        try:
            task = find_task(None, config, ALL_TASKS).name
        except LoadError as error:
            return {"result": "refused", "why": str(error)}
        reasons = []
        for form in ("onnx", "torchscript"):
            flags = [f"--model_id={folder / 'source'}", f"--output={folder / form}", "--model_name=m"]
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    run([*flags, f"--format={form}"], os.environ)
                return {"result": form, "task": task, "why": "; ".join(reasons)}
            except (LoadError, ConfigError) as error:
                reasons.append(str(error).replace(str(folder / "source"), "it"))
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                why = f"{type(error).__name__}: {error} at {Path(where.filename).name}:{where.lineno}"
                return {"result": "traceback", "task": task, "why": why[:300]}
        return {"result": "refused", "task": task, "why": " | ".join(reasons)}


def made(architecture: str, model_type: str, folder: Path) -> dict:
    """Saves a tiny checkpoint with a tokenizer; its config.json."""
    tokenizer = wordpiece(lowercase=True)
    kind = configuration_auto.CONFIG_MAPPING[model_type]
    plain = kind().to_dict()
    changes = {name: value for name, value in SIZES.items() if isinstance(plain.get(name), type(value))}
    if isinstance(plain.get("attention_window"), list):
        changes["attention_window"] = [16, 16]
    changes |= {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    changes |= {"architectures": [architecture], "num_labels": 2 if "QuestionAnswering" in architecture else 3}
    if plain.get("is_encoder_decoder"):
        changes["decoder_start_token_id"] = 2
    changes = {name: value for name, value in changes.items() if name in plain or name == "num_labels"}
    if isinstance(plain.get("layer_types"), list):
        changes["layer_types"] = plain["layer_types"][: changes.get("num_hidden_layers", 2)]
    model = getattr(transformers, architecture)(kind(**changes))
    size = sum(one.numel() for one in model.parameters())
    if size > 30_000_000:
        raise ValueError(f"{size / 1e6:.0f} million weights: its sizes have names that are not known here")
    model.save_pretrained(folder)
    save(folder, tokenizer, settings={"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    return json.loads((folder / "config.json").read_text())


REASONS = (
    ("reads more than text", "reads pictures, sound or tables"),
    ("stands for no task", "no task"),
    ("depend on the other texts", "an answer depends on its batch"),
    ("differs from the model", "the file differs from the model"),
    ("can't run", "can't be called with padded texts"),
    ("--output: can't write", "can't be written"),
    ("does not run", "the file does not run"),
)

NOT_TRIED = {"not made": "a tiny one can't be made", "no end": "no end within the time"}


def table(rows: list[dict[str, str]], every: int) -> str:
    """A row per outcome, with the model types of the architectures; ``every`` is how many architectures there are."""
    groups = defaultdict(set)
    for row in rows:
        reason = next((short for part, short in REASONS if part in row["why"].rpartition(" | ")[2]), "other reasons")
        outcome = {"onnx": "ONNX", "torchscript": "TorchScript alone"}.get(row["result"], f"refused: {reason}")
        if row["result"] in ("not made", "no end"):
            outcome = "not tried: " + NOT_TRIED[row["result"]]
        groups[outcome].add(row["model_type"])
    version = re.sub(r"\+.*", "", torch.__version__)
    lines = [f"transformers {transformers.__version__}, torch {version}, {len(rows)} of {every} architectures.", ""]
    lines += ["| outcome | model types |", "|---|---|"]
    for outcome, types in sorted(groups.items()):
        lines.append(f"| {outcome} ({len(types)}) | {', '.join(sorted(types))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
