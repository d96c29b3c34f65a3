"""Keys in a running service: renewed, and in no log, whatever the log is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hf_transformer.commands.local_triton import poll
from tests.configuring import error
from tests.integration.server.processes import MODEL_FOLDER, NOBODY, SECONDS
from tests.service import Service, flags_for

BODY = {"instances": ["a text with [MASK]"]}


def test_keys_are_renewed_and_never_logged(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("first-secret\n")
    flags = flags_for("bert", MODEL_FOLDER, NOBODY, "v2", [f"--api_keys_file={file}", "--workers=2"])
    loud = ["--log_level=debug", "--access_log_format=%(r)s %({authorization}i)s %({api-key}i)s", "--enable_grpc=false"]
    with Service(*flags, *loud, environ={"HF_TOKEN": "hub-secret"}) as service:
        service.wait_until("/")

        def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}", "api-key": key}
            return service.post(BODY, "bert", headers=headers).status_code

        assert poll(lambda: service.log.count("startup complete") == 2, SECONDS)
        assert status("first-secret") == 503  # past the key; there is no predictor
        assert status("other-secret") == 401

        file.with_name("new").write_text("other-secret\n")
        os.replace(file.with_name("new"), file)
        # Each worker looks at the file by itself; of eight requests both get some, but not always.
        assert poll(lambda: {status("first-secret") for _ in range(8)} == {401}, SECONDS)
        assert poll(lambda: {status("other-secret") for _ in range(8)} == {503}, SECONDS)

        file.write_text("no key\n")
        assert poll(lambda: service.log.count("the new files can't be used") == 2, SECONDS)
        assert status("other-secret") == 503
        assert service.stop() == 0
        assert "POST /v1/models/bert:predict" in service.log
        assert "secret" not in service.log and "no key" not in service.log.replace("is no key", "")


@pytest.mark.parametrize(
    "flag", ["--otlp_endpoint=ftp://me:a-secret@collector", "--predictor_host=http://me:a-secret@h"]
)
def test_a_password_in_an_address_is_in_no_message(flag: str) -> None:
    message = error(flag)
    assert "://***@" in message and "a-secret" not in message
