"""Files in /dev/shm and their slots, in a folder of the test's own."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_transformer.predictor import shared_region
from hf_transformer.predictor.shared_region import (
    ALIGNMENT,
    MARGIN,
    PREFIX,
    Region,
    Slots,
    aligned,
    remove_leftovers,
    remove_own_and_leftovers,
)

ROOT = Path(__file__).parents[2]
SIZE = 64 * 2**10


def write(region: Region, offset: int, data: bytes) -> None:
    """What the predictor does."""
    with region.path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), max_size=60))
def test_slots_never_overlap_and_none_is_lost(steps: list[tuple[int, int]]) -> None:
    slots = Slots(32 * ALIGNMENT + 5)
    taken: list[tuple[int, int]] = []
    for count, ended in steps:
        size = count * ALIGNMENT
        fits = slots.fits(size)
        offset = slots.take(size)
        assert fits == (offset is not None)
        if offset is not None:
            assert offset % ALIGNMENT == 0 and 0 <= offset <= 32 * ALIGNMENT - size
            assert all(offset + size <= other or offset >= other + length for other, length in taken)
            taken.append((offset, size))
        if ended < len(taken):
            slots.give_back(*taken.pop(ended))
        assert slots.free_bytes == 32 * ALIGNMENT - sum(length for _, length in taken)
    for one in taken:
        slots.give_back(*one)
    assert slots.take(32 * ALIGNMENT) == 0


def test_the_first_gap_that_is_large_enough_is_taken() -> None:
    slots = Slots(640)
    assert [slots.take(size) for size in (64, 128, 64, 384)] == [0, 64, 192, 256]
    assert slots.take(64) is None
    slots.give_back(64, 128)
    slots.give_back(256, 384)
    assert (slots.take(192), slots.take(64), slots.take(64)) == (256, 64, 128)


@pytest.mark.parametrize(("size", "wanted"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_sizes_are_rounded_up(size: int, wanted: int) -> None:
    assert aligned(size) == wanted


def test_what_the_predictor_writes_is_read_in_place(tmp_path: Path) -> None:
    region = Region(SIZE, tmp_path)
    region.fill()
    first, second = region.take(100), region.take(64)
    assert first is not None and second is not None
    write(region, second[0], b"other")
    write(region, first[0], b"logits")
    assert (first[0], second[0]) == (0, 128)
    assert bytes(first[1][:6]) == b"logits" and len(first[1]) == 128
    assert first[1].readonly
    region.close()
    assert bytes(second[1][:5]) == b"other"
    assert list(tmp_path.iterdir()) == []


def test_the_file_has_no_memory_before_it_is_filled_and_all_of_it_after(tmp_path: Path) -> None:
    region = Region(SIZE, tmp_path)
    assert (region.path.stat().st_size, region.path.stat().st_blocks) == (SIZE, 0)
    assert region.take(64) is None and region.free_bytes == 0
    region.fill()
    assert region.path.stat().st_blocks * 512 >= SIZE
    assert region.free_bytes == SIZE
    region.close()


def test_every_user_can_write_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        region = Region(SIZE, tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(region.path.stat().st_mode) == 0o666
    region.close()


def test_names_are_new_each_time(tmp_path: Path) -> None:
    regions = [Region(SIZE, tmp_path) for _ in range(3)]
    assert len({region.name for region in regions}) == 3
    for region in regions:
        assert region.name.startswith(PREFIX) and region.key == f"/{region.name}"
        assert not region.name.startswith("triton_python_backend_shm_region_")
        region.close()


def test_a_slot_that_may_still_be_written_is_never_handed_out_again(tmp_path: Path) -> None:
    region = Region(SIZE, tmp_path)
    region.fill()
    for _ in range(2):
        assert region.take(SIZE // 2) is not None
    region.give_back(0, SIZE // 2, settled=False)
    assert region.take(64) is None
    assert (region.taken_slots, region.lost_slots, region.lost_bytes) == (1, 1, SIZE // 2)
    region.give_back(SIZE // 2, SIZE // 2, settled=True)
    taken = region.take(64)
    assert taken is not None and taken[0] == SIZE // 2
    region.close()


def test_an_absurd_size_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="do not fit") as caught:
        Region(2**60, tmp_path)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("free", [[SIZE + MARGIN - 1], [SIZE + MARGIN, MARGIN - 1]], ids=["before", "after"])
def test_a_region_leaves_room_for_the_predictor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: list[int]
) -> None:
    left = iter(free)
    monkeypatch.setattr(shared_region, "free_bytes", lambda folder: next(left))
    region = Region(SIZE, tmp_path)
    with pytest.raises(OSError, match=f"{SIZE} bytes do not fit") as caught:
        region.fill()
    assert caught.value.errno == errno.ENOSPC and region.take(64) is None
    region.close()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Region(SIZE, tmp_path / "missing")


def test_leftovers_of_the_dead_are_removed_and_files_of_the_living_stay(tmp_path: Path) -> None:
    living = Region(SIZE, tmp_path)
    (tmp_path / f"{PREFIX}dead").write_bytes(b"x")
    (tmp_path / "of others").write_bytes(b"x")
    (tmp_path / f"{PREFIX}folder").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "of others")
    assert remove_leftovers(tmp_path) == [f"{PREFIX}dead"]
    assert {path.name for path in tmp_path.iterdir()} == {
        living.name,
        "of others",
        f"{PREFIX}folder",
        f"{PREFIX}link",
    }
    living.close()


def test_a_file_that_is_taken_for_a_leftover_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock
    removed: list[list[str]] = []

    def interrupted(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        removed.append(remove_leftovers(tmp_path))
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", interrupted)
    region = Region(SIZE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [region.name]
    assert len(removed[0]) == 1 and region.name not in removed[0]
    region.close()


PROGRAM = """
import sys
from pathlib import Path
from hf_transformer.predictor.shared_region import Region
region = Region(65536, Path(sys.argv[1]))
print(region.name, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "ended without close"])
def test_what_a_process_leaves(tmp_path: Path, killed: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        name = process.stdout.readline().strip()
        assert remove_leftovers(tmp_path) == []
        if killed:
            process.send_signal(signal.SIGKILL)
        process.stdin.close()
        process.wait()
    assert [path.name for path in tmp_path.iterdir()] == ([name] if killed else [])
    assert remove_leftovers(tmp_path) == ([name] if killed else [])
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_is_about_to_end_without_a_word_takes_its_own_file_along(tmp_path: Path) -> None:
    mine = Region(SIZE, tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        theirs = process.stdout.readline().strip()
        (tmp_path / f"{PREFIX}dead").write_bytes(b"x")
        remove_own_and_leftovers(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [theirs]
        process.stdin.close()
    mine.close()


def test_places_are_the_same_as_long_as_the_region_is_open(tmp_path: Path) -> None:
    region = Region(2**16, tmp_path)
    region.fill()
    lengths = (("a", 100), ("b", 64), ("c", 1))
    taken = region.place(lengths)
    assert taken is not None
    offset, size, places = taken
    assert (offset, size, list(places)) == (0, 128 + 64 + 64, ["a", "b", "c"])
    assert [(one.region, one.offset, len(one.memory)) for one in places.values()] == [
        (region.name, 0, 100),
        (region.name, 128, 64),
        (region.name, 192, 1),
    ]
    other = region.place(lengths)
    assert other is not None and other[0] == size and other[2] != places, "while the first one is in use"
    region.give_back(offset, size, settled=True)
    again = region.place(lengths)
    assert again is not None and again[2] is places
    with pytest.raises(TypeError, match="does not support item assignment"):
        places["a"] = places["b"]  # type: ignore[index]  # that is what is tested
    region.close()
    assert region.place(lengths) is None
    assert not region._placements, "or the memory would stay for as long as the region is known"


def test_so_many_places_are_kept_and_no_more(tmp_path: Path) -> None:
    region = Region(2**16, tmp_path)
    region.fill()
    for length in range(1, 1000):
        taken = region.place((("a", length),))
        assert taken is not None
        assert len(taken[2]["a"].memory) == length
        region.give_back(taken[0], taken[1], settled=True)
        assert max(len(region._sizes), len(region._placements)) <= 256
    before = len(region._sizes), len(region._placements)
    many = tuple((f"present.{number}", 64) for number in range(9))
    taken = region.place(many)
    assert taken is not None and list(taken[2]) == [name for name, _ in many] and taken[1] == 9 * 64
    assert (len(region._sizes), len(region._placements)) == before
    region.close()
