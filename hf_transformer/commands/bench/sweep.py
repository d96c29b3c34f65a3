"""Starts a service with settings, and tries others.

One setting at a time, each with the best of those before: all combinations would take hours, and settings act mostly on
their own. A gain counts if it is larger than the noise, and if a last comparison shows it again.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hf_transformer.commands.bench.load import Figures, Server
from hf_transformer.commands.demo import EXAMPLES, default_model_repository
from hf_transformer.commands.local_triton import HOST, ChildProcess, LocalTriton, free_ports, is_ready
from hf_transformer.config.options import parse_config
from hf_transformer.errors import ConfigError, LoadError

READY_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 10.0
LEAST_GAIN: Final = 0.03
"""Of the throughput. Smaller gains are not worth a setting."""
FLAGS: Final = {
    "--max_batches_in_flight": ("1", "2", "4"),
    "--max_batch_tokens": ("4096", "16384", "65536"),
    "--pad_to_multiple_of": ("1", "8", "32"),
}
"""Of hf-transformer serve, with the values to try."""
STAGES: Final = ("queue", "compute_input", "compute_infer", "compute_output")
"""Of a request in Triton's statistics."""


class Setup:
    """The service with ``flags``, and Triton where those have no --predictor_host. ``restart`` starts the service.

    Args:
        stack: ends what was started.
        folder: for logs, and for the copy of the model whose config.pbtxt a sweep changes.
        repository: Triton's model repository, the demo's if it is None. The tokenizer lies in the model's folder, as
            export writes it.
        model: the name of the model there.

    Raises:
        ConfigError: there is no such model, or a flag has a bad value or does not go with another.
        LoadError: Triton does not start.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        environ: Mapping[str, str],
        flags: Sequence[str],
        repository: Path | None,
        model: str | None,
        triton_environment: Path | None,
    ) -> None:
        self._folder, self._environ, self._flags = folder, {"LOG_LEVEL": "WARNING", **environ}, [*flags]
        self._service: ChildProcess | None = None
        self._triton: LocalTriton | None = None
        self._configs: dict[Path, str] = {}
        if not any(re.match("--predictor[-_]host", flag) for flag in flags):
            name = model or EXAMPLES["fill_mask"].model
            source = ((repository or default_model_repository()) / name).resolve()
            if not (source / "config.pbtxt").is_file():
                raise ConfigError(f"--model_repository: there is no {source}/config.pbtxt")
            copy, ignored = folder / "repository" / name, shutil.ignore_patterns("__pycache__", "*.pbtxt")
            shutil.copytree(source, copy, copy_function=_link, ignore=ignored)
            # Which of them counts depends on the Triton: see LocalTriton.config_name.
            self._configs = {copy / file.relative_to(source): file.read_text() for file in source.rglob("*.pbtxt")}
            for file, text in self._configs.items():
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
            self._triton = triton = LocalTriton(
                copy.parent, environment=triton_environment, models=[name], environ=environ, log=folder / "triton.log"
            )
            stack.enter_context(triton)
            found = [f"--model_name={name}", f"--model_dir={source}", f"--predictor_host={triton.http_address}"]
            if source.parent == default_model_repository():
                found += next((one.flags for one in EXAMPLES.values() if one.model == name), ())
            self._flags[:0] = found
        elif repository is not None:
            raise ConfigError("--model_repository: --service_flags have a --predictor_host; leave one of them out")
        stack.callback(self._stop_service)  # before Triton, which waits for open connections
        self._serving, _ = parse_config(self._flags, environ)
        self.model = self._serving.model_name

    @property
    def triton(self) -> Server | None:
        """Triton's REST port, None where the service talks to it in another way."""
        if self._serving.predictor_protocol != "v2" or self._serving.predictor_use_ssl:
            return None
        host, _, port = self._serving.predictor_host.rpartition(":")
        return Server((host or port).strip("[]"), int(port) if host else 80)

    def restart(self, choices: Sequence[str] = ()) -> Server:
        """Starts the service, and Triton first where its model's config.pbtxt changes.

        Args:
            choices: further flags, and entries for config.pbtxt such as ``dynamic_batching { }``; a name alone leaves
                the entry out.

        Raises:
            LoadError: one of them does not start, or is not ready in time.
        """
        self._stop_service()
        changed = False
        for file, text in self._configs.items():
            for name, _, value in (one.partition(" ") for one in choices if not one.startswith("--")):
                text = with_entry(text, name, value)
            changed = changed or file.read_text() != text
            file.write_text(text)
        if self._triton is not None and changed:
            self._triton.restart()
        http_port, grpc_port = free_ports(2)
        flags = [*self._flags, *(one for one in choices if one.startswith("--")), f"--host={HOST}"]
        command = [sys.executable, "-m", "hf_transformer", "serve", *flags, f"--http_port={http_port}"]
        log = self._folder / "service.log"
        self._service = service = ChildProcess([*command, f"--grpc_port={grpc_port}"], self._environ, log)
        deadline = time.monotonic() + READY_SECONDS
        while not is_ready(http_port, "/v2/health/ready"):
            unfit = "does not fit the service" in service.output()  # and will not later
            if service.wait(0.05) or unfit or time.monotonic() > deadline:
                raise LoadError(f"the service is not ready: {service.output_tail(3)}")
        return Server(HOST, http_port)

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.terminate(GRACE_SECONDS)
            self._service = None

    def settings(self) -> list[list[str]]:
        """The values to try of each setting, as ``restart`` takes them, but for the one that it has. Triton's come
        first: the default of --max_batches_in_flight follows from its instances."""
        entries: dict[str, list[str]] = {}
        if config := next(iter(self._configs.values()), ""):
            # The device stays: a model for a GPU may not run elsewhere.
            kind = re.search(r"^[^#\n]*\bkind\s*:\s*(KIND_\w+)", config, re.MULTILINE)
            device = f" kind: {kind[1]}" if kind else ""
            counts = [count for count in (1, 2, 4) if count <= max(2, len(os.sched_getaffinity(0)))]
            entries["instance_group"] = [f"[ {{ count: {count}{device} }} ]" for count in counts]
            rows = re.search(r"^\s*max_batch_size\s*:\s*(\d+)", config, re.MULTILINE)
            if rows and (most := int(rows[1])) > 1:
                entries["dynamic_batching"] = ["", "{ }", f"{{ preferred_batch_size: [ {most // 2}, {most} ] }}"]
        found = [
            [f"{name} {value}".strip() for value in values if not same(config, with_entry(config, name, value))]
            for name, values in entries.items()
        ]
        for flag, numbers in FLAGS.items():
            now = str(getattr(self._serving, flag.removeprefix("--")))
            found.append([f"{flag}={value}" for value in numbers if value != now])
        return found


def _link(old: str, new: str) -> None:
    """As copying, without the bytes: weights may be large."""
    Path(new).symlink_to(Path(old).resolve())


def with_entry(config: str, name: str, value: str) -> str:
    """A config.pbtxt whose message ``name`` at the top level has another value, such as ``{ }``; "" leaves it out."""
    depth, start, end, kept = 0, -1, 0, ""
    for token in re.finditer(r'#[^\n]*|"(?:[^"\\]|\\.)*"|[\[\]{}]|[A-Za-z_]\w*', config):
        if token[0] == name and not depth:
            start = token.start()
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] in "]}" and not depth and start >= 0:
            kept, start, end = kept + config[end:start], -1, token.end()
    rest = (kept + config[end:]).rstrip()
    return f"{rest}\n{name} {value}\n" if value else f"{rest}\n"


def same(one: str, other: str) -> bool:
    """Whether two texts have the same words, in any order."""
    return sorted(re.findall(r"\w+|[^\w\s]", one)) == sorted(re.findall(r"\w+|[^\w\s]", other))


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured with some choices. ``figures`` is None where the model does not run with them: ``note``."""

    choices: tuple[str, ...]
    figures: Figures | None
    note: str = ""

    @property
    def shown(self) -> str:
        """The choices, for people."""
        named = (one if " " in one or one.startswith("--") else f"no {one}" for one in self.choices)
        return ", ".join(named) or "as given"

    @property
    def throughput(self) -> float:
        """Tokens per second of streams, else requests per second; 0 where something fails."""
        if self.figures is None or self.figures.errors:
            return 0.0
        return self.figures.per_second(self.figures.tokens or len(self.figures.latencies))


def sweep(
    setup: Setup, measure: Callable[[Server, str], Figures], say: Callable[[float, Trial], None]
) -> tuple[list[Trial], str]:
    """Tries all settings; the trials, and a sentence that recommends.

    Args:
        setup: the service, which is started anew for each trial.
        measure: one run against it; the text says which.
        say: gets the share that is over and the trial, after each.

    Raises:
        LoadError: nothing can be measured with the settings as they are.
    """
    settings = setup.settings()
    most = 4 + sum(map(len, settings))
    trials: list[Trial] = []

    def tried(*choices: str) -> Trial:
        trial = Trial(choices, None)
        try:
            trial = Trial(choices, measure(setup.restart(choices), trial.shown))
        except LoadError as error:
            trial = Trial(choices, None, " ".join(str(error).split())[:200])
        trials.append(trial)
        say(len(trials) / most, trial)
        return trial

    first, second = tried(), tried()
    if not (first.throughput and second.throughput):
        raise LoadError(f"--sweep: the settings as they are already fail: {first.note or second.note or 'errors'}")
    best, highest = first, (first.throughput + second.throughput) / 2
    noise = max(LEAST_GAIN, abs(first.throughput - second.throughput) / highest)
    for values in settings:
        base = best.choices
        for trial in [tried(*base, value) for value in values]:
            if trial.throughput > highest * (1 + noise):
                best, highest = trial, trial.throughput
    how = f"{len(trials)} trials, noise {noise:.0%}"
    if best.choices:
        again, without = tried(*best.choices), tried()
        gain = again.throughput / without.throughput - 1 if without.throughput else 0.0
        if gain > noise:
            return trials, f"Use {best.shown}: {gain:+.0%} throughput in a second comparison ({how})."
    return trials, f"Keep the settings: no other ones gain more than the noise ({how})."


def triton_statistics(triton: Server, model: str) -> Any:
    """Triton's counters of a model. Raises LoadError.

    Source: https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
    """
    status, found = triton.ask("GET", f"/v2/models/{model}/stats")
    if status != 200:
        raise LoadError(f"Triton's statistics of {model} are answered with {status}: {str(found)[:200]}")
    return found["model_stats"][-1]


def triton_means(before: Any, after: Any) -> dict[str, float]:
    """Milliseconds per request by stage, and rows per run of the model; empty where there was no request."""

    def grown(part: str, name: str) -> int:
        first, last = (one["inference_stats"].get(part, {}).get(name, 0) for one in (before, after))
        return int(last - first)

    requests, runs = grown("success", "count"), after["execution_count"] - before["execution_count"]
    if not requests or not runs:
        return {}
    means = {stage: grown(stage, "ns") / requests / 1e6 for stage in STAGES}
    return means | {"rows per run": (after["inference_count"] - before["inference_count"]) / runs}
