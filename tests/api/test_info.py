"""Links to the pages about the service."""

from __future__ import annotations

import pytest

from hf_transformer.api.info import documentation_address, find_links

REPOSITORY = "Repository, https://code.example/project"


@pytest.mark.parametrize(
    ("project_urls", "address"),
    [
        ([], None),
        (["Changelog, https://code.example/changes"], None),
        ([REPOSITORY], "https://code.example/project"),
        ([REPOSITORY, "homepage,https://project.example/?a,b"], "https://project.example/?a,b"),
        (["Documentation, https://docs.example", REPOSITORY], "https://docs.example"),
    ],
    ids=["none", "others", "repository", "homepage", "documentation"],
)
def test_the_documentation_is_found_in_the_metadata(project_urls: list[str], address: str | None) -> None:
    assert documentation_address(project_urls) == address


def test_docs_are_linked_only_if_they_are_enabled() -> None:
    assert find_links(docs=True) == {**find_links(docs=False), "docs": "/docs"}
