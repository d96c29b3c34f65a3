"""The part of Kubernetes' API that `kubectl create --dry-run=client` asks: which kinds there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

KINDS = {
    "v1": ("ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment",),
    "autoscaling/v2": ("HorizontalPodAutoscaler",),
    "batch/v1": ("Job",),
    "gateway.networking.k8s.io/v1": ("GRPCRoute", "HTTPRoute"),
    "keda.sh/v1alpha1": ("ScaledObject",),
    "monitoring.coreos.com/v1": ("PrometheusRule", "ServiceMonitor"),
    "networking.k8s.io/v1": ("Ingress", "NetworkPolicy"),
    "policy/v1": ("PodDisruptionBudget",),
}


def answers() -> dict[str, dict[str, Any]]:
    """The discovery documents by path."""
    groups = []
    documents: dict[str, dict[str, Any]] = {"/api": {"kind": "APIVersions", "versions": ["v1"]}}
    for version, kinds in KINDS.items():
        resources = [
            {"name": f"{kind.lower()}s", "singularName": kind.lower(), "namespaced": True, "kind": kind}
            | {"verbs": ["create", "get", "list"]}
            for kind in kinds
        ]
        path = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        documents[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        if "/" in version:
            named = {"groupVersion": version, "version": version.partition("/")[2]}
            groups.append({"name": version.partition("/")[0], "versions": [named], "preferredVersion": named})
    documents["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return documents


@contextmanager
def kubernetes_api() -> Iterator[str]:
    """Serves the documents on a free port of 127.0.0.1; yields the address."""
    documents = {path: json.dumps(document).encode() for path, document in answers().items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = documents.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the tests' output quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
