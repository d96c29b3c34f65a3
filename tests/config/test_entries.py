"""Settings of several models: the file of --models, and the folders of --model_repository."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

from hf_transformer.app.models import watched_files
from hf_transformer.config import entries
from hf_transformer.config.entries import MAX_MODELS, ModelEntries, read_repository
from hf_transformer.config.option import options_of
from hf_transformer.config.options import Config, all_options, parse_config
from hf_transformer.errors import ConfigError
from tests.support.configuring import HOST, config, error, notes, parse

TOKEN = "hf_secret"
NAME = "a name without spaces, ? # % and ends of routes such as /infer, :predict"
NAMES = "different names without ? # % and ends of routes such as /infer, :predict, separated by commas"
SHAPE = "FILE: expected a list of models, or only the key models with one, got "


def read(path: Path | str, *argv: str, **environ: str) -> tuple[list[Config], list[str]]:
    """The models of a file, with a host of the predictor as default."""
    return ModelEntries([f"--models={path}", HOST, *argv], environ).read()


def read_text(folder: Path, text: str | bytes, *argv: str, **environ: str) -> tuple[list[Config], list[str]]:
    path = folder / "models.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path, *argv, **environ)


def refusal(folder: Path, text: str | bytes, *argv: str, **environ: str) -> str:
    """The message about a file, with FILE for its path."""
    with pytest.raises(ConfigError) as caught:
        read_text(folder, text, *argv, **environ)
    message = str(caught.value)
    assert "\n" not in message and TOKEN not in message
    return message.replace(str(folder / "models.yaml"), "FILE")


def test_the_one_model_of_plain_flags() -> None:
    argv = [HOST, "--model_name=bert", "--max_length=128"]
    entries = ModelEntries(argv, {"TASK": "rerank"})
    assert entries.path is None
    expected, known = parse_config(argv, {"TASK": "rerank"})
    assert known and entries.read() == ([expected], []), "parse_config already returns the warnings"


def test_an_entry_equals_a_service_of_this_model_alone(tmp_path: Path) -> None:
    text = """
    - model_name: bert
      aliases: [text, bert-base]
      max-model-len: 128
      temperature: 0.5
      do_sample: yes
      predictor_host: other:9000
      chat_template: |
        {{ messages }}
        end
    - {model_name: e5, task: "text_embedding", tensor_output_names: "a,b", predictor_model: ensemble}
    """
    (bert, e5), warnings = read_text(tmp_path, text, "--max_model_len=64", "--workers=3", TASK="fill_mask")
    assert warnings == []
    alone = "--workers=3", "--task=fill_mask", "--model_name=bert", "--aliases=text,bert-base", "--max_model_len=128"
    more = "--temperature=0.5", "--do_sample", "--chat_template={{ messages }}\nend\n", "--predictor_host=other:9000"
    assert bert == config(*alone, *more)
    assert e5 == config(
        *("--workers=3", "--task=text_embedding", "--model_name=e5", "--max_model_len=64"),
        *("--tensor_output_names=a,b", "--predictor_model=ensemble"),
    )


@pytest.mark.parametrize(
    "text", ['[{"model_name": "a"}]', '{"models":[{"model_name":"a"}]}', "models:\n- model_name: a"]
)
def test_a_file_is_a_list_or_the_key_models_with_one(tmp_path: Path, text: str) -> None:
    assert read_text(tmp_path, text) == ([config("--model_name=a")], [])


@pytest.mark.parametrize("text", ["[]", "models: []", '\ufeff{"models": []}'])
def test_a_list_may_be_empty(tmp_path: Path, text: str) -> None:
    assert read_text(tmp_path, text) == ([], [])


MERGING = "- &a0 {model_name: a, task: rerank}\n"
BOMBS = {
    "exponential": MERGING
    + "".join(f"- &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], model_name: m{n}}}\n" for n in range(1, 9)),
    "chain": MERGING + "".join(f"- &a{n} {{<<: *a{n - 1}, model_name: m{n}}}\n" for n in range(1, 1000)),
    "aliases": MERGING + "- *a0\n" * 60_000,
    "itself": "- &a {<<: *a, model_name: a}\n",
    "each-other": "- &a {model_name: a, <<: &b {<<: *a}}\n",
    "lists": f"- {{model_name: a, aliases: &a [{', '.join(f'n{n}' for n in range(1000))}]}}\n"
    + "".join(f"- {{model_name: m{n}, aliases: *a}}\n" for n in range(500)),
    "texts": f"- {{model_name: a, model_dir: &a {'x' * 100_000}}}\n"
    + "".join(f"- {{model_name: m{n}, model_dir: *a}}\n" for n in range(500)),
    "lists-of-lists": "- &a0 [x, y]\n" + "".join(f"- &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
    "list-of-itself": "- {model_name: a, aliases: &a [*a]}\n",
}


@pytest.mark.parametrize("name", [*BOMBS])
def test_mappings_that_multiply_are_refused(tmp_path: Path, name: str) -> None:
    expected = (
        "expected (at most (100000 settings|1000 models)|flags and their values|a .* that does not contain itself)"
    )
    assert re.search(expected, refusal(tmp_path, BOMBS[name]))


def test_a_file_has_a_limited_number_of_models(tmp_path: Path) -> None:
    text = "\n".join(f"- {{model_name: m{n}}}" for n in range(MAX_MODELS))
    assert len(read_text(tmp_path, text)[0]) == MAX_MODELS
    assert "expected at most 1000 models, got 1001" in refusal(tmp_path, f"{text}\n- {{model_name: a}}")


def test_a_repository_has_a_limited_number_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MAX_MODELS", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "vocab.txt").write_text("[UNK]")
    with pytest.raises(ConfigError, match="expected at most 2 models, got 3"):
        read_repository(str(tmp_path))


@pytest.mark.parametrize("ascii", [True, False])
def test_json_as_programs_write_it(tmp_path: Path, ascii: bool) -> None:
    template = '\U0001f600 \\ud83d\\ude00 "\\/\n'
    entry = {"model_name": "a", "chat_template": template, "top_k": 5, "do_sample": True, "temperature": 1e-7}
    (parsed,), _ = read_text(tmp_path, json.dumps([entry], indent="\t", ensure_ascii=ascii))
    assert (parsed.chat_template, parsed.top_k, parsed.do_sample, parsed.temperature) == (template, 5, True, 1e-7)


def test_a_key_of_yaml_may_merge_another_entry(tmp_path: Path) -> None:
    base, more = "- &base {model_name: a, task: rerank, top_k: 5}", "- &more {<<: *base, model_name: b}"
    configs, _ = read_text(tmp_path, f"{base}\n{more}\n- {{<<: *more, model_name: c}}")
    assert [(one.model_name, one.task, one.top_k) for one in configs] == [(name, "rerank", 5) for name in "abc"]


def test_a_folder_or_id_of_an_entry_replaces_both_flags(tmp_path: Path) -> None:
    text = "[{model_name: a, model_dir: /a}, {model_name: b, model_id: org/b}, {model_name: c}]"
    configs, warnings = read_text(tmp_path, text, "--model_id=org/x")
    assert [one.model_id for one in configs] == [None, "org/b", "org/x"] and configs[0].model_dir == "/a"
    assert warnings == []
    configs, warnings = read_text(tmp_path, text, "--model_dir=/x")
    assert [one.model_id for one in configs] == [None, "org/b", None] and configs[2].model_dir == "/x"
    assert warnings == []


def test_an_empty_list_clears_the_flags_of_the_command_line(tmp_path: Path) -> None:
    (parsed,), _ = read_text(tmp_path, "[{model_name: a, adapters: []}]", "--adapters=x", "--tensor_input_names=ids")
    assert (parsed.adapters, parsed.tensor_input_names) == ((), ("ids",))


def test_each_entry_may_name_the_predictor_instead_of_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("- {model_name: a, predictor_host: 'https://one'}\n- {model_name: b, predictor_host: two:80}")
    argv = [f"--models={path}", "--predictor_port=8001", "--predictor_cert_file=/no/file", "--predictor_use_ssl"]
    service, known = parse_config(argv[:3], {})
    assert (service.predictor_host, service.models, known) == ("", str(path), [])
    (a, b), warnings = ModelEntries(argv[:2], {}).read()
    assert (a.predictor_host, a.predictor_use_ssl, b.predictor_host) == ("one:8001", True, "two:80")
    assert warnings == [f"--predictor_port is ignored: {path}: models[1] (b): predictor_host has the port 80"]
    with pytest.raises(ConfigError) as caught:
        ModelEntries(argv, {}).read()
    reason = "--predictor_cert_file is given without --predictor_key_file: mutual TLS needs both"
    assert str(caught.value) == f"{path}: models[0] (a): {reason}"


def test_warnings_name_the_entry_and_do_not_repeat_those_of_the_flags(tmp_path: Path) -> None:
    text = "- {model_name: a, max_length: 5, model_dir: /a, model_id: b, hf_token: hf_secret}"
    entry = f"{tmp_path / 'models.yaml'}: models[0] (a)"
    _, warnings = read_text(tmp_path, text, "--protocol=v2", "--dtype=auto", "--hf_token=x", "--unknown=1")
    assert warnings == [
        f"{entry}: max_length is deprecated: use max_model_len; version 2.0.0 does not know it",
        f"{entry}: model_dir is ignored: {entry}: model_id is given",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", SHAPE + "nothing"),
        ("null", SHAPE + "null"),
        ("bert", SHAPE + "a text"),
        ("{models: {a: 1}}", SHAPE + "a mapping"),
        ("{models: [], more: 1}", SHAPE + "a mapping"),
        ("- a: [", "FILE is not YAML: line 2, column 1: did not find expected node content"),
        ("- a: *hf_secret", "FILE is not YAML: line 1, column 6: found undefined alias"),
        ("[]\n---\n[]", "FILE is not YAML: line 2, column 1: but found another document"),
        (
            "- <<: 1",
            "FILE is not YAML: line 1, column 7: expected a mapping or list of mappings for merging, but found scalar",
        ),
        ("- a: \x01", "FILE is not YAML: control characters are not allowed"),
        ("[" * 100_000, "FILE is not YAML: line 1, column 1001: exceeded maximum nesting depth"),
        (b"- a: \xff", "FILE is not YAML: expected text in UTF-8"),
        (b" " * (4 * 2**20 + 1), "FILE is too large: expected at most 4194304 bytes"),
        ("- bert", "FILE: models[0]: expected flags and their values, got a text"),
        ("[null]", "FILE: models[0]: expected flags and their values, got null"),
        ("[[]]", "FILE: models[0]: expected flags and their values, got a list"),
        ("- task: rerank", "FILE: models[0]: model_name is missing"),
        ("[{}]", "FILE: models[0]: model_name is missing"),
        ("- model_name: a\n  task: x\n  task: y", "FILE: models[0]: the key 'task' is repeated in line 3"),
        ('[{"model_name": "a", "model_name": "b"}]', "FILE: models[0]: the key 'model_name' is repeated in line 1"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert refusal(tmp_path, text) == message


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("max_len: 5", "unknown key 'max_len'; did you mean max_model_len?"),
        ("--task: rerank", "unknown key '--task'; did you mean task?"),
        ("worker: 5", "unknown key 'worker'"),
        ("hf_token:hf_secret", "unknown key 'hf_token'; did you mean hf_token?"),
        ("1: 5", "unknown key '1'"),
        ("[a]: 5", "unknown key a list"),
        ("'\u202e\\x1b': 5", "unknown key '\\u202e\\\\x1b'"),
        ("workers: 5", "workers is a flag of the whole service, not of a model"),
        ("host: x", "host is a flag of the whole service, not of a model"),
        ("models: x", "models is a flag of the whole service, not of a model"),
        ("model_repository: x", "model_repository is a flag of the whole service, not of a model"),
        ("ready_when: any", "ready_when is a flag of the whole service, not of a model"),
        ("dtype: auto", "dtype has no effect here: the predictor holds the weights"),
        ("task: null", "task: expected a text, got null"),
        ("task: [a]", "task: expected a text, got a list"),
        ("task: ''", "task: expected a text, got ''"),
        ("aliases: {a: 1}", f"aliases: expected {NAMES}, got a mapping"),
        ("aliases: [x, null]", f"aliases: expected {NAMES}, got null"),
        ("aliases: [x, 'y z']", f"aliases: expected {NAMES}, got 'x,y z'"),
        ("aliases: [x, x]", f"aliases: expected {NAMES}, got 'x,x'"),
        ("aliases: [x/ready]", f"aliases: expected {NAMES}, got 'x/ready'"),
        ("max_model_len: many", "max_model_len: expected an integer of 1 or more, got 'many'"),
        ("max-length: 0", "max-length: expected an integer of 1 or more, got '0'"),
        ("do_sample: 2", "do_sample: expected true or false (or 1/0, yes/no, on/off), got '2'"),
        ("hf_token: {hf_secret: 1}", "hf_token: expected a text, got a mapping"),
        ("hf_token: 2024-01-01", "hf_token: expected quotes around what YAML reads as another value"),
        ("aliases: [a]", "aliases: expected names that differ from --model_name, got 'a'"),
        ("aliases: [x], adapters: [y, x]", "adapters: expected names that differ from --aliases, got 'y,x'"),
        ("predictor_host: x://y", "predictor_host: expected a scheme of http or https, or none, got 'x://y'"),
    ],
)  # fmt: skip
def test_a_wrong_key_or_value_names_file_entry_and_key(tmp_path: Path, pair: str, message: str) -> None:
    text = f"[{{model_name: first}}, {{model_name: a, {pair}}}]"
    assert refusal(tmp_path, text, HF_TOKEN=TOKEN) == f"FILE: models[1] (a): {message}"


@pytest.mark.parametrize("text", ["1e3", "0123", "0x10", "1.10", "1_000", "1:30", "2024-01-01", "true", "off", "!x y"])
def test_a_text_that_yaml_reads_as_another_value_needs_quotes(tmp_path: Path, text: str) -> None:
    message = refusal(tmp_path, f"- model_revision: {text}\n  model_name: a")
    expected = "expected quotes around what YAML reads as another value"
    shown = "y" if text == "!x y" else text
    assert message == f"FILE: models[0] (a): model_revision: {expected}, got '{shown}'"
    (parsed,), _ = read_text(tmp_path, f"- model_name: a\n  model_revision: '{text}'")
    assert parsed.model_revision == text


def test_numbers_may_be_names_and_yaml_s_words_booleans(tmp_path: Path) -> None:
    (parsed,), _ = read_text(tmp_path, "- {model_name: 7, aliases: [8, 9], do_sample: on, top_p: 1e-3, top_k: '010'}")
    assert (parsed.model_name, parsed.aliases, parsed.do_sample) == ("7", ("8", "9"), True)
    assert (parsed.top_p, parsed.top_k) == (0.001, 10)
    expected = "expected quotes around what YAML reads as another value"
    message = refusal(tmp_path, "- {model_name: a, top_k: 010, on_overflow: error}")
    assert message == f"FILE: models[0] (a): top_k: {expected}, got '010'", "010 is 8 in YAML"


def test_a_wrong_name_is_named_once(tmp_path: Path) -> None:
    expected = f"model_name: expected {NAME}"
    assert refusal(tmp_path, "- model_name: a b") == f"FILE: models[0] (a b): {expected}, got 'a b'"
    assert refusal(tmp_path, "- model_name: null") == f"FILE: models[0]: {expected}, got null"
    assert refusal(tmp_path, '- model_name: "a\\nb"') == f"FILE: models[0]: {expected}, got 'a\\nb'"


def test_rules_between_a_key_and_a_flag_name_both(tmp_path: Path) -> None:
    message = refusal(tmp_path, "- {model_name: a, return_raw_logits: true}", "--return_probabilities")
    both = "--return_probabilities and FILE: models[0] (a): return_raw_logits exclude each other: give one of them"
    assert message == both
    assert read_text(tmp_path, "- {model_name: a, return_raw_logits: true, return_probabilities: no}", both[:22])
    with pytest.raises(ConfigError) as caught:
        ModelEntries([f"--models={tmp_path / 'models.yaml'}"], {}).read()
    reason = "--predictor_host is required: where Triton listens, such as --predictor_host=localhost:8000"
    assert str(caught.value) == f"{tmp_path / 'models.yaml'}: models[0] (a): {reason}"


@pytest.mark.parametrize(
    ("second", "name"),
    [
        ("model_name: a", "a"),
        ("model_name: x", "x"),
        ("model_name: b, aliases: [c, a]", "a"),
        ("model_name: b, adapters: [y]", "y"),
    ],
)
def test_two_entries_share_no_name(tmp_path: Path, second: str, name: str) -> None:
    message = refusal(tmp_path, f"[{{model_name: a, aliases: [x], adapters: [y]}}, {{{second}}}]")
    own = second.removeprefix("model_name: ")[0]
    assert message == f"FILE: models[1] ({own}): the name {name!r} is taken by FILE: models[0] (a)"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert str(caught.value) == f"{path} can't be read: {reason}"


def test_workers_get_a_pickled_copy_that_reads_the_file_again(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("- model_name: a")
    entries = ModelEntries([f"--models={path}", HOST], {"HF_TOKEN": TOKEN})
    assert TOKEN not in repr(entries)
    path.write_text("- model_name: b")
    copy = pickle.loads(pickle.dumps(entries))
    assert copy.path == str(path)
    assert copy.read() == entries.read() == ([config("--model_name=b", HF_TOKEN=TOKEN)], [])


def model(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in ({"config": "{}", "tokenizer": "{}"} | files).items():
        if text:
            (folder / f"{name}.json").write_text(text)


def test_every_folder_of_a_repository_with_a_tokenizer_is_a_model(tmp_path: Path) -> None:
    model(tmp_path / "b")
    model(tmp_path / "a")
    old = tmp_path / "old"
    model(old / "0_Transformer")
    (old / "modules.json").write_text('[{"path": "0_Transformer"}]')
    model(tmp_path / ".hidden")
    model(tmp_path / "a b")
    model(tmp_path / "plain", config="")
    model(tmp_path / "weights", tokenizer="")
    model(tmp_path / "broken", tokenizer="", tokenizer_config="{")
    (tmp_path / "README").touch()
    argv = [f"--model_repository=file://{tmp_path}", HOST, "--model_id=org/x", "--max_model_len=8"]
    entries = ModelEntries(argv, {})
    assert entries.path == str(tmp_path)
    configs, warnings = entries.read()
    assert configs == [
        config(f"--model_name={name}", f"--model_dir={tmp_path / name}", "--max_model_len=8")
        for name in ("a", "b", "old")
    ]
    reasons = {
        "a b": f"expected {NAME}",
        "broken": f"{tmp_path}/broken/tokenizer_config.json is not valid JSON: unexpected end of data: line 1 column 2 "
        "(char 1)",
        "plain": "no config.json",
        "weights": "no tokenizer files",
    }
    assert [w.partition(" (char")[0] for w in warnings] == [
        f"{tmp_path / name} is not served: {reason}".partition(" (char")[0] for name, reason in reasons.items()
    ]
    assert parse_config(argv, {})[1] == ["--model_id is ignored: --model_repository is given"]


def test_folders_of_a_repository_share_no_alias_of_the_flags(tmp_path: Path) -> None:
    model(tmp_path / "a")
    model(tmp_path / "b")
    argv = [f"--model_repository={tmp_path}", HOST]
    for more, message in (
        (["--aliases=x"], f"{tmp_path}/b: the name 'x' is taken by {tmp_path}/a"),
        (["--aliases=x,b"], f"{tmp_path}/b: --aliases: expected names that differ from --model_name, got 'x,b'"),
    ):
        with pytest.raises(ConfigError) as caught:
            ModelEntries([*argv, *more], {}).read()
        assert str(caught.value) == message


def test_a_repository_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        ModelEntries([f"--model_repository={tmp_path / 'none'}", HOST], {}).read()
    assert str(caught.value) == f"{tmp_path / 'none'} can't be read: No such file or directory"


def test_the_file_and_the_repository_exclude_each_other() -> None:
    message = error("--models=a", HF_TRANSFORMER_MODEL_REPOSITORY="b")
    assert message == "--models and HF_TRANSFORMER_MODEL_REPOSITORY exclude each other: give one of them"
    with pytest.raises(ConfigError, match="exclude each other"):
        ModelEntries(["--models=a", "--model_repository=b"], {})


def test_the_names_of_one_model_differ() -> None:
    assert error("--aliases=a,model") == "--aliases: expected names that differ from --model_name, got 'a,model'"
    assert (
        error("--model_name=x", "--adapters=x") == "--adapters: expected names that differ from --model_name, got 'x'"
    )
    message = error("--adapters=b,a", HF_TRANSFORMER_ALIASES="a")
    assert message == "--adapters: expected names that differ from --aliases, got 'b,a'"
    parsed = config("--aliases", "a", "b", "--adapters=c")
    assert (parsed.aliases, parsed.adapters) == (("a", "b"), ("c",))


def test_options_of_a_model_and_of_the_service() -> None:
    groups = {option.group: option.per_model for option in all_options()}
    assert [group for group, per_model in groups.items() if per_model] == [
        *("Model and tokenizer", "Answers", "Text generation", "Predictor")
    ]
    several = [option.name for option in options_of(Config) if option.group == "Several models"]
    assert several == ["models", "model_repository", "ready_when", "enable_model_control", "model_control_keys_file"]
    parsed, logged = parse("--ready_when=ANY", "--enable_model_control", "--model_control_keys_file=keys")
    assert (parsed.ready_when, parsed.enable_model_control, logged) == ("any", True, [])
    assert notes("--predictor_model=x") == []


def test_an_entry_without_a_predictor_needs_no_host(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("- {model_name: a, predictor_protocol: none}\n- {model_name: b, predictor_host: triton}\n")
    configs, warnings = ModelEntries([f"--models={path}"], {}).read()
    assert [(one.predictor_protocol, one.predictor_host) for one in configs] == [("none", ""), ("v2", "triton")]
    assert warnings == []


def test_links_to_themselves_are_neither_files_nor_folders(tmp_path: Path) -> None:
    """One of them in a folder stopped the changes of all models."""
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for link in (tmp_path / "loop", folder / "loop", folder / "vocab.txt"):
        link.symlink_to(link)
    (folder / "1_folder").symlink_to(folder)
    assert watched_files(str(tmp_path)) == [
        *(str(tmp_path), str(folder)),
        *(str(folder / "config.json"), str(folder / "1_folder" / "config.json")),
    ]
    assert read_repository(str(tmp_path)) == ([], [f"{folder} is not served: no tokenizer files"])
