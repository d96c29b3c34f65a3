"""examples/clusters: against the CRDs' schemas, and against what the service has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hf_transformer.config.options import parse_config
from tests.deploy.manifests import DEPLOY, damaged, messages

EXAMPLES = DEPLOY.parent / "examples" / "clusters"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


MANIFESTS = [one for name in ("envoy_ai_gateway.yaml", "inference_route.yaml") for one in documents(name)]
GATEWAY = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in documents("envoy_ai_gateway.yaml")}


@pytest.mark.parametrize("document", MANIFESTS, ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_manifest_fits_its_schema(document: Any) -> None:
    assert messages(document) == []


BROKEN: list[tuple[str, list[str | int], Any]] = [
    ("AIGatewayRoute", ["apiVersion"], "aigateway.envoyproxy.io/v1alpha1"),
    ("AIGatewayRoute", ["spec", "rules", 0, "matches", 0, "path"], "/v1"),
    ("AIServiceBackend", ["spec", "schema", "name"], "Jina"),
    ("Backend", ["spec", "endpoints", 0, "host"], "localhost"),
    ("ClientTrafficPolicy", ["spec", "connection", "buffer"], "4Mi"),
    ("Gateway", ["spec", "listeners", 0, "ports"], [80]),
    ("HTTPRoute", ["spec", "rules", 0, "backendRef"], {}),
]


@pytest.mark.parametrize(("kind", "path", "value"), BROKEN, ids=[f"{kind}-{path[-1]}" for kind, path, _ in BROKEN])
def test_a_mistake_is_found(kind: str, path: list[str | int], value: Any) -> None:
    document = next(one for one in MANIFESTS if one["kind"] == kind)
    assert len(messages(damaged(document, path, value))) == 1


def test_route_leads_to_the_service() -> None:
    route = GATEWAY["AIGatewayRoute", "hf-transformer"]
    backends = [rule["backendRefs"][0]["name"] for rule in route["rules"]]
    schemas = [GATEWAY["AIServiceBackend", name]["schema"] for name in backends]
    assert schemas == [{"name": "OpenAI", "prefix": "/openai/v1"}, {"name": "Cohere", "version": "v2"}]
    for name in backends:
        target = GATEWAY["AIServiceBackend", name]["backendRef"]
        (endpoint,) = GATEWAY[target["kind"], target["name"]]["endpoints"]
    usual, _ = parse_config(["--predictor_host=x"], {})
    assert endpoint["fqdn"]["port"] == usual.http_port
    # The paths that the gateway makes of these schemas (its translators join prefix or version and the endpoint).
    pages = [(DEPLOY.parent / "docs" / name).read_text() for name in ("api.md", "dialects.md")]
    for path in ("/openai/v1/embeddings", "/openai/v1/chat/completions", "/v2/rerank"):
        assert any(f"POST {path}`" in page for page in pages), path
    for rule in route["rules"]:
        (match,) = rule["matches"]
        assert [header["name"] for header in match["headers"]] == ["x-ai-eg-model"]


def test_picker_reads_gauges_that_the_service_has() -> None:
    (values,) = documents("endpoint_picker.yaml")
    epp, servers = values["router"]["epp"], values["router"]["modelServers"]
    config = yaml.safe_load(epp["pluginsCustomConfig"][epp["pluginsConfigFile"]])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    extractor = plugins["core-metrics-extractor"]
    (engine,) = extractor["engineConfigs"]
    assert engine["name"] == extractor["defaultEngine"] == servers["type"]
    page = (DEPLOY.parent / "docs" / "metrics.md").read_text()
    for name in (engine["queuedRequestsSpec"], engine["runningRequestsSpec"]):
        assert f"| `{name}` | gauge |" in page
    (profile,) = config["schedulingProfiles"]
    used = [*profile["plugins"], *config["requestHandler"]["parsers"]]
    assert {plugin["pluginRef"] for plugin in used} <= set(plugins)
    usual, _ = parse_config(["--predictor_host=x"], {})
    assert servers["targetPorts"] == [{"number": usual.http_port}]
    (route,) = documents("inference_route.yaml")
    (backend,) = route["spec"]["rules"][0]["backendRefs"]
    assert backend["kind"] == "InferencePool"
