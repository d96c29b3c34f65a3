"""Starts a service and compares settings.

A sweep varies a single setting at a time and keeps the best values of the others. All combinations would take hours,
and most settings are independent. The current settings run again after each trial, which gives the noise. A gain must
exceed the noise, also in a second comparison.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from hf_transformer.commands.bench.load import ROWS, Figures, Target
from hf_transformer.commands.demo import DEFAULT_TASK, default_model_repository, demos
from hf_transformer.commands.local_service import service_running
from hf_transformer.commands.local_triton import LocalTriton
from hf_transformer.commands.loopback import HOST, reserved_ports
from hf_transformer.config.entries import ModelEntries
from hf_transformer.config.option import PREFIX
from hf_transformer.config.options import Config
from hf_transformer.cpus import available_cpus
from hf_transformer.errors import ConfigError, LoadError
from hf_transformer.tokenizer.files import LABELS_SUFFIX

_TOKENIZE_TIMING: Final = f"{PREFIX}ENABLE_TOKENIZE_TIMING"
"""Set for the services that bench starts, since no other client sends them texts."""

FLAGS: Final = {
    "--max_batches_in_flight": (1, 2, 4),
    "--max_batch_tokens": (4096, 16384, 65536),
    "--pad_to_multiple_of": (1, 8, 32),
}
"""Flags of hf-transformer serve, with the values to try."""
COMPARISONS: Final = 3
"""Runs of the best settings in the second comparison."""
MIN_NOISE: Final = 0.03
"""The minimum noise: a smaller gain does not justify a setting."""
BUSY: Final = 0.1
"""Noise above which the machine counts as busy."""
STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
"""Stages of a request in Triton's statistics."""

Trial = tuple[str, Figures]
"""A description of the settings, and the figures of their run. ``Figures.errors`` records a failed start."""
Settings = Mapping[str, Any]
"""Flags of the service, and fields of Triton's model configuration as JSON. A None value removes a field."""


class Setup:
    """Controls a service with --service_flags, and a local Triton unless these flags contain --predictor_host.

    ``stack`` stops the service and Triton. Triton loads --model_name of --model_repository, by default a demo model.
    The model's folder must contain the tokenizer, as after export. Raises ConfigError for an unknown model or invalid
    flags, LoadError if Triton does not start.
    """

    def __init__(self, stack: ExitStack, flags: Namespace, environ: Mapping[str, str]) -> None:
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="hf-transformer-bench-")))
        self._environ = environ
        self._flags = shlex.split(flags.service_flags or "")
        local = not any(re.match("--predictor[-_]host", flag) for flag in self._flags)
        if local:
            self._flags[:0] = self._start_triton(stack, flags)
        elif flags.model_repository is not None:
            raise ConfigError(
                "--model_repository: --service_flags set --predictor_host, so bench starts no Triton; omit one of them"
            )
        self._service = stack.enter_context(ExitStack())  # stops before Triton, which waits for open connections
        self._serving = chosen(ModelEntries(self._flags, environ), flags.model_name)
        self.model = self._serving.model_name
        self.at_triton = self._serving.predictor_model or self.model  # the name in Triton
        if local and self.at_triton != (started := _model_name(flags)):
            raise ConfigError(
                f"--service_flags: the service asks for the model {self.at_triton!r}, but bench starts Triton with "
                f"{started!r}; set --model_name and --model_repository of bench, or --predictor_host in --service_flags"
            )
        over_rest = self._serving.predictor_protocol == "v2" and not self._serving.predictor_use_ssl
        self.triton = Target.at(self._serving.predictor_host) if over_rest else None
        """Triton's REST address, or None if the service uses gRPC or TLS."""
        self._config: Settings = {}
        """The configuration of the model in a local Triton. Empty for a remote Triton, gRPC or TLS."""
        if local and self.triton:
            self._config = self.triton.ask(f"/v2/models/{self.at_triton}/config")[1]
        self._loaded = self._config

    def _start_triton(self, stack: ExitStack, options: Namespace) -> list[str]:
        """Starts Triton; returns flags that connect the service to this Triton."""
        name = _model_name(options)
        model = (options.model_repository or default_model_repository()).absolute() / name
        if not (model / "config.pbtxt").is_file():
            raise ConfigError(
                f"--model_repository={model.parent}: expected Triton's model repository with the model {name!r} "
                f"(--model_name), found no {name}/config.pbtxt"
            )
        log, labels = self._folder / "triton.log", f"{name}{LABELS_SUFFIX}"
        models = [name, labels] if (model.parent / labels / "config.pbtxt").is_file() else [name]  # a bi-encoder's
        triton = stack.enter_context(
            LocalTriton(
                model.parent, environment=options.triton_environment, models=models, environ=self._environ, log=log
            )
        )
        flags = [f"--model_name={name}", f"--model_dir={model}", f"--predictor_host={triton.http_address}"]
        if model.parent == default_model_repository():
            flags += next((demo.flags for demo in demos().values() if demo.model == name), ())
        return flags

    def restart(self, settings: Settings) -> Target:
        """Restarts the service with additional ``settings``. Raises LoadError if service or model can't start."""
        self._service.close()
        entries = {name: value for name, value in settings.items() if not name.startswith("--")}
        if self._loaded != (wanted := {**self._config, **entries}):
            self._load(wanted)
        http_port, grpc_port = self._service.enter_context(reserved_ports(2))
        environ = {_TOKENIZE_TIMING: "true", **self._environ}
        flags = [*self._flags, *(f"{name}={value}" for name, value in settings.items() if name not in entries)]
        log = self._folder / "service.log"
        self._service.enter_context(service_running(flags, environ, log, http_port=http_port, grpc_port=grpc_port))
        return Target.at(f"{HOST}:{http_port}")

    def _load(self, config: Settings) -> None:
        """Loads the model into Triton with a new configuration. Raises LoadError after a failed request.

        Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
        """
        self._loaded = {}
        path, body = f"/v2/repository/models/{self.at_triton}/load", {"parameters": {"config": json.dumps(config)}}
        status, answer = self.triton.ask(path, body) if self.triton else (0, "it is not local")
        if status != 200:
            raise LoadError(f"Triton does not load {self.model}: {answer}")
        self._loaded = config

    def settings(self) -> dict[str, list[Any]]:
        """Candidate values of each setting, without the current value.

        Triton's settings precede the flags: the default of --max_batches_in_flight depends on the number of instances.
        """
        candidates: dict[str, list[Any]] = {}
        if self._config:
            groups, batching = self._config["instance_group"], self._config.get("dynamic_batching")
            current, rows = sum(group["count"] for group in groups), self._config["max_batch_size"]
            max_count = max(2, available_cpus())
            counts = [count for count in (1, 2, 4) if count != current and count <= max_count]
            # Keeps the kind of device, because a model for GPUs may not run on CPUs.
            candidates["instance_group"] = [[{"count": count, "kind": groups[0]["kind"]}] for count in counts]
            now = batching and (batching["preferred_batch_size"] or [rows])
            preferred = [None, [rows], [rows // 2, rows]] if rows > 1 else []
            candidates["dynamic_batching"] = [
                sizes and {"preferred_batch_size": sizes} for sizes in preferred if sizes != now
            ]
        for flag, values in FLAGS.items():
            now = getattr(self._serving, flag.removeprefix("--"))
            candidates[flag] = [value for value in values if value != now]
        return candidates


def chosen(entries: ModelEntries, name: str | None) -> Config:
    """The model of plain flags, or the only one or that with the name of several. Raises ConfigError for no such."""
    configs, _ = entries.read()
    any_name = entries.path is None or (name is None and len(configs) == 1)
    for config in configs:
        if any_name or name in (config.model_name, *config.aliases, *config.adapters):
            return config
    names = ", ".join(config.model_name for config in configs)
    raise ConfigError(f"--model_name: expected a model of {entries.path}: {names}")


def _model_name(flags: Namespace) -> str:
    """The model of the Triton that bench starts."""
    return flags.model_name or demos()[DEFAULT_TASK].model


def settings_text(settings: Settings) -> str:
    """Formats settings as command-line flags and as entries of config.pbtxt."""
    parts = []
    for name, value in settings.items():
        entry = re.sub(r'"(\w+)"', r"\1", json.dumps(value))
        parts.append(f"{name}={value}" if name.startswith("--") else f"{name} {entry}" if value else f"no {name}")
    return ", ".join(parts) or "as configured"


def sweep(
    setup: Setup, measure: Callable[[Target, str], Figures], say: Callable[[float, str], None]
) -> tuple[list[Trial], str]:
    """Restarts the service with each candidate setting; returns the trials and a recommendation.

    ``measure`` performs a run with a title. ``say`` receives the completed fraction of the sweep and a line of text
    after each trial. Raises LoadError if the current settings fail.
    """
    candidates = setup.settings()
    max_trials = 1 + 2 * sum(map(len, candidates.values())) + 2 * COMPARISONS
    trials: list[Trial] = []

    def tried(settings: Settings) -> float:
        """Measures the throughput with these settings; returns 0.0 if any request fails."""
        title = settings_text(settings)
        try:
            figures = measure(setup.restart(settings), title)
        except LoadError as error:
            figures = Figures(errors=Counter({" ".join(str(error).split())[:300]: 1}))
        trials.append((title, figures))
        throughput = 0.0 if figures.errors else figures.throughput
        say(len(trials) / max_trials, f"{f'{throughput:,.1f}/s' if throughput else 'fails':>12}  {title}")
        return throughput

    current = [tried({})]  # throughputs of the current settings, in order
    if not current[0]:
        raise LoadError(f"--sweep: the current settings already fail: {', '.join(trials[-1][1].errors)}")

    def gain(settings: Settings) -> float:
        """Compares with the better one of the runs of the current settings just before and after this one.

        A machine that becomes slower, or a slow run of the current settings, then makes no gain.
        """
        throughput = tried(settings)
        current.append(tried({}))
        reference = max(current[-2:])
        return throughput / reference - 1 if reference else 0.0

    best: Settings = {}
    highest = 0.0
    for name, values in candidates.items():
        base = best
        for settings in ({**base, name: value} for value in values):
            gained = gain(settings)
            if (1 + gained) / (1 + highest) - 1 > noise_of(current):
                best, highest = settings, gained
    again = float(np.median([gain(best) for _ in range(COMPARISONS)])) if best else 0.0
    noise = noise_of(current)
    basis = f"noise ±{noise:.0%} in {len(current)} runs of the current settings"
    if again > noise:
        return trials, f"Use {settings_text(best)}: {again:+.0%} throughput in a second comparison ({basis})."
    advice = "; repeat the sweep on a quiet machine" if noise > BUSY else ""
    return trials, f"Keep the settings: no setting is better than the noise ({basis}{advice})."


def noise_of(throughputs: Sequence[float]) -> float:
    """The largest difference between runs with the same settings, relative to their median; at least MIN_NOISE.

    Of six runs or more, the slowest and the fastest do not count: a single outlier says little about the others.
    """
    ordered = sorted(throughputs)
    inner, middle = ordered[1:-1] if len(ordered) > 5 else ordered, float(np.median(ordered))
    return max(MIN_NOISE, (inner[-1] - inner[0]) / middle) if middle else math.inf


def triton_statistics(triton: Target, model: str) -> dict[str, int]:
    """Reads Triton's counters for a model. Raises LoadError after a failed request.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
    """
    status, answer = triton.ask(f"/v2/models/{model}/stats")
    if status != 200:
        raise LoadError(f"Triton does not return its statistics of {model}, status {status}: {str(answer)[:200]}")
    counted = answer["model_stats"][-1]
    stages = {stage: counted["inference_stats"][stage]["ns"] for stage in STAGES}
    requests = counted["inference_stats"]["success"]["count"]
    return {**stages, "requests": requests, "runs": counted["execution_count"], "rows": counted["inference_count"]}


def triton_means(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Mean milliseconds per request and stage, and rows per model execution. Empty without requests."""
    grown = {name: count - before[name] for name, count in after.items()}
    if not grown["requests"] or not grown["runs"]:
        return {}
    means = {stage: grown[stage] / grown["requests"] / 1e6 for stage in STAGES}
    return means | {ROWS: grown["rows"] / grown["runs"]}
