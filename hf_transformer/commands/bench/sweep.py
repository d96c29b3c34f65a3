"""Starts a service with settings, and tries others.

One setting at a time, each with the best of those before: all combinations would take hours, and settings act mostly on
their own. A gain counts if it is larger than the noise, and if a last comparison shows it again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hf_transformer.commands.bench.load import ROWS, Figures, Target
from hf_transformer.commands.demo import EXAMPLES, default_model_repository
from hf_transformer.commands.local_triton import HOST, LocalTriton, free_ports, service_running
from hf_transformer.config.options import parse_config
from hf_transformer.errors import ConfigError, LoadError

FLAGS: Final = {
    "--max_batches_in_flight": (1, 2, 4),
    "--max_batch_tokens": (4096, 16384, 65536),
    "--pad_to_multiple_of": (1, 8, 32),
}
"""Of hf-transformer serve, with the values to try."""
STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
"""Of a request in Triton's statistics."""

Trial = tuple[str, Figures]
"""Settings for people, and the result. If the model does not run with them, the result has that error alone."""
Settings = Mapping[str, Any]
"""Flags of the service with their values, and entries of Triton's configuration as JSON; None leaves one out."""


class Setup:
    """The service with --service_flags, and Triton where those have no --predictor_host; ``restart`` starts it anew.

    Args:
        stack: ends what was started.
        given: the command's flags. Triton gets --model_name of --model_repository, of the demo's models without it.
            The tokenizer lies in the model's folder, as export writes it.

    Raises ConfigError if there is no such model, or a flag has a bad value or does not go with another, LoadError if
    Triton does not start.
    """

    def __init__(self, stack: ExitStack, given: Namespace, environ: Mapping[str, str]) -> None:
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="hf-transformer-bench-")))
        self._environ = environ
        self._flags = shlex.split(given.service_flags or "")
        local = not any(re.match("--predictor[-_]host", flag) for flag in self._flags)
        if local:
            self._flags[:0] = self._start_triton(stack, given)
        elif given.model_repository is not None:
            raise ConfigError("--model_repository: --service_flags have a --predictor_host; leave one of them out")
        self._service = stack.enter_context(ExitStack())  # ends before Triton, which waits for open connections
        self._serving, _ = parse_config(self._flags, environ)
        self.model = self._serving.model_name
        over_rest = self._serving.predictor_protocol == "v2" and not self._serving.predictor_use_ssl
        self.triton = Target.at(self._serving.predictor_host) if over_rest else None
        """Triton's REST port, None where the service talks to it in another way."""
        self._config: Settings = {}
        """Of the model at a local Triton; empty where it can't be changed."""
        if local and self.triton:
            self._config = self.triton.ask(f"/v2/models/{self.model}/config")[1]
        self._loaded = self._config

    def _start_triton(self, stack: ExitStack, given: Namespace) -> list[str]:
        """The service's flags for it."""
        name = given.model_name or EXAMPLES["fill_mask"].model
        model = (given.model_repository or default_model_repository()).absolute() / name
        if not (model / "config.pbtxt").is_file():
            raise ConfigError(f"--model_repository: there is no {model}/config.pbtxt")
        log = self._folder / "triton.log"
        triton = stack.enter_context(
            LocalTriton(
                model.parent, environment=given.triton_environment, models=[name], environ=self._environ, log=log
            )
        )
        found = [f"--model_name={name}", f"--model_dir={model}", f"--predictor_host={triton.http_address}"]
        if model.parent == default_model_repository():
            found += next((one.flags for one in EXAMPLES.values() if one.model == name), ())
        return found

    def restart(self, settings: Settings) -> Target:
        """Starts the service with more settings. Raises LoadError."""
        self._service.close()
        entries = {name: value for name, value in settings.items() if not name.startswith("--")}
        if self._loaded != (wanted := {**self._config, **entries}):
            self._load(wanted)
        http_port, grpc_port = free_ports(2)
        flags = [*self._flags, *(f"{name}={value}" for name, value in settings.items() if name not in entries)]
        log = self._folder / "service.log"
        self._service.enter_context(
            service_running(flags, self._environ, log, http_port=http_port, grpc_port=grpc_port)
        )
        return Target.at(f"{HOST}:{http_port}")

    def _load(self, config: Settings) -> None:
        """Has Triton load the model with a configuration. Raises LoadError.

        Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_model_repository.md
        """
        self._loaded = {}
        path, body = f"/v2/repository/models/{self.model}/load", {"parameters": {"config": json.dumps(config)}}
        status, answer = self.triton.ask(path, body) if self.triton else (0, "it is not local")
        if status != 200:
            raise LoadError(f"Triton does not load {self.model}: {answer}")
        self._loaded = config

    def settings(self) -> dict[str, list[Any]]:
        """The values to try of each setting, without the one that it has. Triton's come first: the default of
        --max_batches_in_flight follows from its instances."""
        found: dict[str, list[Any]] = {}
        if self._config:
            groups, batching = self._config["instance_group"], self._config.get("dynamic_batching")
            count, most = sum(one["count"] for one in groups), self._config["max_batch_size"]
            counts = [one for one in (1, 2, 4) if one != count and one <= max(2, len(os.sched_getaffinity(0)))]
            # The device stays: a model for a GPU may not run elsewhere.
            found["instance_group"] = [[{"count": one, "kind": groups[0]["kind"]}] for one in counts]
            now = batching and (batching["preferred_batch_size"] or [most])
            preferred = [None, [most], [most // 2, most]] if most > 1 else []
            found["dynamic_batching"] = [
                sizes and {"preferred_batch_size": sizes} for sizes in preferred if sizes != now
            ]
        for flag, values in FLAGS.items():
            now = getattr(self._serving, flag.removeprefix("--"))
            found[flag] = [one for one in values if one != now]
        return found


def shown(settings: Settings) -> str:
    """Settings as one writes them on the command line and in config.pbtxt, which has no quotes there."""
    parts = []
    for name, value in settings.items():
        entry = re.sub(r'"(\w+)"', r"\1", json.dumps(value))
        parts.append(f"{name}={value}" if name.startswith("--") else f"{name} {entry}" if value else f"no {name}")
    return ", ".join(parts) or "as given"


def sweep(
    setup: Setup, measure: Callable[[Target, str], Figures], say: Callable[[float, str], None]
) -> tuple[list[Trial], str]:
    """Tries all settings; the trials, and a sentence that recommends. The service is started anew for each trial.

    ``measure`` makes one run against it; the text says which. ``say`` gets the share that is over and a line about each
    trial. Raises LoadError where nothing can be measured with the settings as they are.
    """
    candidates = setup.settings()
    most = 4 + sum(map(len, candidates.values()))
    trials: list[Trial] = []

    def tried(settings: Settings) -> float:
        """The throughput, 0 where something fails."""
        title = shown(settings)
        try:
            figures = measure(setup.restart(settings), title)
        except LoadError as error:
            figures = Figures(errors=Counter({" ".join(str(error).split())[:300]: 1}))
        trials.append((title, figures))
        found = 0.0 if figures.errors else figures.throughput
        say(len(trials) / most, f"{f'{found:,.1f}/s' if found else 'fails':>12}  {title}")
        return found

    best: Settings = {}
    first, second = tried(best), tried(best)
    if not (first and second):
        raise LoadError(f"--sweep: the settings as they are already fail: {', '.join(trials[-1][1].errors)}")
    highest = (first + second) / 2
    noise = max(0.03, abs(first - second) / highest)  # smaller gains are not worth a setting
    for name, values in candidates.items():
        base = best
        for settings in ({**base, name: value} for value in values):
            if (throughput := tried(settings)) > highest * (1 + noise):
                best, highest = settings, throughput
    how = f"{len(trials)} trials, noise {noise:.0%}"
    if best:
        again, without = tried(best), tried({})
        gain = again / without - 1 if without else 0.0
        if gain > noise:
            return trials, f"Use {shown(best)}: {gain:+.0%} throughput in a second comparison ({how})."
    return trials, f"Keep the settings: no other ones gain more than the noise ({how})."


def triton_statistics(triton: Target, model: str) -> dict[str, int]:
    """Triton's counters of a model. Raises LoadError.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
    """
    status, found = triton.ask(f"/v2/models/{model}/stats")
    if status != 200:
        raise LoadError(f"Triton's statistics of {model} are answered with {status}: {str(found)[:200]}")
    counted = found["model_stats"][-1]
    stages = {stage: counted["inference_stats"][stage]["ns"] for stage in STAGES}
    requests = counted["inference_stats"]["success"]["count"]
    return {**stages, "requests": requests, "runs": counted["execution_count"], "rows": counted["inference_count"]}


def triton_means(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Milliseconds per request by stage, and rows per run of the model; empty where there was no request."""
    grown = {name: count - before[name] for name, count in after.items()}
    if not grown["requests"] or not grown["runs"]:
        return {}
    means = {stage: grown[stage] / grown["requests"] / 1e6 for stage in STAGES}
    return means | {ROWS: grown["rows"] / grown["runs"]}
