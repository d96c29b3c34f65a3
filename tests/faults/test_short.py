"""A short form of the fault suite, a few hundred requests for a fault; scripts/test_faults runs all of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.environment import SETUPS, FaultEnvironment
from tests.faults.faults import FAULTS, Fault, Scene
from tests.faults.records import kinds
from tests.faults.suite import Suite, drain
from tests.faults.texts import Text, make_texts, write_model_folder

REQUESTS = 600
BY_NAME = {fault.name: fault for fault in FAULTS}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "hugging_face"
    write_model_folder(folder)
    return folder


@pytest.fixture(scope="module")
def texts(model_folder: Path) -> list[Text]:
    return make_texts(model_folder)


@pytest.fixture(scope="module")
def environment(model_folder: Path, texts: list[Text]) -> Iterator[FaultEnvironment]:
    """With REST to Triton and shared memory, which a gone predictor takes with it."""
    with FaultEnvironment(SETUPS[0], model_folder.parent / "environment", model_folder, texts) as made:
        yield made


def test_every_answer_is_the_right_one_or_a_documented_error(environment: FaultEnvironment) -> None:
    suite = Suite(environment, REQUESTS)
    for name in ("rows", "kill"):
        result = suite.run(BY_NAME[name])
        assert result.problems == []
        assert kinds(result.records)["error"] > 0
    assert suite.close() == []
    assert drain(environment).problems == []


def test_the_load_reports_answers_of_another_version_as_wrong(environment: FaultEnvironment) -> None:
    """That of another version of the model here, as good as that to another text."""
    service = environment.serve().wait_until("/v1/models/known")
    load = environment.load(service)
    load.versions = (2,)
    load.start()
    load.wait_for(50, 30.0)
    seen = kinds(load.end())
    assert seen["wrong"] > 0
    assert seen["right"] == 0


def test_a_triton_that_ends_by_itself(model_folder: Path, texts: list[Text]) -> None:
    """A fault that may end Triton is repeated with the next one; any other end is reported.

    Without shared memory, for which each fault would wait ten seconds, under load.
    """
    ends = [signal.SIGKILL] * 2

    def begin(scene: Scene) -> None:
        if ends:
            child = scene.environment.triton.child
            os.kill(child.pid, ends.pop())
            assert child.wait(30.0)
            raise OSError("it is gone")

    fault = Fault("stub", "a process of a model's is killed, and Triton with it", begin, hold=0, abandons=True)
    with FaultEnvironment(SETUPS[1], model_folder.parent / "ending", model_folder, texts) as environment:
        suite = Suite(environment, 0)
        first, second = suite.run(fault).problems
        assert first == "it could not be done: it is gone"
        assert second.startswith("Triton has ended by itself with -9")
        result = suite.run(replace(fault, may_end_triton=True))
        assert result.problems == [] and not ends
        assert kinds(result.records)["right"] > 0
        assert suite.close() == []
