"""Lists of facts on which users, their clients, manifests and dashboards rely: the surface of a version.

A fact is a name with a value, such as ``serve --max_instances`` with ``default 2048``, or ``POST /rerank body.top_n:
integer`` without one: one of the types of this field. A list has the sorted facts of a kind, with the alternatives of a
name in its line: ``NAME = VALUE :: ALTERNATIVE | ALTERNATIVE``. docs/stability.md says which lists are a promise.

    scripts/surface 0.16.0                     what is different from a release in tests/stable
    scripts/surface v1.0.0 .                   or between two of: such a release, a commit or tag, a folder
    scripts/surface --write tests/stable/1.0.0 writes the lists of this checkout, and how its services are started
    scripts/surface --new-names                writes the new names since the last release into docs/upgrading.md
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from scripts.document_facts import facts_of
from scripts.stable_starts import write_starts

ROOT = Path(__file__).resolve().parent.parent
STABLE = ROOT / "tests" / "stable"
UPGRADING = ROOT / "docs" / "upgrading.md"
NEW_NAMES = ("<!-- Written by scripts/surface --new-names. -->", "<!-- End of the new names. -->")
Facts = Mapping[str, str]
Difference = tuple[str, str, str | None, str | None]
"""The kind, the name, the value before and the value after; None where there is no such fact."""
KINDS = {
    "flags": "flags",
    "variables": "environment variables",
    "exit_codes": "exit codes",
    "routes": "routes and their statuses",
    "fields": "fields of bodies and answers",
    "errors": "statuses and codes of errors",
    "metrics": "metrics",
    "wire": "tensors of Triton's models",
    "export": "files of an exported folder",
    "chart": "values of the chart",
    "manifests": "fields of the manifests",
}
"""The lists by the names of their files. All but the last are a promise."""
PROMISES = tuple(KINDS)[:-1]


def declared_by(checkout: Path) -> dict[str, Any]:
    """What the package of a checkout declares, by scripts/surface_probe.py in a process of its own."""
    probe = [sys.executable, str(ROOT / "scripts" / "surface_probe.py")]
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(checkout)}
    output = subprocess.run(probe, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(json.loads(output))


def surface(checkout: Path) -> dict[str, Facts]:
    """All facts of a checkout, by kind."""
    return facts_in(checkout, declared_by(checkout))


def facts_in(checkout: Path, declared: Mapping[str, Any]) -> dict[str, Facts]:
    """All facts of a checkout whose package declares these things, by kind."""
    said = all_facts(declared["documents"].values())
    found = {
        "flags": {**flags(declared["options"]), **command_flags(declared["helps"])},
        "variables": dict(variables(declared["options"])),
        "exit_codes": dict(exit_codes(checkout)),
        "routes": routes(said),
        "fields": fields(said),
        "errors": dict.fromkeys(declared["errors"], ""),
        "metrics": dict(metrics(checkout)),
        "wire": dict(wire(checkout)),
        "export": dict.fromkeys(declared["exported"], ""),
        "chart": dict(chart(checkout)),
        "manifests": dict(manifests(checkout)),
    }
    return {kind: {one_line(name): one_line(found[kind][name]) for name in sorted(found[kind])} for kind in KINDS}


def one_line(text: str) -> str:
    return " ".join(text.split())


def flags(options: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Flags of ``serve`` with their default, and the old names of flags."""
    found = {}
    for option in options:
        found[f"serve {option['flag']}"] = f"default {option['default']}" if option["default"] else ""
        found |= {f"serve --{alias}": f"old name of {option['flag']}" for alias in option["aliases"]}
        if "|" in option["metavar"]:
            found |= {f"serve {option['flag']}: {value}": "" for value in option["metavar"].split("|")}
    return found


def command_flags(helps: Mapping[str, str]) -> dict[str, str]:
    """Flags of the other commands, with the choices that --help shows."""
    found = {}
    for command, text in helps.items():
        for line in text.partition("\noptions:")[2].splitlines() or text.splitlines():
            match = re.match(r"  (?:-\w, )?(--\w+)(?: \{([^}]+)\})?", line)
            if match:
                found[f"{command} {match[1]}"] = ""
                found |= {f"{command} {match[1]}: {choice}": "" for choice in (match[2] or "").split(",") if choice}
    return found


def variables(options: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for option in options:
        for variable in option["variables"]:
            yield f"{variable} of {option['flag']}", ""


def exit_codes(checkout: Path) -> Iterator[tuple[str, str]]:
    """The exit codes in the tables of the pages, such as ``doctor 2``; stability.md has those of ``serve``."""
    for page in sorted((checkout / "docs").glob("*.md")):
        command = {"stability": "serve"}.get(page.stem, page.stem)
        for table in re.findall(r"^\| exit code \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page.read_text("utf-8"), re.M):
            for row in table.splitlines():
                yield f"{command} {row.split('|')[1].strip()}", ""


def routes(facts: Iterable[str]) -> dict[str, str]:
    """Routes, their statuses and headers, by the facts of /openapi.json."""
    found = {}
    for fact in facts:
        if match := re.fullmatch(r"(\w+ \S+), (\d+)(: header .+)?", fact):
            found[match[1]] = ""
            found[f"{match[1]}: {match[2]}{match[3] or ''}"] = ""
        elif match := re.fullmatch(r"(\w+ \S+), (query|header) (.+): required (\w+)", fact):
            found[f"{match[1]} {match[2]} {match[3]}"] = "required" if match[4] == "True" else ""
    return found


def fields(facts: Iterable[str]) -> dict[str, str]:
    """Fields of bodies and answers with their types and values, by the facts of /openapi.json.

    An answer's errors are the 400's. The routes of a version of a model have the bodies of those without.
    """
    found: dict[str, str] = {}
    values: list[tuple[str, str]] = []
    for fact in facts:
        match = re.fullmatch(r"(\w+ \S+), (body|200|400)([^:]*): (\w+) ?(.*)", fact)
        if match is None or "/versions/" in match[1]:
            continue
        name, word, said = f"{match[1]} {match[2]}{match[3]}", match[4], match[5]
        if word in ("required", "optional"):
            requires = match[2] == "body" and word == "required" and found.get(name) != "optional"
            found[name] = "required" if requires else ("optional" if match[2] == "body" else "")
        elif word == "type":
            found[f"{name}: {said.partition(',')[0]}"] = ""
        elif word == "default":
            found[f"{name} default"] = said
        elif word == "value":
            values.append((name, said))
    for name, value in values:  # one that is of a type of this field is no fact of its own
        kinds = json_types(json.loads(value))
        if kinds & {"boolean", "null"}:
            found[f"{name}: {kinds.pop()}"] = ""
        elif not any(f"{name}: {kind}" in found for kind in kinds) and not name.endswith("body.model"):
            found[f"{name}: {value}"] = ""
    return found


def json_types(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"number", "integer"}
    return {{str: "string", list: "array", dict: "object"}.get(type(value), "null")}


def all_facts(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The facts of all documents. Their model's name is that of the probe."""
    known = {fact for document in documents for fact in facts_of(document)}
    return sorted(re.sub(r"/m\b", "/{model}", fact) for fact in known)


def metrics(checkout: Path) -> Iterator[tuple[str, str]]:
    """Metrics with their type and labels, by the tables of docs/metrics.md, which tests hold to what is shown."""
    page = (checkout / "docs" / "metrics.md").read_text("utf-8")
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\|", page, re.M):
        yield name, kind
        yield from ((f"{name} label {label}", "") for label in re.findall(r"`(\w+)`", labels))


def wire(checkout: Path) -> Iterator[tuple[str, str]]:
    """Inputs and outputs of models that the suite serves, by the folder in the repositories."""
    for folder in ("deploy/model_repository", "tests/model_repository"):
        for file in sorted((checkout / folder).glob("*/config.pbtxt")):
            if file.parent.name.startswith("fault_"):
                continue
            text = re.sub(r"#.*", "", file.read_text("utf-8"))
            for side, tensors in re.findall(r"^(input|output) \[(.*?)^\]", text, re.M | re.S):
                for name, kind in re.findall(r'name: "([^"]+)"\s+data_type: TYPE_(\w+)', tensors):
                    yield f"{file.parent.name} {side} {name} {kind}", ""


def chart(checkout: Path) -> Iterator[tuple[str, str]]:
    file = checkout / "deploy" / "chart" / "values.yaml"
    if file.is_file():
        yield from ((path.lstrip("."), value) for path, value in flattened(yaml.safe_load(file.read_text("utf-8"))))


def manifests(checkout: Path) -> Iterator[tuple[str, str]]:
    """Fields of the objects in deploy/kubernetes and deploy/kserve, by kind and name, and of compose.yaml."""
    deploy = checkout / "deploy"
    for folder in ("kubernetes", "kserve"):
        for file in sorted((deploy / folder).glob("*.yaml")):
            for thing in yaml.safe_load_all(file.read_text("utf-8")):
                if thing:
                    named = thing.get("metadata", {}).get("name", "")
                    yield from object_facts(f"{folder} {thing['kind']}/{named}", thing)
    for component in sorted((deploy / "kubernetes" / "components").glob("*/kustomization.yaml")):
        yield f"kubernetes component {component.parent.name}", ""
    for name, service in yaml.safe_load((deploy / "compose.yaml").read_text("utf-8"))["services"].items():
        yield from object_facts(f"compose service/{name}", service)
    rules = yaml.safe_load((deploy / "prometheus" / "alerts.yaml").read_text("utf-8"))
    for group in rules["groups"]:
        yield from ((f"alert {rule['alert']}", "") for rule in group["rules"] if "alert" in rule)


def object_facts(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    yield name, ""
    for path, value in flattened(thing):
        if not re.search(r"\.(image|newTag|apiVersion|kind)$|/version\"?\]?$", path):
            yield f"{name} {path.lstrip('.')}", value


def flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths of the leaves with their values. Items of a list have their name, or else are a part of the path, so that
    another order is no difference; an argument --flag=value has the flag there."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if re.fullmatch(r"[\w-]+", str(key)) else f'{path}["{key}"]')
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            if isinstance(item, dict):
                rest = {key: inner for key, inner in item.items() if key != "name"}
                yield from flattened(rest, f"{path}[{item.get('name', index)}]")
            else:
                flag, equals, setting = str(item).partition("=")
                yield f"{path} {flag}", setting if equals else ""
    else:
        yield path, json.dumps(value)


def differences(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> Iterator[Difference]:
    """All differences; of a thing that is new or gone the thing alone, without its parts."""
    for kind in KINDS:
        old, new = before[kind], after[kind]
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) == new.get(name):
                continue
            if name in old and name in new:
                yield kind, name, old[name], new[name]
                continue
            without = (new, after) if name in old else (old, before)
            wholes = [name[: match.start()] for match in re.finditer(r"[ .:\[]", name)]
            if kind == "fields":  # whose route is in another list
                wholes += [name[: match.start()] for match in re.finditer(r" (?=body|200|400)", name)]
                gone = wholes[-1] not in without[1]["routes"]
            else:
                gone = False
            whole = old if name in old else new
            if not gone and not any(part in whole and part not in without[0] for part in wholes):
                yield kind, name, old.get(name), new.get(name)


def read_lists(folder: Path) -> dict[str, Facts]:
    """The lists in a folder."""
    lists: dict[str, Facts] = {}
    for kind in KINDS:
        facts = {}
        for line in (folder / f"{kind}.txt").read_text("utf-8").splitlines():
            said, _, alternatives = line.partition(" :: ")
            name, _, value = said.partition(" = ")
            facts[name] = value
            facts |= {f"{name}: {one}": "" for one in alternatives.split(" | ") if one}
        lists[kind] = facts
    return lists


def write_lists(lists: Mapping[str, Facts], folder: Path) -> None:
    """Writes each list as a file of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, facts in lists.items():
        lines: dict[str, list[str]] = {}
        for name in facts:
            base, colon, alternative = name.partition(": ")
            if colon and base in facts and not facts[name]:
                lines.setdefault(base, []).append(alternative)
            else:
                lines.setdefault(name, [])
        texts = []
        for name, alternatives in sorted(lines.items()):
            value = f" = {facts[name]}" if facts[name] else ""
            texts.append(f"{name}{value}{' :: ' if alternatives else ''}{' | '.join(sorted(alternatives))}\n")
        (folder / f"{kind}.txt").write_text("".join(texts), "utf-8")


def of(what: str) -> dict[str, Facts]:
    """The lists of a release in tests/stable, of a folder, or of a commit."""
    if (STABLE / what / "flags.txt").is_file():
        return read_lists(STABLE / what)
    with checked_out(what) as checkout:
        return surface(checkout)


@contextmanager
def checked_out(what: str) -> Iterator[Path]:
    """The folder, or the files of a commit in a temporary one."""
    if (Path(what) / "hf_transformer").is_dir():
        yield Path(what).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", what], stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
        yield Path(folder)


def write_release(what: str, folder: Path) -> None:
    """Writes the lists of a folder or commit, and how its services are started."""
    with checked_out(what) as checkout:
        declared = declared_by(checkout)
        write_lists(facts_in(checkout, declared), folder)
        write_starts(checkout, declared["examples"], folder)


def new_names(found: Iterable[Difference]) -> str:
    """A table in Markdown of flags, routes, metrics and manifests that the version before does not have."""
    rows = []
    shapes = {
        "flags": r"\w+ --\w+",
        "routes": r"\w+ \S+",
        "metrics": r"\w+",
        "manifests": r"[a-z]+ \w+/[\w-]+|kubernetes component \S+|alert \w+",
    }
    named: dict[str, list[str]] = {kind: [] for kind in shapes}
    for kind, name, old, _ in found:
        if old is None and kind in shapes and re.fullmatch(shapes[kind], name):
            named[kind].append(f"`{name.removeprefix('serve ').removeprefix('kubernetes component ')}`")
    for kind, names in named.items():
        rows.append(f"| {kind} | {', '.join(names) or 'none'} |")
    return "\n".join(("| new | names |", "|---|---|", *rows))


def write_new_names() -> None:
    """Writes the table between the marks of docs/upgrading.md."""
    begin, end = NEW_NAMES
    page = UPGRADING.read_text("utf-8")
    before, found, rest = page.partition(begin)
    if not found:  # nothing is different since the last release
        return
    table = new_names(differences(read_lists(STABLE / releases()[-1]), surface(ROOT)))
    UPGRADING.write_text(f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}", "utf-8")


def releases() -> list[str]:
    """The releases with lists in tests/stable, the newest last."""
    found = [path.parent.name for path in STABLE.glob("*/flags.txt")]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", default=None, help="[the newest release in tests/stable]")
    parser.add_argument("after", nargs="?", default=".", help="[this checkout]")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the lists of the first version there")
    parser.add_argument("--new-names", action="store_true", help="write the table of docs/upgrading.md")
    arguments = parser.parse_args()
    if arguments.new_names:
        write_new_names()
        return 0
    if arguments.write:
        write_release(arguments.before or ".", arguments.write)
        return 0
    before, after = of(arguments.before or releases()[-1]), of(arguments.after)
    kind = None
    for found, name, old, new in differences(before, after):
        if found != kind:
            kind = found
            print(f"\n== {KINDS[kind]}")
        print(shown(name, old, new))
    return 0


def shown(name: str, old: str | None, new: str | None) -> str:
    """A difference in one line: - gone, + new, ~ another value."""
    if old is None or new is None:
        value = old or new or ""
        return f"{'+' if old is None else '-'} {name}{value and f' = {value}'}"
    return f"~ {name}: {old or '(none)'} -> {new or '(none)'}"


if __name__ == "__main__":
    sys.exit(main())
