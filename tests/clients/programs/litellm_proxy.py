"""LiteLLM's proxy with its Presidio guardrail, in front of a chat server that repeats what it gets.

Beside what every program is given it takes "messages", and "guardrail" with further settings of the guardrail. Answers
with the texts that the chat server has got, and the answer of the proxy.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

SECONDS = 240
"""Less than what the tests give a program, which then ends its proxy itself."""
KEY = f"sk-{secrets.token_hex(16)}"
"""LiteLLM refuses keys that everybody knows."""


class Chat(BaseHTTPRequestHandler):
    """Answers a chat with its last message."""

    got: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append([message["content"] for message in body["messages"]])
        message = {"role": "assistant", "content": self.got[-1][-1]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
        content = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def ask(url: str, body: Any = None) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def wait(url: str, proxy: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and proxy.poll() is None:
        try:
            ask(url)
            return
        except (urllib.error.URLError, OSError, ValueError):
            time.sleep(0.5)
    raise SystemExit(f"the proxy did not start: {proxy.poll()}")


def main() -> None:
    task = json.load(sys.stdin)
    backend = HTTPServer(("127.0.0.1", 0), Chat)
    Thread(target=backend.serve_forever, daemon=True).start()
    guardrail = {"guardrail": "presidio", "mode": "pre_call", "default_on": True, **task.get("guardrail", {})}
    parameters = {"model": "openai/m", "api_base": f"http://127.0.0.1:{backend.server_port}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": "chat", "litellm_params": parameters}],
        "guardrails": [{"guardrail_name": "pii", "litellm_params": guardrail}],
        "general_settings": {"master_key": KEY},
    }
    base = f"http://{task['http']}"
    variables = {**os.environ, "PRESIDIO_ANALYZER_API_BASE": base, "PRESIDIO_ANONYMIZER_API_BASE": base}
    variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        command = [str(Path(sys.executable).parent / "litellm"), "--config", str(path), "--host", "127.0.0.1"]
        with (Path(folder) / "log").open("wb") as log:
            proxy = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, env=variables)
            try:
                wait(f"http://127.0.0.1:{port}/health/liveliness", proxy)
                answer = ask(
                    f"http://127.0.0.1:{port}/v1/chat/completions", {"model": "chat", "messages": task["messages"]}
                )
                print(json.dumps({"got": Chat.got, "answer": answer["choices"][0]["message"]["content"]}))
            except (SystemExit, urllib.error.HTTPError) as error:
                content = error.read() if isinstance(error, urllib.error.HTTPError) else error
                sys.exit(f"{content}\n{(Path(folder) / 'log').read_text()[-3000:]}")
            finally:
                proxy.terminate()
                proxy.wait(30)


main()
