"""deploy/chart rendered by Helm's engine, and what its pods consist of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[2] / "deploy" / "chart"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser, where PyYAML has it: it is eight times as fast."""


@dataclass(frozen=True)
class Rendered:
    """The objects of a release, and its NOTES.txt."""

    documents: list[dict[str, Any]]
    notes: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The only object of a kind."""
        (document,) = self.of(kind)
        return document

    @property
    def pod(self) -> dict[str, Any]:
        pod: dict[str, Any] = self.one("Deployment")["spec"]["template"]["spec"]
        return pod

    @property
    def service(self) -> dict[str, Any]:
        """The container of the service."""
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def triton_container(self) -> dict[str, Any]:
        """The sidecar of a pod that has one."""
        assert self.triton is not None
        return self.triton

    @property
    def triton(self) -> dict[str, Any] | None:
        return next((one for one in self.pod.get("initContainers", []) if one["name"] == "triton"), None)


def values_of(file: str) -> dict[str, Any]:
    """The values of a file in the chart's folder."""
    values: dict[str, Any] = yaml.load((CHART / file).read_text(encoding="utf-8"), LOADER)
    return values


def render(values: Mapping[str, Any], name: str = "hf-transformer", namespace: str = "default") -> Rendered:
    """The chart with these values beside its defaults.

    Raises HelmValuesError for values that the schema refuses, HelmRenderError where a template does.
    """
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(dict(values))
        files = chart.render(dict(values), name=name, namespace=namespace)
    notes = files.pop("hf-transformer/templates/NOTES.txt")
    texts = [text for path, text in sorted(files.items()) if path.endswith(".yaml")]
    return Rendered([one for text in texts for one in yaml.load_all(text, LOADER) if one], notes)
