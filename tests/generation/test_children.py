"""Child processes: each limit ends one task, and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_transformer.commands.child_process import poll
from hf_transformer.errors import TooLarge, TooManyRequests, Unavailable
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from tests.generation.hostile_constraints import COMPILED

ORDINARY = Constraint.of("json_schema", {"type": "object", "properties": {"a": {"type": "integer"}}})
ENDLESS = Constraint.of(*COMPILED["multipleOf"])


def proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in proc(pid, f"task/{pid}/children").split()]


def nursery_of(pool: ChildPool) -> int:
    assert pool._nursery is not None
    return pool._nursery._process.pid


def state(pid: int) -> str:
    return proc(pid, "stat").rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("seconds", "max_bytes", "most_seconds"),
    [pytest.param(0.3, 1 << 30, 4, id="time"), pytest.param(60, 16 << 20, 30, id="memory")],
)
async def test_a_task_beyond_a_limit_is_413_and_the_next_one_is_served(
    seconds: float, max_bytes: int, most_seconds: float
) -> None:
    async with ChildPool(1, seconds=seconds, max_bytes=max_bytes) as pool:
        await pool.run("compile", ORDINARY, ())
        began = time.monotonic()
        with pytest.raises(TooLarge) as caught:
            await pool.run("compile", ENDLESS, ("parameters", "regex"))
        assert time.monotonic() - began < most_seconds
        assert caught.value.path == ("parameters", "regex")
        assert "--child_timeout_seconds" in str(caught.value) and "--max_child_bytes" in str(caught.value)
        size, _ = await pool.run("compile", ORDINARY, ())
        assert 0 < size < 10**6
        assert poll(lambda: len(children_of(nursery_of(pool))) == 1, 5), "the ended child is a zombie"


async def test_another_client_is_served_while_a_task_goes_on() -> None:
    async with ChildPool(2, seconds=1.5) as pool:
        await pool.run("compile", ORDINARY, ())
        endless = asyncio.create_task(pool.run("compile", ENDLESS, ()))
        for _ in range(20):
            await pool.run("compile", ORDINARY, ())
        assert not endless.done()
        with pytest.raises(TooLarge):
            await endless


@pytest.mark.parametrize("victim", [lambda pid: children_of(pid)[0], lambda pid: pid], ids=["a child", "the nursery"])
async def test_a_killed_process_is_replaced(victim: Callable[[int], int]) -> None:
    async with ChildPool(1) as pool:
        await pool.run("compile", ORDINARY, ())
        killed = victim(nursery_of(pool))
        os.kill(killed, signal.SIGKILL)
        await asyncio.sleep(0.2)
        assert await pool.run("verify", ORDINARY, (), '{"a": 1}') == ""


async def test_a_request_gets_503_while_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ChildPool(1) as pool:
        with monkeypatch.context() as broken:
            broken.setattr(sys, "executable", "/nowhere")
            with pytest.raises(Unavailable, match="child process"):
                await pool.run("compile", ORDINARY, ())
        await pool.run("compile", ORDINARY, ())


async def test_a_child_takes_a_limited_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_transformer.generation.children.TASKS_PER_CHILD", 3)
    async with ChildPool(1) as pool:
        used = set()
        for _ in range(7):
            await pool.run("compile", ORDINARY, ())
            used.update(children_of(nursery_of(pool)))
        assert len(used) >= 2


async def test_a_client_that_leaves_keeps_its_child_until_the_task_ends() -> None:
    async with ChildPool(1, seconds=0.5, wait=0.2) as pool:
        await pool.run("compile", ORDINARY, ())
        endless = asyncio.create_task(pool.run("compile", ENDLESS, ()))
        await asyncio.sleep(0.1)
        endless.cancel()
        with pytest.raises(TooManyRequests, match="--max_children"):
            await pool.run("compile", ORDINARY, ())
        assert len(children_of(nursery_of(pool))) == 1
        async with asyncio.timeout(10):
            while True:
                try:
                    await pool.run("compile", ORDINARY, ())
                    return
                except TooManyRequests:
                    pass


async def test_a_child_opens_no_file_and_no_socket_and_is_the_first_victim_of_low_memory() -> None:
    async with ChildPool(1) as pool:
        await pool.run("compile", ORDINARY, ())
        [child] = children_of(nursery_of(pool))
        limits = proc(child, "limits").splitlines()
        assert [line.split()[3] for line in limits if line.startswith("Max open files")] == ["0"]
        assert proc(child, "oom_score_adj") == "1000\n"


CHAINS = """
import asyncio
from concurrent.futures import ThreadPoolExecutor
from hf_transformer.errors import TooLarge
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.grammars import byte_tokenizer, compile_grammar

async def compiles(pool, depth):
    parts = {f"p{n}": {"properties": {"a": {"$ref": f"#/$defs/p{n + 1}"}}} for n in range(depth)}
    chain = Constraint.of("json_schema", {"$ref": "#/$defs/p0", "$defs": {**parts, f"p{depth}": {}}})
    try:
        await pool.run("compile", chain, "")
    except TooLarge:
        return False
    with ThreadPoolExecutor(1) as threads:
        threads.submit(compile_grammar, byte_tokenizer(), chain, "").result()
    return True

async def main():
    async with ChildPool(1, seconds=20) as pool:
        print([await compiles(pool, depth) for depth in (20, 60, 200, 400, 600, 900, 1000)])

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", ["unlimited", "8192"])
def test_what_a_child_compiles_fits_into_the_stack_of_a_thread(kilobytes: str) -> None:
    """Each reference of a chain takes some kilobytes of the stack."""
    command = ["sh", "-c", f'ulimit -S -s {kilobytes} && exec "$0" -c "$1"', sys.executable, CHAINS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("[True, True, ") and done.stdout.endswith(", False]\n")


PROGRAM = """
import asyncio, sys
from hf_transformer.generation.children import ChildPool
from hf_transformer.generation.constraint import Constraint

async def main():
    async with ChildPool(2) as pool:
        await pool.run("compile", Constraint.of("regex", "a"), "")
        task = asyncio.create_task(pool.run("compile", Constraint.of("json_schema", {"multipleOf": 9999991}), ""))
        await asyncio.sleep(0.3)
        print(pool._nursery._process.pid, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_children_end_with_the_service_and_ignore_its_signals(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as service:
        assert service.stdout is not None
        nursery = int(service.stdout.readline())
        processes = [nursery, *children_of(nursery)]
        assert len(processes) >= 2
        for process in processes:
            os.kill(process, signal.SIGINT)
        time.sleep(0.2)
        assert all(state(process) != "Z" for process in processes)
        service.send_signal(number)
        service.wait(10)
        assert poll(lambda: not any(is_running(process) for process in processes), 15)


def is_running(pid: int) -> bool:
    try:
        return state(pid) != "Z"
    except FileNotFoundError:
        return False
