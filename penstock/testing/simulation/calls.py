"""Finds calls in the user's operators that are not the same in each life: of clocks, random numbers, network, files and
other programs. `users_frame` finds the frame of a stack that is the user's code."""

from __future__ import annotations

import builtins
import datetime
import os
import random
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeAlias

import penstock
from penstock.api.messages import IncomingMessageEnvelope
from penstock.api.store import KeyValueStore
from penstock.graph.specs import ApplicationGraph
from penstock.runtime.context import Position
from penstock.runtime.operators.base import operator_of

Kind: TypeAlias = Literal["clock", "random", "network", "file", "program"]
ADVICE: Mapping[Kind, str] = {
    "clock": "a message that is processed again sees another time. `context.batch_time_ms` is the same in every "
    "attempt of a batch, `envelope.timestamp` in every run",
    "random": "a message that is processed again gets another number. Derive it from the message, for example from a "
    "hash of its key and offset",
    "network": "the call is made again with each attempt, and may have another answer. `map_async` and tables are made "
    "for look-ups",
    "file": "each attempt reads or writes the file again, on whichever host it runs",
    "program": "each attempt starts the program again, on whichever host it runs",
}
_CLOCKS = {"now", "utcnow", "today"}
_MORE_CLOCKS = {"process_time", "process_time_ns", "thread_time", "clock_gettime_ns", "localtime", "gmtime", "ctime"}
_FILES = {"open", "remove", "unlink", "rename", "replace", "rmdir", "truncate", "link", "symlink"}
_PROGRAMS = {"system", "posix_spawn", "posix_spawnp", "fork", "forkpty"}
_WALK = 60


@dataclass(frozen=True, slots=True)
class FoundCall:
    """A call that is not the same in each life, at one line of the user's code.

    Attributes:
        kind: what it reads, or reaches.
        call: the function that was called.
        file, line, function: the line that called it.
        operator: the operator in which it was made; empty if that is not known.
        message: the message at which it was first made; empty if that is not known.
    """

    kind: Kind
    call: str
    file: str
    line: int
    function: str
    operator: str = ""
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = f" in operator `{self.operator}`" if self.operator else ""
        at = f", at {self.message}" if self.message else ""
        place = f"{self.file}:{self.line}" if self.file else "something"
        return f"{place} calls {self.call}{where}{at}: {ADVICE[self.kind]}"


class CallFinder:
    """Sees every call of a life, as its `sys.setprofile`, and knows in which operator each is made."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, int], FoundCall] = {}
        """By call and line, the first one of each."""
        self._operators: dict[int, str] = {}
        self._replaced = _replaced()

    def watched(self, graph: ApplicationGraph) -> ApplicationGraph:
        """The application, with operators that say when they are called."""
        return replace(graph, operators=tuple(operator_of(op).watched(self) for op in graph.operators))

    def opens(self, stores: Sequence[KeyValueStore[Any, Any]]) -> None:
        """Nothing: stores are not watched."""

    @contextmanager
    def call(self, operator: str, value: Any, stores: Sequence[KeyValueStore[Any, Any]] = ()) -> Iterator[None]:
        """An operator is called in the block."""
        thread = threading.get_ident()
        before, drawn = self._operators.get(thread, ""), _numpy_state()
        self._operators[thread] = operator
        try:
            yield
        finally:
            if _numpy_state() != drawn:  # its functions are no calls that a profile sees
                message = self._where(sys._getframe())[1]
                key = "numpy.random", operator, 0
                self.found.setdefault(key, FoundCall("random", "numpy.random", "", 0, "", operator, message))
            self._operators[thread] = before

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        """See `sys.setprofile`."""
        if event == "c_call":
            kind = _kind_of(arg)
            caller: FrameType | None = frame
            name = "" if kind is None else _name_of(arg)
        elif event == "call" and frame.f_code in self._replaced:
            kind, caller = self._replaced[frame.f_code], frame.f_back
            name = "os.urandom" if kind == "random" else _name_of(frame.f_locals["real"])
        else:
            return
        if kind is None or caller is None:
            return
        users = users_frame(caller)
        if users is None:
            return
        if users is not caller:
            name = _through(caller, users) or name
        key = name, users.f_code.co_filename, users.f_lineno
        if key not in self.found:
            operator, message = self._where(users)
            self.found[key] = FoundCall(
                kind, name, users.f_code.co_filename, users.f_lineno, users.f_code.co_qualname, operator, message
            )

    def _where(self, users: FrameType) -> tuple[str, str]:
        """The operator and the message that the user's code is called for."""
        operator = self._operators.get(threading.get_ident(), "")
        frame: FrameType | None = users
        for _ in range(_WALK):
            if frame is None:
                break
            for value in list(frame.f_locals.values()):
                if isinstance(value, IncomingMessageEnvelope):
                    ssp = value.ssp
                    return operator, f"stream `{ssp.system_stream}` partition {ssp.partition} offset {value.offset}"
                position = getattr(getattr(value, "instance", None), "position", value)
                if isinstance(position, Position):
                    return operator, position.describe()
            frame = frame.f_back
        return operator, ""


def _numpy_state() -> object:
    """A value that changes when a number is drawn from the generator that all of `numpy.random` shares."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    _, numbers, position, *_ = numpy.get_state()
    return position, int(numbers[0])


def _replaced() -> dict[Any, Kind]:
    """The functions of Python that replace those of C in a simulation."""
    clocks = (time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns)
    kinds: dict[Kind, tuple[Any, ...]] = {
        "clock": clocks,
        "random": (os.urandom,),
        "file": (builtins.open, os.mkdir),
        "network": (socket.socket.connect, socket.socket.connect_ex, socket.socket.sendto, socket.getaddrinfo),
    }
    return {each.__code__: kind for kind, own in kinds.items() for each in own if hasattr(each, "__code__")}


def _kind_of(function: Any) -> Kind | None:
    """The kind of thing that a function of C reads, if that is not the same in each life."""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if name in _CLOCKS and isinstance(owner, type) and issubclass(owner, datetime.date):
        return "clock"
    module = getattr(owner, "__name__", "")
    if (module, name) == ("io", "open") or (module == "posix" and name in _FILES):
        return "file"
    if (module == "posix" and name in _PROGRAMS) or (module, name) == ("_posixsubprocess", "fork_exec"):
        return "program"
    if owner is time and name in _MORE_CLOCKS:
        return "clock"
    if owner is _shared_random or name == "getrandom":
        return "random"
    if name == "default_rng" or type(owner).__module__ == "numpy.random.mtrand":
        return "random"
    return None


_shared_random: Any = random.random.__self__  # type: ignore[attr-defined]
"""The generator of the functions of `random`. One that the user has made with a seed is none of our business."""


def _name_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    if function.__name__ == "open" and getattr(owner, "__name__", "") == "io":
        return "open"
    if owner is _shared_random:
        return f"random.{function.__name__}"
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{function.__name__}"
    if owner is not None and type(owner).__name__ != "module":
        return f"{type(owner).__module__}.{type(owner).__name__}.{function.__name__}"
    if (kind := getattr(function, "__objclass__", None)) is not None:
        return f"{kind.__module__}.{kind.__qualname__}.{function.__name__}"
    module = getattr(owner, "__name__", None) or function.__module__
    return f"{'os' if module == 'posix' else module}.{function.__name__}"


def _through(frame: FrameType, users: FrameType) -> str:
    """The function of a library that the user's code has called."""
    found = frame
    while found.f_back is not None and found.f_back is not users:
        found = found.f_back
    return f"{found.f_globals.get('__name__', '')}.{found.f_code.co_qualname}"


_OURS = str(Path(penstock.__file__).parent)
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def users_frame(frame: FrameType) -> FrameType | None:
    """The nearest frame of the user's code; None if Penstock's comes first. Libraries are neither."""
    found: FrameType | None = frame
    while found is not None:
        kind = _kind(found.f_code.co_filename)
        if kind == "user":
            return found
        if kind == "penstock":
            return None
        found = found.f_back
    return None


def place_of(frame: FrameType) -> str:
    """A frame in words."""
    return f"`{frame.f_code.co_qualname}`, line {frame.f_lineno} of {frame.f_code.co_filename}"


@cache
def _kind(filename: str) -> str:
    if filename.startswith("<frozen "):
        return "library"
    path = str(Path(filename).resolve())
    if path.startswith(_OURS):
        return "penstock"
    return "library" if path.startswith(_LIBRARIES) or "/site-packages/" in path else "user"
