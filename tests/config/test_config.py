"""Flag, variables, default and refused values of every option."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from operator import attrgetter

import pytest

from hf_transformer.config.option import LOG_LEVEL, PREFIX, Option, options_of
from hf_transformer.config.options import IGNORED, Config, all_options, default_threads
from tests.support.configuring import PATHS, config, error, example, least, notes, parse

SIMPLE = [option for option in options_of(Config) if option.name not in ("predictor_host", "predictor_port")]
PARTNER = {
    "ssl_certfile": "--ssl_keyfile",
    "ssl_keyfile": "--ssl_certfile",
    "enable_model_control": "--model_control_keys_file",
}
BAD = {
    "model_name": "a/infer",
    "model_dir": "s3://bucket/model",
    "host": "http://localhost",
    "access_log_format": "%(nonsense)s",
    "otlp_endpoint": "collector:4318",
    "cors_allow_origin": "example.com",
    "allowed_hosts": "localhost:8080",
    "allowed_image_hosts": "https://a.example",
    **dict.fromkeys(PATHS, "/no/such/file"),
}


def bad_text(option: Option) -> str:
    match option.convert.metavar:
        case "INT":
            return str(least(option) - 1)
        case "NUMBER" | "SECONDS":
            return "nan"
        case _ if option.boolean or option.convert is LOG_LEVEL or " or " in option.convert.expects:
            return BAD.get(option.name, "maybe")
    return BAD.get(option.name, " ")


def partner(option: Option) -> list[str]:
    return [f"{PARTNER[option.name]}={__file__}"] if option.name in PARTNER else []


ids = attrgetter("name")


def test_the_default_of_every_option() -> None:
    parsed, logged = parse()
    assert logged == []
    assert parsed == Config(predictor_host="triton:8000", predictor_port=8000)
    expected = {option.name: option.default for option in SIMPLE} | {"max_asyncio_workers": default_threads()}
    assert {name: getattr(parsed, name) for name in expected} == expected


def test_defaults_are_those_of_kserve() -> None:
    parsed = config()
    assert (parsed.http_port, parsed.workers, parsed.timeout_keep_alive) == (8080, 1, 65)
    assert (parsed.model_name, parsed.model_dir, parsed.model_id) == ("model", "/mnt/models", None)
    assert (parsed.predictor_request_timeout_seconds, parsed.predictor_request_retries) == (600.0, 0)
    assert parsed.enable_latency_logging and not parsed.enable_log_requests


def test_model_dir_is_a_local_folder() -> None:
    for uri in ("file:///models/a%20b", "file://localhost/models/a b"):
        assert config(f"--model_dir={uri}").model_dir == "/models/a b"
    for uri in ("s3://bucket/model", "file://host/models", "hf://org/model"):
        message = error(f"--model_dir={uri}")
        assert "storage-initializer" in message and "--model_id" in message


def test_the_last_flag_and_the_first_variable_win() -> None:
    assert config("--http_port=abc", "--http-port", "81", "--http_port=82").http_port == 82
    assert config(HF_TRANSFORMER_MODEL_NAME="a", INFERENCE_SERVICE_NAME="b").model_name == "a"
    assert config(LOG_LEVEL="error", KSERVE_LOGLEVEL="debug").log_level == 40
    assert config("--grpc_max_send_message_length", "-1").grpc_max_send_message_length == -1


def test_a_log_level_is_a_name_or_a_number() -> None:
    for text, level in (("INFO", 20), ("warn", 30), ("15", 15), ("trace", 5)):
        assert config(LOG_LEVEL=text).log_level == level


def test_a_long_value_is_cut_in_messages() -> None:
    assert len(error("--http_port=" + "1" * 100_000)) < 300


@pytest.mark.parametrize("option", all_options(), ids=ids)
def test_only_a_boolean_flag_may_be_bare(option: Option) -> None:
    if not option.boolean:
        assert error(option.flag).startswith(f"{option.flag}: the value is missing; expected ")
        assert error(option.flag, "--workers=1").startswith(f"{option.flag}: the value is missing")
        return

    def value(*argv: str) -> object:
        return getattr(config(*argv, *partner(option)), option.name)

    assert value(option.flag) is value(option.flag, "--workers=1") is True
    for word, expected in (("true", True), ("1", True), ("YES", True), ("false", False), ("0", False), ("off", False)):
        assert value(option.flag, word) is value(f"{option.flag}={word}") is expected
    assert error(option.flag, "maybe").startswith(f"{option.flag}: expected true or false")


@pytest.mark.parametrize("option", SIMPLE, ids=ids)
def test_every_option_is_set_by_its_flag_or_one_of_its_variables(option: Option) -> None:
    text, value = example(option)
    assert value != option.default
    hyphens = f"--{option.name.replace('_', '-')}"
    for argv in ([f"{option.flag}={text}"], [option.flag, text], [hyphens, text]):
        assert getattr(config(*argv, *partner(option)), option.name) == value
    for variable in option.all_variables:
        setting = "https" if (variable.name, option.name) == ("PREDICTOR_PROTOCOL", "predictor_use_ssl") else text
        assert getattr(config(*partner(option), **{variable.name: setting}), option.name) == value
    bad = {option.all_variables[0].name: bad_text(option)}
    assert getattr(config(option.flag, text, *partner(option), **bad), option.name) == value, "a flag wins"


@pytest.mark.parametrize("option", [option for option in SIMPLE if not option.may_be_empty], ids=ids)
def test_an_empty_variable_counts_as_unset(option: Option) -> None:
    environ = {variable.name: " " for variable in option.all_variables}
    assert config(**environ) == config()


@pytest.mark.parametrize("option", SIMPLE, ids=ids)
def test_a_bad_value_names_its_source_and_what_was_expected(option: Option) -> None:
    bad = bad_text(option)
    for source in (option.flag, option.all_variables[0].name):
        if not bad.strip() and not source.startswith("-"):
            continue  # an empty variable counts as unset
        argv, environ = ((f"{source}={bad}",), {}) if source.startswith("-") else ((), {source: bad})
        message = error(*argv, *partner(option), **environ)
        assert message.startswith(f"{source}: ")
        assert "expected " in message and (bad in message or option.name == "hf_token")


@pytest.mark.parametrize("text", ["a,b", "a b", "a, b", '["a", "b"]', "['a','b']", "[a,b]"])
def test_a_list_of_names_is_separated_by_commas_or_spaces(text: str) -> None:
    assert config(f"--tensor_input_names={text}").tensor_input_names == ("a", "b")
    assert config("--tensor_output_names", text).tensor_output_names == ("a", "b")
    assert config("--tensor_output_names", "a", "b", "--workers=2").tensor_output_names == ("a", "b")
    assert "expected different names" in error("--tensor_input_names=a,a")


def test_a_config_is_immutable_masks_its_secret_and_is_pickled_for_workers() -> None:
    parsed, logged = parse("--hf_token=hf_secret", "--tensor_input_names=a,b")
    assert parsed.hf_token == "hf_secret"
    assert logged == ["--hf_token shows in process lists: better set HF_TOKEN"]
    assert notes(HF_TOKEN="hf_secret") == []
    again = pickle.loads(pickle.dumps(parsed))
    assert again == parsed
    for copy in (parsed, again):
        assert "hf_secret" not in repr(copy) and "'***'" in repr(copy)
    with pytest.raises(FrozenInstanceError):
        parsed.workers = 2  # type: ignore[misc]


def test_every_flag_and_variable_is_declared_once() -> None:
    names = [name for option in all_options() for name in (option.name, *option.aliases)]
    assert len(set(names)) == len(names) and len(fields(Config)) + len(IGNORED) == len(all_options())
    users: dict[str, list[str]] = {}
    for option in all_options():
        for variable in option.all_variables:
            users.setdefault(variable.name, []).append(option.name)
    shared = {name: options for name, options in users.items() if len(options) > 1}
    assert shared == {"PREDICTOR_PROTOCOL": ["predictor_protocol", "predictor_use_ssl"]}
    for option in all_options():
        first, *further = [variable.name for variable in option.all_variables]
        assert first == PREFIX + option.name.upper()
        # Kubernetes may set bare names with these endings for its services.
        bare = {name for name in further if name.endswith(("_PORT", "_HOST"))}
        assert bare <= {"PREDICTOR_HOST", "PREDICTOR_PORT"}


@pytest.mark.parametrize(
    "name",
    ["BAAI/bge-small-en-v1.5", "accounts/x/models/llama-v3", "llama3:8b", "a.b/..c", "ready", "infer/a", "a/inference"],
)
def test_names_of_hubs_are_names_and_aliases(name: str) -> None:
    parsed = config(f"--model_name={name}", "--predictor_model=m", f"--aliases=x,{name}2", f"--adapters={name}3")
    assert (parsed.model_name, parsed.aliases, parsed.adapters) == (name, ("x", f"{name}2"), (f"{name}3",))


@pytest.mark.parametrize(
    "name",
    [
        *("/a", "a/", "a//b", "..", ".", "../a", "a/../b", "a/.", "a b", "a?b", "a#b", "a%2Fb"),
        *("a/infer", "a/versions/1", "a/b/ready", "a/info", "a/load", "a/stats/b", "x:predict", "a/x:tokenize"),
    ],
)
def test_names_whose_paths_are_other_routes_are_refused(name: str) -> None:
    assert (
        f"--model_name: expected a name without spaces, ? # % and ends of routes such as /infer, :predict, got {name!r}"
        in error(f"--model_name={name}", "--predictor_model=m")
    )
    for flag in () if " " in name else ("--aliases", "--adapters"):
        assert f"{flag}: expected different names without ? # % and ends of routes" in error(f"{flag}={name},")


def test_a_name_with_a_slash_needs_the_name_at_the_predictor() -> None:
    message = "--model_name: expected a name without /, or --predictor_model with its name in Triton, got 'a/b'"
    assert error("--model_name=a/b") == message
    assert "--predictor_model: expected a name without spaces and / ? # %" in error("--predictor_model=a/b")
    assert config("--model_name=a/b", "--predictor_protocol=none").model_name == "a/b"
