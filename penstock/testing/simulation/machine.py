"""The machine that a simulated program sees: its locks, threads, clocks, random numbers, disk and network.

`install` replaces them in this process, before anything else of Penstock is imported, so that every lock that a module
makes is one of these. A thread that is not in a simulation uses them as it would use the real ones.
"""

from __future__ import annotations

import _thread
import builtins
import errno
import io
import logging  # before its lock is replaced: it is taken by code that runs at any time
import os
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NoReturn

from penstock.testing.simulation.scheduler import Actor, KilledError, Scheduler, activate, active

_allocate = _thread.allocate_lock
_RealThread = threading.Thread
_real = {
    name: getattr(time, name)
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "sleep",
        "clock_gettime",
    )
}
_real_urandom = os.urandom
_random = random.Random(0)  # noqa: S311 - reproducible, not secret


def _ident() -> int:
    """The number of the thread, or of the actor."""
    scheduler = active()
    me = None if scheduler is None else scheduler.mine()
    return _thread.get_ident() if me is None else me.ident


class Lock:
    """A lock whose waiters leave the turn to others."""

    def __init__(self) -> None:
        self._real = _allocate()
        self._waiters: deque[Actor] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = active()
        me = None if scheduler is None else scheduler.mine()
        if scheduler is None or me is None:
            return self._real.acquire(blocking, timeout)
        scheduler.step(me)
        if self._real.acquire(False):
            return True
        return blocking and self._wait(scheduler, me, None if timeout < 0 else timeout)

    def _wait(self, scheduler: Scheduler, me: Actor, seconds: float | None) -> bool:
        deadline = None if seconds is None else scheduler.now_ns + round(seconds * 1e9)
        while True:
            left = None if deadline is None else (deadline - scheduler.now_ns) / 1e9
            self._waiters.append(me)
            try:
                woken = scheduler.wait(me, left)
            except KilledError:
                if me not in self._waiters:
                    self._wake_next(scheduler)  # the turn that it was given goes to another one
                raise
            finally:
                if me in self._waiters:
                    self._waiters.remove(me)
            if self._real.acquire(False):
                return True
            if not woken:
                return False

    def release(self) -> None:
        if not self._real.locked() and _is_dead():  # it could not take it again, as a condition does
            return
        self._real.release()
        if self._waiters and (scheduler := active()) is not None:
            self._wake_next(scheduler)

    def _wake_next(self, scheduler: Scheduler) -> None:
        if self._waiters and not self._real.locked():
            scheduler.wake(self._waiters.popleft())

    def locked(self) -> bool:
        return self._real.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


def _is_dead() -> bool:
    scheduler = active()
    me = None if scheduler is None else scheduler.mine()
    return me is not None and bool(me.process.dead)


class RLock:
    """A lock that its holder may take again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner = 0
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = _ident()
        if self._owner == me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner != _ident():
            if _is_dead():
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = 0
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    # What `threading.Condition` asks of a lock.

    def _is_owned(self) -> bool:
        return self._owner == _ident()

    def _release_save(self) -> tuple[int, int]:
        state = self._count, self._owner
        self._count = self._owner = 0
        self._lock.release()
        return state

    def _acquire_restore(self, state: tuple[int, int]) -> None:
        self._lock.acquire()
        self._count, self._owner = state

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


_numbers = count()


def _numbered(kind: Any) -> None:
    """Have objects of this class come out of sets in an order that follows from the schedule, and not from their
    addresses."""
    make = kind.__init__

    def numbered(self: Any, *args: Any, **kwargs: Any) -> None:
        self.number_in_sets = next(_numbers)
        make(self, *args, **kwargs)

    kind.__init__ = numbered
    kind.__hash__ = lambda self: self.number_in_sets


class Thread(_RealThread):
    """A thread; started by an actor, it is one."""

    _actor: Actor | None = None

    def start(self) -> None:
        scheduler = active()
        me = None if scheduler is None else scheduler.mine()
        if scheduler is None or me is None:
            super().start()
            return
        if self._actor is not None:
            raise RuntimeError("threads can only be started once")
        scheduler.check_alive(me)
        self._actor = scheduler.spawn(me.process, self.name, self._act)

    def _act(self) -> None:
        self._ident = _ident()
        own: Any = self
        own._started.set()
        known: dict[int, _RealThread] = threading._active  # type: ignore[attr-defined]
        known[self._ident] = self
        self.run()

    def join(self, timeout: float | None = None) -> None:
        scheduler = active()
        me = None if scheduler is None else scheduler.mine()
        if self._actor is None:
            super().join(timeout)
        elif scheduler is not None and me is not None:
            scheduler.join(me, self._actor, timeout)

    def is_alive(self) -> bool:
        return super().is_alive() if self._actor is None else not self._actor.ended


class Timer(Thread):
    """Calls a function after some seconds, unless it is cancelled."""

    def __init__(self, interval: float, function: Callable[..., object], args: Any = None, kwargs: Any = None) -> None:
        super().__init__()
        self.interval, self.function = interval, function
        self.args, self.kwargs = args or [], kwargs or {}
        self.finished = threading.Event()

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        self.finished.wait(self.interval)
        if not self.finished.is_set():
            self.function(*self.args, **self.kwargs)
        self.finished.set()


def _clock(name: str, value: Callable[[int], Any], *, jumps: bool) -> Callable[..., Any]:
    """A clock that is the simulation's for its actors. `jumps`: it is the wall clock of a host."""
    real = _real[name]

    def now(*which: int) -> Any:
        scheduler = active()
        me = None if scheduler is None else scheduler.mine()
        if scheduler is None or me is None:
            return real(*which)
        ahead = jumps or which == (time.CLOCK_REALTIME,)
        return value(scheduler.look() + (scheduler.skews.get(me.process.host, 0) if ahead else 0))

    now.__name__ = name
    return now


def _sleep(seconds: float) -> None:
    scheduler = active()
    if scheduler is None or scheduler.mine() is None:
        _real["sleep"](seconds)
    else:
        scheduler.sleep(max(seconds, 1e-6))


def _urandom(size: int) -> bytes:
    scheduler = active()
    return _real_urandom(size) if scheduler is None or scheduler.mine() is None else _random.randbytes(size)


_real_hostname = socket.gethostname


def _hostname() -> str:
    scheduler = active()
    me = None if scheduler is None else scheduler.mine()
    return _real_hostname() if me is None else me.process.host


_real_getpid = os.getpid


def _getpid() -> int:
    scheduler = active()
    me = None if scheduler is None else scheduler.mine()
    return _real_getpid() if me is None else me.process.pid


_real_exit = os._exit
_EXIT_OF_CONTAINER = 70


def _exit(status: int) -> NoReturn:
    """End the process: the simulated one, where a container ends itself. Code of a user that ends the process ends the
    life."""
    scheduler = active()
    me = None if scheduler is None else scheduler.mine()
    if scheduler is None or me is None or status != _EXIT_OF_CONTAINER:
        _real_exit(status)
    scheduler.kill(me.process, f"it ends itself with status {status}")
    raise KilledError


def _on_disk(real: Callable[..., Any], *, writes: Callable[..., bool]) -> Callable[..., Any]:
    """A call that needs space on a disk. For actors of a simulation there may be none."""

    def call(path: Any, *args: Any, **options: Any) -> Any:
        scheduler = active()
        if scheduler is None or scheduler.mine() is None or not writes(path, *args, **options):
            return real(path, *args, **options)
        if scheduler.disk_fails(os.fspath(path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *args, **options)

    return call


def _opens_to_write(path: Any, mode: str = "r", *_args: Any, **_options: Any) -> bool:
    return not isinstance(path, int) and any(letter in mode for letter in "wax+")


_NO_NETWORK = (
    "a simulated life does not reach the network, because each of its attempts would call again: give the application "
    "a client that answers by itself, or allow calls with `--network`, in a test with `network=True`"
)
_network = False


def allow_network(allowed: bool) -> None:
    """Let actors of simulations in this process reach the network, or not. At first they do not."""
    global _network
    _network = allowed


def _on_network(real: Callable[..., Any]) -> Callable[..., Any]:
    """A call that reaches another machine, or another process of this one. Sockets of files (AF_UNIX) do not."""

    def call(first: Any, *args: Any, **options: Any) -> Any:
        scheduler = active()
        is_file = isinstance(first, socket.socket) and first.family not in _INTERNET
        if scheduler is None or scheduler.mine() is None or _network or is_file:
            return real(first, *args, **options)
        raise PermissionError(errno.EACCES, _NO_NETWORK)

    return call


_INTERNET = (socket.AF_INET, socket.AF_INET6)
_installed = False


def install() -> None:
    """Replace locks, threads, clocks, random numbers, the disk and the network of this process."""
    global _installed
    if _installed:
        return
    late = sorted(name for name in sys.modules if name.startswith(("concurrent.futures", "penstock.driver")))
    if late:
        raise RuntimeError(f"modules were imported before the machine was replaced: {', '.join(late[:3])}")
    _installed = True
    logging.raiseExceptions = False
    told = sys.unraisablehook
    sys.unraisablehook = lambda args: None if isinstance(args.exc_value, KilledError) else told(args)
    import _threading_local
    import queue

    modules: Any = (threading, queue, time, os, random, builtins)
    in_threading, in_queue, in_time, in_os, in_random, in_builtins = modules
    in_threading.Lock = in_threading._allocate_lock = Lock
    in_threading.RLock = in_threading._CRLock = in_threading._PyRLock = RLock
    in_threading.get_ident = _ident
    in_threading.local = _threading_local.local
    in_threading.Thread, in_threading.Timer = Thread, Timer
    from concurrent.futures import Future

    import psutil

    in_psutil: Any = psutil.Process
    look_at = in_psutil._init
    in_psutil._init = lambda self, pid, *more, **named: look_at(  # what is asked of this process is real
        self, _real_getpid() if pid is None else pid, *more, **named
    )
    for kind in (Thread, Future):
        _numbered(kind)
    in_queue.SimpleQueue = in_queue._PySimpleQueue
    seconds, nanoseconds = (lambda ns: ns / 1e9), (lambda ns: ns)
    for name in ("time", "monotonic", "perf_counter", "clock_gettime"):
        setattr(in_time, name, _clock(name, seconds, jumps=name == "time"))
    for name in ("time_ns", "monotonic_ns", "perf_counter_ns"):
        setattr(in_time, name, _clock(name, nanoseconds, jumps=name == "time_ns"))
    in_time.sleep = _sleep
    in_threading._time = in_queue.time = in_time.monotonic
    socket.gethostname = _hostname
    # A name is looked up before a connection is made.
    for owner, name in (
        *((socket.socket, each) for each in ("connect", "connect_ex", "sendto")),
        (socket, "getaddrinfo"),
    ):
        setattr(owner, name, _on_network(getattr(owner, name)))
    in_os.getpid = _getpid
    in_os._exit = _exit
    in_io: Any = io
    in_io.open = in_builtins.open = _on_disk(io.open, writes=_opens_to_write)
    in_os.mkdir = _on_disk(os.mkdir, writes=lambda *_args, **_options: True)
    in_os.urandom = in_random._urandom = _urandom


@contextmanager
def simulated(scheduler: Scheduler, seed: int) -> Iterator[Scheduler]:
    """A schedule runs in the block. Random numbers of the program begin with the seed."""
    global _numbers
    _numbers = count()
    random.seed(seed)
    _random.seed(seed)
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed(seed % (1 << 32))
    threading._counter = count(1).__next__  # type: ignore[attr-defined]  # the names of threads
    activate(scheduler)
    try:
        yield scheduler
    finally:
        activate(None)
