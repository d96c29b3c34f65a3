"""The chart's pods as processes: the rendered commands, environment, probes and end, in front of a real Triton.

Only addresses and paths are others than in a pod: free ports of 127.0.0.1, and temporary folders instead of volumes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from hf_transformer.commands.child_process import ChildProcess
from hf_transformer.commands.local_triton import SHARED_MEMORY
from hf_transformer.commands.loopback import reserved_ports
from hf_transformer.commands.triton_installation import find_triton
from tests.integration.server.processes import new_certificate
from tests.support.chart import Rendered, render
from tests.support.triton_environment import triton_environment

pytestmark = [pytest.mark.slow, pytest.mark.only_triton_24]

ROOT = Path(__file__).parents[2]
KEY = "a-key-of-a-client"
FORMS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "secured, two models, gRPC": {
        "models": [{"model_name": "bert", "aliases": ["text"]}, {"model_name": "sentiment"}],
        "predictor": {"protocol": "grpc-v2"},
        "tls": {"enabled": True, "existingSecret": "certificate"},
        "apiKeys": {"enabled": True, "existingSecret": "keys"},
    },
}


@pytest.fixture
def ports() -> Iterator[dict[str, str]]:
    """Free ports by the ports of Triton and the service in a pod."""
    names = ("8000", "8001", "8002", "8080", "8081")
    with reserved_ports(len(names)) as free:
        yield dict(zip(names, map(str, free), strict=True))


class Pod:
    """The containers of a rendered pod as processes."""

    def __init__(self, values: Mapping[str, Any], folder: Path, ports: Mapping[str, str]) -> None:
        self.folder, self.prefix = folder, f"hf_transformer_chart_{os.getpid()}_"
        repository = folder / "models"
        for model in [entry["model_name"] for entry in values.get("models", [{"model_name": "bert"}])]:
            shutil.copytree(ROOT / "deploy" / "model_repository" / model, repository / model)
        self.installation = find_triton(triton_environment(), {})
        # Without auto-complete Triton starts each model's stub once, not twice.
        options = ["--disable-auto-complete-config", "--model-config-name=python"]
        options += [f"--backend-config=python,shm-region-prefix-name={self.prefix}"]
        if stub := self.installation.stub:  # the wheel's backend lacks its stub
            backend = folder / "backends" / "python"
            shutil.copytree(stub.parents[2] / "backends" / "python", backend)
            shutil.copy(stub, backend / stub.name)
            options.append(f"--backend-directory={backend.parent}")
        self.ports = ports
        # The Triton of the tests is a release before 26.04.
        triton = {"image": {"tag": "24.10-py3"}, "extraArgs": options}
        own = ["--host=127.0.0.1", f"--http_port={self.ports['8080']}", f"--grpc_port={self.ports['8081']}"]
        volume = {"mountPath": str(repository)}
        self.form: Rendered = render({**values, "triton": triton, "persistence": volume, "extraArgs": own})
        self._write_mounted_files()

    def _write_mounted_files(self) -> None:
        """Write the files of the pod's Secrets and its ConfigMap."""
        folder = self.folder / "etc"
        folder.mkdir()
        new_certificate(folder / "hf-transformer-tls", "service")
        files = {"hf-transformer-keys/keys": f"{KEY}\n"}
        for document in self.form.of("ConfigMap"):
            files |= {f"hf-transformer/{name}": text for name, text in document["data"].items()}
        for name, text in files.items():
            (folder / name).parent.mkdir()
            (folder / name).write_text(text)

    def here(self, text: str) -> str:
        """A text of the manifest with this machine's ports and paths."""
        for name, port in self.ports.items():
            text = text.replace(f":{name}", f":{port}").replace(f"-port={name}", f"-port={port}")
        return text.replace("=/etc/", f"={self.folder}/etc/").replace("=0.0.0.0", "=127.0.0.1")

    def start_triton(self) -> ChildProcess:
        assert self.form.triton is not None
        program, *arguments = map(self.here, self.form.triton["args"])
        assert program == "tritonserver"
        command = [*self.installation.program, *arguments]
        return ChildProcess(command, self.installation.variables, self.folder / "triton.log")

    def start_service(self) -> ChildProcess:
        container = self.form.service
        environ = {one["name"]: one["value"] for one in container["env"]}
        command = [sys.executable, "-m", "hf_transformer", *map(self.here, container["args"])]
        variables = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), **environ}
        return ChildProcess(command, variables, self.folder / "service.log")

    def passes(self, probe: Mapping[str, Any]) -> bool:
        """Whether a probe succeeds once."""
        if "exec" in probe:
            command = [self.here(argument) for argument in probe["exec"]["command"]]
            return subprocess.run(command, capture_output=True, timeout=probe["timeoutSeconds"]).returncode == 0
        request = probe["httpGet"]
        port = {one["name"]: one["containerPort"] for one in self.form.service["ports"]}[request["port"]]
        address = f"{request['scheme'].lower()}://127.0.0.1:{self.ports[str(port)]}{request['path']}"
        context = ssl._create_unverified_context()  # as the kubelet does
        with (
            suppress(URLError),
            urllib.request.urlopen(
                address, timeout=probe["timeoutSeconds"], context=context if address.startswith("https") else None
            ) as response,
        ):
            return bool(response.status == 200)
        return False

    def wait_until(self, child: ChildProcess, probe: Mapping[str, Any], name: str) -> None:
        """Waits as long as the probe lets a container start."""
        seconds = probe["periodSeconds"] * probe["failureThreshold"]
        child.wait_until(lambda: self.passes(probe), name, seconds)

    @contextmanager
    def running(self) -> Iterator[tuple[ChildProcess, ChildProcess]]:
        """Triton and the service, started one after the other."""
        triton = self.start_triton()
        service = None
        try:
            self.wait_until(triton, self.form.triton_container["startupProbe"], "Triton")
            service = self.start_service()
            self.wait_until(service, self.form.service["startupProbe"], "the service")
            yield triton, service
        finally:
            for child in (service, triton):
                if child is not None:
                    child.terminate()
            for path in SHARED_MEMORY.glob(f"{self.prefix}*"):
                path.unlink(missing_ok=True)


@pytest.mark.parametrize("values", FORMS.values(), ids=FORMS.keys())
def test_pod_starts_answers_and_ends_as_rendered(values: dict[str, Any], tmp_path: Path, ports: dict[str, str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed; the probes and NOTES.txt call it")
    pod = Pod(values, tmp_path, ports)
    form = pod.form
    with pod.running() as (triton, service):
        service.wait_until(lambda: pod.passes(form.service["readinessProbe"]), "the model", 60)
        for container in (form.service, form.triton_container):
            assert pod.passes(container["livenessProbe"])
        (curl,) = (line.strip() for line in form.notes.splitlines() if line.strip().startswith("curl"))
        command = shlex.split(pod.here(curl).replace("$KEY", KEY))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout == '{"predictions":["paris"]}', done.stderr
        if "apiKeys" in values:
            refused = [argument for argument in command if KEY not in argument and argument != "-H"]
            done = subprocess.run(refused, capture_output=True, text=True, timeout=60)
            assert "API key" in done.stdout

        os.kill(service.pid, signal.SIGTERM)
        assert service.wait(form.pod["terminationGracePeriodSeconds"])
        assert service.exit_code == 0, service.output()
        assert triton.exit_code is None and pod.passes(form.triton_container["livenessProbe"]), "a sidecar ends last"
        os.kill(triton.pid, signal.SIGTERM)
        assert triton.wait(form.pod["terminationGracePeriodSeconds"])
        assert triton.exit_code == 0, triton.output()
    assert "WARNING hf_transformer.config" not in service.output()
