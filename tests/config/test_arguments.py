"""Flags and variables that are unknown, without effect, or in contradiction to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_transformer.config.option import Option
from hf_transformer.config.options import IGNORED, Config, parse_config
from tests.support.configuring import config, error, example, notes, parse


def test_the_arguments_that_kserve_appends_are_known() -> None:
    appended = "--model_name bert --predictor_host bert-predictor.default --http_port 8080 --workers 3"
    parsed, logged = parse(*appended.split())
    assert logged == []
    assert (parsed.model_name, parsed.predictor_host) == ("bert", "bert-predictor.default")
    assert (parsed.http_port, parsed.workers, parsed.predictor_port) == (8080, 3, None)


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (["--htp_port=1"], "unknown flag --htp_port is ignored; did you mean --http_port?"),
        (["--predictor-hots", "x"], "unknown flag --predictor-hots is ignored; did you mean --predictor_host?"),
        (["-http_port", "1"], "unknown flag -http_port is ignored; did you mean --http_port?"),
        (["--http_p", "1"], "unknown flag --http_p is ignored; did you mean --http_port?"),
        (["--qqq", "1", "2", "-3"], "unknown flag --qqq is ignored"),
        (["--qqq={'a': 1}"], "unknown flag --qqq is ignored"),
        (
            ["--workers 3"],
            "--workers is ignored: write the flag and its value as two arguments, or with = between them",
        ),
        (["a", "b"], "arguments that belong to no flag are ignored: 'a', 'b'"),
        (["--", "--http_port=1"], "arguments that belong to no flag are ignored: '--http_port=1'"),
        (list("abcde"), "arguments that belong to no flag are ignored: 'a', 'b', 'c' and 2 more"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_unknown_arguments_are_ignored_with_a_note(argv: list[str], note: str) -> None:
    parsed, logged = parse("--workers=2", *argv)
    assert logged == [note]
    assert parsed == config("--workers=2")


def test_a_note_names_an_unknown_flag_once_and_never_its_value() -> None:
    assert notes("--api-token", "hunter2", "--api-token=hunter2") == [notes("--api-token", "hunter2")[0]]
    assert "hunter2" not in notes("--api-token", "hunter2")[0]
    assert notes(HF_TRANSFORMER_HTP_PORT="1", HTP_PORT="1") == [
        "unknown variable HF_TRANSFORMER_HTP_PORT is ignored; did you mean HF_TRANSFORMER_HTTP_PORT?"
    ]


def test_service_links_of_kubernetes_are_ignored() -> None:
    links = {
        "HF_TRANSFORMER_SERVICE_HOST": "10.0.0.1",
        "HF_TRANSFORMER_SERVICE_PORT": "80",
        "HF_TRANSFORMER_PORT": "tcp://10.0.0.1:80",
        "HF_TRANSFORMER_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert parse(HTTP_PORT="tcp://10.0.0.1:80", **links) == parse()
    for name in ("PREDICTOR_PORT", "HF_TRANSFORMER_HTTP_PORT"):
        parsed, logged = parse(**{name: "tcp://10.0.0.1:80"})
        assert parsed == config()
        assert logged == [f"{name} is ignored: it is a service link of Kubernetes, not a port"]


@pytest.mark.parametrize("option", IGNORED, ids=lambda option: option.name)
def test_flags_without_effect_are_accepted_and_mentioned_once(option: Option) -> None:
    text = example(option)[0]
    expected = f"{option.flag} has no effect "
    parsed, logged = parse(option.flag, text, f"{option.flag}={text}")
    assert parsed == config()
    assert len(logged) == 1 and logged[0].startswith(expected)
    name = option.all_variables[-1].name
    assert [note.split(" has")[0] for note in notes(**{name: text})] == [name]


def test_old_names_of_flags_still_work() -> None:
    parsed, logged = parse("--max_length", "128", "--protocol=grpc-v2")
    assert (parsed.max_model_len, parsed.predictor_protocol) == (128, "grpc-v2")
    assert logged == [
        "--max_length is deprecated: use --max_model_len; version 2.0.0 does not know it",
        "--protocol is deprecated: use --predictor_protocol; version 2.0.0 does not know it",
    ]
    parsed = config(MAX_LENGTH="100")
    assert (parsed.max_model_len, parsed.generation_max_length) == (None, 100), "the variable is about generation"


def test_errors_name_the_flag_or_variable_as_the_user_wrote_it() -> None:
    for flag in ("--predictor_protocol", "--protocol"):
        assert error(f"{flag}=v1") == f"{flag}: expected v2, grpc-v2 or none (Triton has no v1), got 'v1'"
    assert error(PREDICTOR_PROTOCOL="v1").startswith("PREDICTOR_PROTOCOL: expected v2, grpc-v2 or none")
    assert error("--predictor_protocol=https").startswith("--predictor_protocol: expected v2")


def test_of_two_contradicting_settings_one_wins() -> None:
    parsed, logged = parse("--model_dir=/models", "--model_id=bert-base-uncased")
    assert (parsed.model_id, logged) == ("bert-base-uncased", ["--model_dir is ignored: --model_id is given"])
    assert notes("--grpc_max_connection_age_grace=9") == [
        "--grpc_max_connection_age_grace is ignored: --grpc_max_connection_age is 0"
    ]
    assert not notes("--grpc_max_connection_age_grace=9", "--grpc_max_connection_age=300")
    assert config("--enable_log_requests").enable_log_requests
    parsed, logged = parse("--enable_log_requests", "--disable_log_requests")
    assert not parsed.enable_log_requests
    assert logged == ["--enable_log_requests is ignored: --disable_log_requests is given"]
    assert config("--model_revision=a").tokenizer_revision == "a"
    assert config("--model_revision=a", "--tokenizer_revision=b").tokenizer_revision == "b"
    assert config("--tokenizer_revision=b").model_revision is None


def test_only_the_route_prefix_may_be_empty() -> None:
    assert config(KSERVE_OPENAI_ROUTE_PREFIX="").openai_route_prefix == ""
    assert config("--openai_route_prefix=", KSERVE_OPENAI_ROUTE_PREFIX="x").openai_route_prefix == ""
    assert error("--model_id=") == "--model_id: expected a text, got ''"


@pytest.mark.parametrize(
    ("text", "protocol", "tls"),
    [("https", "v2", True), ("HTTP", "v2", False), ("grpc-v2", "grpc-v2", False), ("v2", "v2", False)],
)
def test_the_variable_predictor_protocol_may_be_a_scheme(text: str, protocol: str, tls: bool) -> None:
    parsed = config(PREDICTOR_PROTOCOL=text)
    assert (parsed.predictor_protocol, parsed.predictor_use_ssl) == (protocol, tls)


def test_probabilities_and_logits_exclude_each_other() -> None:
    message = error("--return_probabilities", HF_TRANSFORMER_RETURN_RAW_LOGITS="1")
    assert message.startswith("--return_probabilities and HF_TRANSFORMER_RETURN_RAW_LOGITS exclude each other")
    assert config("--return_probabilities", "--return_raw_logits=false").return_probabilities


def test_certificate_and_key_come_together(tmp_path: Path) -> None:
    key = tmp_path / "tls.key"
    key.touch()
    assert error(f"--ssl_keyfile={key}") == "--ssl_keyfile is given without --ssl_certfile: HTTPS needs both"
    message = error(f"--ssl_keyfile={key}", "--ssl_certfile=/no/file")
    assert message == "--ssl_certfile: expected a file that exists, got '/no/file'"
    assert config(f"--ssl_keyfile={key}", f"--ssl_certfile={key}").ssl_certfile == str(key)


def test_certificates_of_the_predictor_must_exist_with_tls(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.touch()
    tls = "--predictor_use_ssl"
    assert config(tls, REQUESTS_CA_BUNDLE=str(bundle)).predictor_ca_file == str(bundle)
    assert config(tls, SSL_CERT_DIR=f"/no/folder:{tmp_path}").predictor_ca_path == f"/no/folder:{tmp_path}"
    folder = config(tls, REQUESTS_CA_BUNDLE=str(tmp_path))
    assert (folder.predictor_ca_file, folder.predictor_ca_path) == (None, str(tmp_path))
    assert config(REQUESTS_CA_BUNDLE="/no/file").predictor_ca_file == "/no/file"
    assert error(tls, REQUESTS_CA_BUNDLE="/no/file").startswith("REQUESTS_CA_BUNDLE: expected a file that exists")
    assert error(tls, SSL_CERT_DIR="/no/folder").startswith("SSL_CERT_DIR: expected a folder that exists")


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (["--htp_port=1"], {}, "unknown flag --htp_port is refused (--strict_flags); did you mean --http_port?"),
        (["a", "b"], {}, "arguments that belong to no flag are refused (--strict_flags): 'a', 'b'"),
        ([], {"HF_TRANSFORMER_WORKER": "2"}, "unknown variable HF_TRANSFORMER_WORKER is refused (--strict_flags)"),
    ],
    ids=["flag", "argument", "variable"],
)
def test_strict_flags_refuse_what_is_unknown(argv: list[str], environ: dict[str, str], message: str) -> None:
    assert message in error(*argv, "--strict_flags", **environ)
    assert message in error(*argv, HF_TRANSFORMER_STRICT_FLAGS="true", **environ)
    assert config(*argv, HF_TRANSFORMER_STRICT_FLAGS="false", **environ) == config()
    # Flags of KServe without effect, and deprecated names, stay notes.
    assert len(notes("--strict_flags", "--dtype=auto", "--protocol=v2")) == 2


@pytest.mark.parametrize(
    ("text", "host", "tls"),
    [
        ("triton", "triton", False),
        ("bert-predictor.default", "bert-predictor.default", False),
        ("triton:8000", "triton:8000", False),
        ("10.0.0.1:80", "10.0.0.1:80", False),
        ("::1", "[::1]", False),
        ("[::1]", "[::1]", False),
        ("[fe80::1]:8001", "[fe80::1]:8001", False),
        ("http://triton:8000", "triton:8000", False),
        ("HTTPS://triton", "triton", True),
        ("https://triton:8443/", "triton:8443", True),
    ],
)
def test_the_predictor_s_address_has_a_host_and_maybe_a_scheme_and_port(text: str, host: str, tls: bool) -> None:
    for parsed in (config(f"--predictor_host={text}"), config(PREDICTOR_HOST=text)):
        assert (parsed.predictor_host, parsed.predictor_use_ssl) == (host, tls)


WRONG_HOSTS = (
    *("http://triton/v2", "triton/", "user@triton", "triton:http", "two words", "http://"),
    *("[::1", "[::g]:80", "[1.2.3.4]", "triton:"),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, "HOST or HOST:PORT without a path") for text in WRONG_HOSTS),
        ("triton:0", "a port from 1 to 65535"),
        ("triton:65536", "a port from 1 to 65535"),
        ("grpc://triton", "a scheme of http or https"),
    ],
)
def test_a_wrong_address_of_the_predictor_is_refused(text: str, expected: str) -> None:
    message = error("--predictor_host", text)
    assert message.startswith(f"--predictor_host: expected {expected}") and message.endswith(f"got {text!r}")


def test_the_port_is_appended_to_an_address_without_one() -> None:
    parsed, logged = parse(PREDICTOR_HOST="triton", PREDICTOR_PORT="8443")
    assert (parsed.predictor_host, parsed.predictor_port, logged) == ("triton:8443", 8443, [])
    assert config("--predictor_host=::1", "--predictor_port=90").predictor_host == "[::1]:90"
    parsed, logged = parse(PREDICTOR_PORT="8443")
    assert (parsed.predictor_host, parsed.predictor_port) == ("triton:8000", 8000)
    assert logged == ["PREDICTOR_PORT is ignored: --predictor_host has the port 8000"]
    assert notes(PREDICTOR_PORT="8000") == []
    openshift = {"PREDICTOR_HOST": "bert-predictor", "PREDICTOR_PORT": "8443", "PREDICTOR_PROTOCOL": "https"}
    expected = Config(predictor_host="bert-predictor:8443", predictor_port=8443, predictor_use_ssl=True)
    assert parse(**openshift) == (expected, [])
    for text in ("0", "65536", "http"):
        expected_error = f"PREDICTOR_PORT: expected an integer from 1 to 65535, got '{text}'"
        assert error("--predictor_host=triton", PREDICTOR_PORT=text) == expected_error


def test_the_predictor_s_address_is_required() -> None:
    message = error(PREDICTOR_HOST="")
    assert message.startswith("--predictor_host is required: ")
    assert message.endswith(" --predictor_host=localhost:8000")


def test_the_scheme_overrides_predictor_use_ssl() -> None:
    parsed, logged = parse("--predictor_host=http://triton", "--predictor_use_ssl=true")
    assert not parsed.predictor_use_ssl
    assert logged == ["--predictor_use_ssl is ignored: --predictor_host begins with http://"]
    assert notes("--predictor_host=https://triton", "--predictor_use_ssl") == []


def test_without_a_predictor_no_host_is_required() -> None:
    parsed, warnings = parse_config(["--predictor_protocol=none"], {})
    assert (parsed.predictor_protocol, parsed.predictor_host, warnings) == ("none", "", [])
    assert notes("--predictor_protocol=none") == ["--predictor_host is ignored: --predictor_protocol is none"]
    variables = {"PREDICTOR_HOST": "triton", "PREDICTOR_PROTOCOL": "none", "REQUESTS_CA_BUNDLE": "/missing"}
    parsed, warnings = parse_config(["--predictor_use_ssl"], variables)
    assert parsed.predictor_host == "" and warnings == ["PREDICTOR_HOST is ignored: PREDICTOR_PROTOCOL is none"]
