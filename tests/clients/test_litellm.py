"""LiteLLM's proxy masks chats with the served model, through Presidio's routes."""

from __future__ import annotations

import re
from operator import itemgetter

from tests.clients.conftest import Run
from tests.integration.conftest import Serve
from tests.support.service import Service

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Anna Smith lives in Berlin. Her mail is anna@example.org."},
]


def masked(service: Service, text: str) -> str:
    """A text that the service's own routes have masked."""
    results = service.client.post("/analyze", json={"text": text, "language": "en"}).json()
    anonymized = service.client.post("/anonymize", json={"text": text, "analyzer_results": results})
    return str(anonymized.json()["text"])


def test_the_proxy_masks_a_chat_with_default_settings(serve: Serve, client: Run) -> None:
    service = serve("ner", "grpc-v2", "--enable_pii_patterns")
    expected = [masked(service, message["content"]) for message in MESSAGES]
    assert expected[1].startswith("<PERSON> lives in <LOCATION>. ") and expected[1].endswith(" is <EMAIL_ADDRESS>.")
    found = client("litellm_proxy", service=service, messages=MESSAGES)
    assert found["got"] == [expected]
    assert found["answer"] == expected[1], "masked once, although the server repeats the masked chat"


def test_the_proxy_asks_for_some_entities(serve: Serve, client: Run) -> None:
    service = serve("ner", "grpc-v2", "--enable_pii_patterns")
    wanted = {"pii_entities_config": {"EMAIL_ADDRESS": "MASK"}}
    found = client("litellm_proxy", service=service, messages=MESSAGES, guardrail=wanted)
    assert found["got"][0][1] == "Anna Smith lives in Berlin. Her mail is <EMAIL_ADDRESS>."


def test_the_proxy_restores_what_it_has_masked(serve: Serve, client: Run) -> None:
    """Several persons, and values that repeat; without the scope the proxy masks the restored answer again."""
    service = serve("ner", "grpc-v2")
    text = "Anna Smith lives in Berlin. Peter Miller met Anna Smith in Berlin."
    results = service.client.post("/analyze", json={"text": text, "language": "en"}).json()
    sent, end = "", 0
    for number, result in enumerate(sorted(results, key=itemgetter("start")), start=1):
        sent += f"{text[end : result['start']]}<{result['entity_type']}_{number}>"
        end = result["end"]
    assert re.findall("<[^>]+>", sent) == ["<PERSON_1>", "<LOCATION_2>", "<PERSON_3>", "<PERSON_4>", "<LOCATION_5>"]
    restoring = {"output_parse_pii": True, "presidio_filter_scope": "input"}
    found = client("litellm_proxy", service=service, messages=[{"role": "user", "content": text}], guardrail=restoring)
    assert found == {"got": [[sent + text[end:]]], "answer": text}
