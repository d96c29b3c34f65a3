"""A real Prometheus that scrapes the services of a test."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from hf_transformer.commands.child_process import ChildProcess, poll
from hf_transformer.commands.loopback import HOST

MISSING = "there is no {} (on Debian and Ubuntu: apt-get install prometheus)"
LISTENING = re.compile(r'msg="?Listening on"? address=[\d.]+:(\d+)')
START_SECONDS = 60.0


def absent(*programs: str) -> str:
    """A message with the missing programs; "" if all are installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    return MISSING.format(" and no ".join(missing)) if missing else ""


class Prometheus:
    """A Prometheus on a free port of 127.0.0.1, stopped by its context manager.

    ``targets`` has the labels of each address to scrape, every second. ``rules`` are evaluated at their own intervals,
    or every second.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Mapping[str, str]], rules: Path) -> None:
        jobs: dict[str, list[dict[str, Any]]] = {}
        for address, labels in targets.items():
            others = {name: value for name, value in labels.items() if name != "job"}
            jobs.setdefault(labels["job"], []).append({"targets": [address], "labels": others})
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": job, "static_configs": lists} for job, lists in jobs.items()],
        }
        file = folder / "prometheus.yml"
        file.write_text(json.dumps(config))  # JSON is YAML
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.process = ChildProcess([*command, f"--web.listen-address={HOST}:0"], variables, folder / "log")
        self.client = httpx.Client(timeout=60.0, trust_env=False, verify=False)

    def __enter__(self) -> Self:
        try:
            self.process.wait_until(lambda: bool(LISTENING.search(self.log)), "Prometheus", START_SECONDS)
            port = LISTENING.findall(self.log)[-1]
            self.client.base_url = httpx.URL(f"http://{HOST}:{port}")
            assert poll(lambda: self.client.get("/-/ready").status_code == 200, START_SECONDS), self.log
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        self.process.terminate()

    @property
    def log(self) -> str:
        return self.process.output()

    def api(self, path: str, **parameters: str) -> Any:
        """Returns the data of a successful response of /api/v1/."""
        answer = self.client.get(f"/api/v1/{path}", params=parameters)
        body = answer.json()
        assert body["status"] == "success", f"{parameters}: {body.get('error')}"
        return body["data"]

    def values(self, query: str) -> list[float]:
        """Returns the current values of a query's series."""
        data = self.api("query", query=query)
        assert data["resultType"] == "vector"
        return [float(series["value"][1]) for series in data["result"]]
