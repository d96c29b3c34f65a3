"""The child processes of sandboxed work (children.py): a nursery that forks them, and the tasks that they do.

The nursery is a fresh interpreter with one thread, which imports the libraries once and forks a child for each socket
that it receives. Fork copies no threads and no connections of the service. A child does one task at a time, and ends
by the kernel's timers if a task takes too long, even inside of a library. Its address space and stack are bounded, and
it can't open a file or a socket. All of them end when their sockets close, so also when the service is killed.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from hf_transformer.errors import InvalidInput
from hf_transformer.generation import validation
from hf_transformer.generation.children import HEADER, WALL_TIMES
from hf_transformer.generation.constraint import Constraint
from hf_transformer.generation.grammars import compile_grammar, failure
from hf_transformer.types.request import Json

READY: Final = b"r"
"""First byte of a child."""
PREFERRED_VICTIM: Final = "1000"
"""The value of oom_score_adj with which the kernel ends a child, not the service, if memory runs out."""
UNLIMITED_STACK_BYTES: Final = 2 << 20
"""The stack of a thread in a process without a limit of the stack (pthread_create(3)); else it is that limit."""
NICENESS: Final = 5
"""Priority of children: where they compete with the service for a processor, they get a quarter of it, which suffices
for a task within its limit by the clock."""


def main(control: int, seconds: float, max_bytes: int) -> None:
    """Runs the nursery: forks a child for each socket that arrives on the descriptor ``control``, until it closes.

    Args:
        seconds: the CPU time limit of a task.
        max_bytes: the memory that a child may take beyond the nursery's.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the service ends its children itself, after its last request
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended children
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(PREFERRED_VICTIM)
    os.nice(NICENESS)
    _warm_up()
    with Path(os.devnull).open("wb") as nowhere, socket.socket(fileno=control) as sockets:
        while True:
            data, descriptors, _, _ = socket.recv_fds(sockets, 1, 1)
            if not data:
                return
            for descriptor in descriptors:
                with suppress(OSError):  # no process can be made: the service reads the end of the socket
                    if not os.fork():
                        sockets.close()
                        os.dup2(nowhere.fileno(), 2)  # a library that fails for lack of memory writes a message
                        _serve(descriptor, seconds, max_bytes)
                os.close(descriptor)


def _warm_up() -> None:
    """Imports all libraries that tasks use, and makes what they share."""
    for kind, source in (("regex", "a"), ("json_schema", {"type": "integer"})):
        constraint = Constraint.of(kind, source)  # type: ignore[arg-type]
        _compile(constraint, "")
        with suppress(ImportError):  # without jsonschema, nothing is verified
            validation.check(constraint)
            validation.problem(constraint, "1")
    gc.collect()
    gc.freeze()


def _serve(descriptor: int, seconds: float, max_bytes: int) -> None:
    """Does the tasks of one socket, then ends the process."""
    code = 1
    try:
        _limit(descriptor, max_bytes)
        os.write(descriptor, READY)
        while (size := _read(descriptor, HEADER.size)) and (body := _read(descriptor, *HEADER.unpack(size))):
            # The default action of SIGPROF and SIGALRM ends the process.
            signal.setitimer(signal.ITIMER_PROF, seconds)
            signal.setitimer(signal.ITIMER_REAL, seconds * WALL_TIMES)
            answer = orjson.dumps(_do(orjson.loads(body)))
            for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
                signal.setitimer(timer, 0)
            _write(descriptor, HEADER.pack(len(answer)) + answer)
        code = 0
    finally:
        os._exit(code)


def _limit(descriptor: int, max_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    size = pages * resource.getpagesize() + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    # The service repeats a compilation in a thread, which must not end by an overflow of its stack.
    stack, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = UNLIMITED_STACK_BYTES if stack == resource.RLIM_INFINITY else stack
    resource.setrlimit(resource.RLIMIT_STACK, (stack // 2, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # open descriptors stay open, new ones can't be made


def _read(descriptor: int, size: int) -> bytes:
    """Reads ``size`` bytes, or none at the end of the socket."""
    data = bytearray()
    while len(data) < size:
        if not (part := os.read(descriptor, size - len(data))):
            return b""
        data += part
    return bytes(data)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _do(message: Mapping[str, Any]) -> Json:
    """Does a task. Returns {"answer": ...}, or {"invalid": [expected, got, hint]}.

    The text of a library's error may quote the client's schema: only its type goes on.
    """
    constraint = Constraint(message["kind"], message["source"], key=b"")
    try:
        return {"answer": TASKS[message["task"]](constraint, message["text"])}
    except InvalidInput as error:
        return {"invalid": [error.expected, error.got, error.hint]}
    except MemoryError:
        raise
    except Exception as error:
        hint = f"the library that applies it fails with {type(error).__name__}"
        return {"invalid": ["a constraint that can be applied", "", hint]}


def _compile(constraint: Constraint, text: str) -> tuple[int, float]:
    """Compiles a constraint and computes its first mask. Returns the bytes and the CPU seconds that it takes."""
    before, began = _used_bytes(), time.thread_time()
    matcher = compile_grammar(validation.bytes_vocabulary(), constraint, ())
    first = matcher.deep_copy()
    first.compute_bitmask()
    if first.is_error():
        raise failure(first, ())
    return max(_used_bytes() - before, 0), time.thread_time() - began


def _check(constraint: Constraint, text: str) -> None:
    validation.check(constraint)


TASKS: Final[Mapping[str, Callable[[Constraint, str], Json]]] = {
    "compile": _compile,
    "check": _check,
    "verify": validation.problem,
}


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of mallinfo(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _used_bytes() -> int:
    """Bytes that are allocated. Without glibc 2.33, the memory of the process."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    info.restype = _MallocInfo
    found = info()
    return int(found.uordblks) + int(found.hblkhd)
