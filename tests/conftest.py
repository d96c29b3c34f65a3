"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

# Machines differ, so no example has a deadline. All examples of a test share its fixtures, which keep no state.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("suite")

OF_CLIENTS = (
    *("hostile/", "test_addresses", "test_bench", "test_dialects", "test_docs", "test_long_documents", "test_names"),
    *("test_openai", "test_protocols", "test_tei", "test_tokenization", "test_unit_vectors"),
)
"""Files of tests/integration about what clients send and get, whichever Triton is behind the service."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--triton",
        choices=("24.10", "26", "real-26"),
        default="24.10",
        help="26 answers as Triton 26.x does (tests/support/triton_26.py), for the tests with a Triton only; real-26 "
        "says that the one in use (TRITON) is a 26.x itself",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the tests of the other Triton; with ``--triton=26`` also those for which the two are the same, which
    run in the suite of 24.10 already."""
    newer, emulated = config.getoption("--triton") != "24.10", config.getoption("--triton") == "26"

    def runs(item: pytest.Item) -> bool:
        if item.get_closest_marker("only_triton_24" if newer else "only_triton_26"):
            return False
        if not emulated or item.get_closest_marker("only_triton_26"):
            return True
        of_clients = item.nodeid.startswith(tuple(f"tests/integration/{name}" for name in OF_CLIENTS))
        return "triton" in getattr(item, "fixturenames", ()) and not of_clients

    config.hook.pytest_deselected(items=[item for item in items if not runs(item)])
    # Tests with Triton come first, and so to one of the workers: each that has one of them starts a Triton with up to
    # fifty models. A worker that has no test left takes those at the end of another's list, which are small.
    items[:] = sorted(filter(runs, items), key=lambda item: not item.nodeid.startswith("tests/integration/"))


def pytest_collection_finish() -> None:
    """Excludes the million objects of imported modules from garbage collection, which some tests run often."""
    gc.collect()
    gc.freeze()
