"""Hooks of mkdocs: what the site (mkdocs.yml) has beside docs/.

- Pages that live elsewhere in the repository, such as SECURITY.md, are pages of the site under the same path.
- A link from a page to a file that is not on the site becomes its text, which names the file: the site does not know
  where its repository is.
- Names of flags and metrics have anchors, and link to them (scripts/docs_names.py).
- reference/routes.md is made from the OpenAPI document, and the page of metrics ends with a table that is
  made from the declared metrics. scripts/config_docs writes docs/configuration.md, which is committed.

mkdocs' --strict fails at a link to a file or heading that does not exist. So does scripts/docs_check.py, which reads
the built site, HTML and generated pages included, and refuses links to the project's own address.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hf_transformer.api.document.build import EVERYTHING, build  # noqa: E402
from scripts.docs_check import own_addresses, problems  # noqa: E402
from scripts.docs_names import entries, with_names  # noqa: E402

LOG: Final = logging.getLogger("mkdocs.hooks")
OUTSIDE: Final = (
    "*.md",
    "deploy/README.md",
    "deploy/chart/README.md",
    "examples/README.md",
    "benchmarks/README.md",
    "benchmarks/results/*.*",
    "deploy/grafana/dashboard.json",
    "deploy/prometheus/alerts.yaml",
)
"""Files beside docs/ that the site shows under their own path. README.md is not: docs/index.md is its page here."""
NO_PAGE: Final = "#"
"""The target of a link to a file that is not on the site, until on_page_content removes it."""
LINK: Final = re.compile(
    r"(?P<before>\]\(|(?:src|href)=\"|^\[[^]]+\]: )(?P<path>[^)#\"\s]+)(?P<after>[#)\"]|$)", re.MULTILINE
)
SEARCH: Final = {
    **{page: 4.0 for page in ("operations.md", "tasks.md", "configuration.md", "dialects.md", "upgrading.md")},
    "compare/": 8.0,  # short pages, which few words but the names of other servers lead to
    **{start: 2.0 for start in ("metrics.md", "deploy/", "reference/")},
}
RARELY_SOUGHT: Final = 0.01
"""Weights of pages in the search; other pages have 1. Contributors' pages, results and older versions come last."""
METHODS: Final = ("get", "post", "put", "delete")


def outside() -> list[Path]:
    """The files of OUTSIDE, relative to the repository."""
    found = {path.relative_to(ROOT) for pattern in OUTSIDE for path in ROOT.glob(pattern)}
    return sorted(found - {Path("README.md")})


def place_on_site(path: str) -> str | None:
    """The site's source path of a file of the repository, None if it is not on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if Path(path) in outside() else None


def place_in_repository(source: str) -> str:
    """The reverse of place_on_site."""
    return source if Path(source) in outside() else f"docs/{source}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in docs/."""
    for path in outside():
        source = place_on_site(str(path))
        assert source is not None
        files.append(File.generated(config, source, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "reference/routes.md", content=routes_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links between the repository's files, adds what is generated to a page of docs/, and weighs the page."""
    source = page.file.src_uri
    is_sought = page.ancestors and page.ancestors[-1].title != "Contributing" and source != "CHANGELOG.md"
    weight = next((weight for start, weight in SEARCH.items() if source.startswith(start)), 1.0)
    page.meta["search"] = {"boost": weight if is_sought else RARELY_SOUGHT}
    if source.startswith("benchmarks/results/"):
        page.meta["hide"] = ["toc"]  # its place is for tables of up to 13 columns
    if source == "metrics.md":
        markdown += metrics_section()
    if source == "reference/routes.md":
        return markdown
    here = posixpath.dirname(place_in_repository(source))

    def rewritten(match: re.Match[str]) -> str:
        path = match["path"]
        if re.match(r"[a-z]+:|/", path):
            return match[0]
        target = posixpath.normpath(posixpath.join(here, path))
        place = place_on_site(target)
        if place is not None:
            link = posixpath.relpath(place, posixpath.dirname(source) or ".")
        elif (ROOT / target).exists() and not target.startswith(".."):
            link = NO_PAGE
        else:
            link = path  # mkdocs warns of it
        if match["before"].endswith('"'):  # mkdocs leaves HTML alone
            link = re.sub(r"(?:\bREADME|\bindex)\.md$", "index.html", link)
            link = re.sub(r"\.md$", ".html", link)
        return f"{match['before']}{link}{match['after']}"

    return "".join(part if is_code else LINK.sub(rewritten, part) for is_code, part in by_code(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links names of flags and metrics, and leaves only the text of links to files that are not on the site."""
    html = re.sub(rf'<a href="{NO_PAGE}">(.*?)</a>', r"\1", html, flags=re.DOTALL)
    return with_names(html, page.url)


@event_priority(-100)  # after the search has written its index
def on_post_build(config: MkDocsConfig) -> None:
    """Adds flags and metrics to the search. Warns of links that lead nowhere; --strict makes that an error."""
    file = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(file.read_text(encoding="utf-8"))
    index["docs"] += entries()
    file.write_text(json.dumps(index, separators=(",", ":")), encoding="utf-8")
    for problem in problems(Path(config.site_dir), own_addresses()):
        LOG.warning(problem)


def by_code(markdown: str) -> Iterator[tuple[bool, str]]:
    """The text in parts, each with whether it is a fenced block of code."""
    for number, part in enumerate(re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)):
        yield number % 2 == 1, part


def metrics_section() -> str:
    """The metrics as the code declares them, with the bounds of histograms."""
    from hf_transformer.observability.metrics import Metrics, SharedMemoryUse

    metrics = Metrics()
    metrics.of("model").show_apis(["v1"])
    metrics.of("model").watch_shared_memory(lambda: SharedMemoryUse(False, {"in_use": 0}, {"in_use": 0}, {"shared": 0}))
    rows = ["\n## As declared\n", "The text is that of `# HELP` on `/metrics`. Histograms have these bounds.\n"]
    rows += ["| metric | text | bounds |", "|---|---|---|"]
    text = metrics.render().decode()
    for name, help_text in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE):
        if name.endswith("_created"):
            continue
        bounds = dict.fromkeys(re.findall(rf'^{name}_bucket{{.*?le="([^"]+)".*}}', text, re.MULTILINE))
        rows.append(f"| `{name}` | {cell(help_text)} | {', '.join(bounds)} |")
    return "\n".join(rows) + "\n"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def routes_page() -> str:
    """Every route of the OpenAPI document, by its tags."""
    document = build(EVERYTHING)
    operations = [
        (f"{method.upper()} {path}", item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    ]
    parts = [
        "# HTTP routes\n",
        "This page is generated from the OpenAPI document that the service has at `/openapi.json`. A page to",
        "try it comes with `--enable_docs_url`. `{model}` is the name of the served model. [API](../api.md)",
        "has requests with their answers, and gRPC.\n",
        "| header | meaning |",
        "|---|---|",
    ]
    headers = [one for one in document["components"]["parameters"].values() if one.get("in") == "header"]
    parts += [f"| `{one['name']}` | {cell(one.get('description', ''))} |" for one in headers]
    errors: dict[str, str] = {}
    for _, operation in operations:
        for status, answer in operation.get("responses", {}).items():
            if not str(status).startswith("2"):
                errors.setdefault(str(status), cell(resolved(document, answer).get("description", "")))
    parts += ["", "| error | meaning |", "|---|---|"]
    parts += [f"| {status} | {meaning} |" for status, meaning in sorted(errors.items())]
    for tag in document["tags"]:
        parts += ["", f"## {tag['name']}\n", f"{tag['description']}\n"]
        for title, operation in operations:
            if operation["tags"][0] == tag["name"]:
                parts += operation_section(document, title, operation)
    return "\n".join(parts) + "\n"


def operation_section(document: dict[str, Any], title: str, operation: dict[str, Any]) -> list[str]:
    """The lines about one route."""
    lines = [f"### {title}\n", f"{operation.get('summary', '')}. {operation.get('description', '')}\n"]
    for kind, content in resolved(document, operation.get("requestBody", {})).get("content", {}).items():
        lines.append(f"Body: `{kind}`\n")
        lines += fields_table(document, content.get("schema", {}))
    errors = []
    for status, answer in sorted(operation.get("responses", {}).items()):
        if str(status).startswith("2"):
            lines.append(f"Answer {status}: {cell(resolved(document, answer).get('description', ''))}\n")
        else:
            errors.append(str(status))
    return [*lines, *([f"Errors: {', '.join(errors)}.\n"] if errors else [])]


def fields_table(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """The fields of a body's schema, with those of all forms that it may have."""
    fields = {name: resolved(document, field) for name, field in fields_of(document, schema)}
    if not fields:
        return []
    rows = [
        f"| `{name}` | {cell(type_of(document, field))} | {cell(field.get('description', ''))} |"
        for name, field in fields.items()
    ]
    return ["| field | type | meaning |", "|---|---|---|", *rows, ""]


def fields_of(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The properties of a schema and of its parts."""
    schema = resolved(document, schema)
    yield from schema.get("properties", {}).items()
    for word in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(word, ()):
            yield from fields_of(document, part)


def type_of(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A schema's type in words."""
    schema = resolved(document, schema)
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return ", ".join(f"`{value if value and isinstance(value, str) else json.dumps(value)}`" for value in values)
    kind = schema.get("type", [])
    kinds = kind if isinstance(kind, list) else [kind]
    forms = [type_of(document, variant) for word in ("anyOf", "oneOf") for variant in schema.get(word, ())]
    return " or ".join(dict.fromkeys(str(form) for form in (*kinds, *forms) if form))


def resolved(document: dict[str, Any], value: Any) -> dict[str, Any]:
    """The value, or what its $ref points at."""
    while isinstance(value, dict) and "$ref" in value:
        target: Any = document
        for part in value["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/").replace("~0", "~")]
        value = target
    return value if isinstance(value, dict) else {}


# One process builds the site, and nothing of it should depend on the folder that it is started in.
os.chdir(ROOT)
