"""The CloudEvents SDK: a predict request as a structured and as a binary event, and the events that answer it."""

from __future__ import annotations

import urllib.request
from typing import Any

from cloudevents.conversion import to_binary, to_structured
from cloudevents.http import CloudEvent, from_http
from task import answer


def use(task: dict[str, Any]) -> dict[str, Any]:
    url = f"http://{task['http']}/v1/models/{task['model']}:predict"
    answers = {}
    for name, write in (("structured", to_structured), ("binary", to_binary)):
        for kind, data in (("object", task["request"]), ("bytes", None)):
            event = CloudEvent({"type": "my.request", "source": "test"}, data or task["text"].encode())
            headers, body = write(event)
            with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as response:
                told = from_http(dict(response.headers.items()), response.read())
            attributes = [told[one] for one in ("specversion", "source", "type")]
            answers[f"{name} {kind}"] = [*attributes, told["id"] != event["id"], told.data]
    return answers


answer(use)
