"""Reloaded files: detection of changes, and temporary faults."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from hf_transformer.credentials import ReloadableFile, keep_renewing
from hf_transformer.errors import ConfigError


class FaultyFile:
    """A reloadable file whose next reads raise ``faults``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text("one")
        self.faults: list[Exception] = []
        self.reloadable = ReloadableFile("the file", [str(path)], self.read)

    def read(self) -> str:
        if self.faults:
            raise self.faults.pop(0)
        return self.path.read_text()

    def replace(self, text: str) -> None:
        new = self.path.with_name("new")
        new.write_text(text)
        os.replace(new, self.path)


@pytest.fixture
def file(tmp_path: Path) -> FaultyFile:
    return FaultyFile(tmp_path / "file")


def test_an_unusable_file_is_read_again_until_it_is_usable(file: FaultyFile, caplog: pytest.LogCaptureFixture) -> None:
    file.replace("two")
    file.faults = [ConfigError("too many open files"), ConfigError("too many open files")]
    assert [file.reloadable.renew() for _ in range(4)] == [False, False, True, False]
    assert file.reloadable.value == "two"
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "the file: the new files can't be used, the old ones stay in use: too many open files"
    ]


def test_new_content_of_the_same_size_and_time_of_modification_is_detected(file: FaultyFile) -> None:
    times = after = os.stat(file.path)
    while after.st_ctime_ns == times.st_ctime_ns:  # file systems count time in ticks of some milliseconds
        file.path.write_text("two")
        os.utime(file.path, ns=(times.st_atime_ns, times.st_mtime_ns))
        after = os.stat(file.path)
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (times.st_ino, times.st_mtime_ns, times.st_size)
    assert file.reloadable.renew()
    assert file.reloadable.value == "two"


async def test_faults_do_not_end_the_polling(file: FaultyFile, caplog: pytest.LogCaptureFixture) -> None:
    used: list[str] = []
    faults: list[Exception] = [OSError("in use"), OSError("in use")]
    done = asyncio.Event()

    def use(value: str) -> None:
        if faults:
            raise faults.pop()
        used.append(value)
        done.set()

    file.replace("two")
    file.faults = [ValueError("reading")]
    renewing = asyncio.create_task(keep_renewing(file.reloadable, use, period=0.001))
    async with asyncio.timeout(20):
        await done.wait()
    file.replace("three")
    done.clear()
    async with asyncio.timeout(20):
        await done.wait()
    renewing.cancel()
    assert used == ["two", "three"]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1
