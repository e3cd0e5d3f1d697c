"""A process that lives the lives of one subject, each in a fork of itself.

A fork has what a first life has left in this process: caches, counters, imported modules. So a life depends on its
decisions alone, and not on those that were lived before it.

    python -m penstock.testing.simulation.worker MODULE:SUBJECT [ARGUMENT] < requests > reports

Each request is a line of JSON: a seed, the decisions of a life, or both as `{"choices": [...], "seed": 7}`, where the
seed is that of the program's random numbers. With `"first": ["module:function", "argument"]`, this is called in the
process of the life before it begins. Each report is a line of JSON. With an argument, the subject is made with it; such
a subject may have further requests, which are objects of JSON.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

from penstock.testing.simulation import machine

machine.install()

from penstock.base.plugins import load  # noqa: E402
from penstock.errors import UserCodeError  # noqa: E402
from penstock.testing.simulation.calls import place_of, users_frame  # noqa: E402
from penstock.testing.simulation.choices import Choices  # noqa: E402
from penstock.testing.simulation.faults import Rates  # noqa: E402
from penstock.testing.simulation.life import JobUnderTest, Life, Outcome  # noqa: E402
from penstock.testing.simulation.scheduler import KilledError, StuckError, active  # noqa: E402

TOO_LONG = "the life has not ended within"
_STORY = 60
"""The last events that a report of a failure shows."""


class Subject(Protocol):
    """Makes jobs out of decisions, and knows what has to hold."""

    def job(self, choices: Choices) -> JobUnderTest:
        """A job with its inputs."""
        ...

    def broken(self, outcome: Outcome) -> list[str]:
        """Say in words which invariants do not hold in the end."""
        ...

    def rates(self, choices: Choices) -> Rates:
        """The rates of faults."""
        ...


class AskedSubject(Subject, Protocol):
    """A subject that was made with an argument: somebody's job, of which nothing is known."""

    limit_s: float
    """The most seconds that a life takes."""
    memory_bytes: int
    """The most memory that a life takes."""
    told: list[str]
    """The messages that come late or twice in the life, in words."""

    def asked(self, request: dict[str, Any]) -> tuple[AskedSubject, Choices, int]:
        """The subject, the decisions and the seed of a life that has its own request; {} is one without faults."""
        ...

    def profile(self) -> Any:
        """The function that `sys.setprofile` gets in all threads of the life, or None."""
        ...

    def more(self, outcome: Outcome) -> dict[str, Any]:
        """Further entries of the report."""
        ...


def live(subject: Subject, choices: Choices, seed: int) -> dict[str, Any]:
    """One life, and what is to be said of it."""
    began, is_asked = time.process_time(), hasattr(subject, "asked")
    folder = Path(tempfile.mkdtemp(prefix="penstock-simulation-"))
    try:
        job = subject.job(choices)
        rates = subject.rates(choices)
        life = Life(job, choices, folder, rates)
        if is_asked:
            life.scheduler.profile = subject.profile()  # type: ignore[attr-defined]
        outcome = life.run(seed)
        broken = [_words(each) for each in outcome.failures]
        broken += outcome.broken
        more = {} if broken or not is_asked else subject.more(outcome)  # type: ignore[attr-defined]
        broken += [] if broken else subject.broken(outcome)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report: dict[str, Any] = {
        "seed": seed,
        "broken": broken,
        "faults": dict(outcome.faults),
        "switches": outcome.switches,
        "simulated_s": round(outcome.seconds, 3),
        "cpu_s": round(time.process_time() - began, 3),
        "restores": outcome.restores,
        "events": len(outcome.events),
        "digest": _digest([event.replace(str(folder), "") for event in outcome.events]),
        **more,
    }
    if broken:
        report["raised"] = any(isinstance(each, UserCodeError) for each in outcome.failures)
        errors = [_traceback(each) for each in outcome.failures[:1]]
        told = [] if not is_asked else subject.told  # type: ignore[attr-defined]
        report |= {"choices": outcome.choices, "story": outcome.events[-_STORY:], "traceback": "".join(errors)}
        report |= {"told": told}
    return report


def _words(error: BaseException) -> str:
    if isinstance(error, UserCodeError):
        return f"{error.failed.reason}, in {error.failed.place}"
    return f"{type(error).__name__}: {error}"


def _traceback(error: BaseException) -> str:
    """The traceback of the application's code, if it raised."""
    if isinstance(error, UserCodeError):
        return error.failed.traceback
    if isinstance(error, StuckError):
        return ""  # it would be that of the simulation
    return "".join(traceback.format_exception(error))


def _digest(events: list[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(events).encode()).hexdigest()[:16]


def _limit(subject: Subject) -> None:
    """Have a life end that takes too long or too much memory, with a message that says where it is."""
    limit_s = getattr(subject, "limit_s", None)
    if limit_s is None:
        return

    def give_up(_number: int, frame: FrameType | None) -> None:
        where = "" if frame is None else f": it is in {place_of(users_frame(frame) or frame)}"
        text = f"{TOO_LONG} {limit_s:g} s{where}"
        scheduler = active()
        if scheduler is None:
            raise StuckError(text)
        scheduler.give_up(text)
        if scheduler.mine() is not None:
            raise KilledError(text)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)  # again, for code that catches everything
    faulthandler.dump_traceback_later(limit_s + 10, exit=True)  # something that lets no other thread run
    pages = Path("/proc/self/statm")
    if pages.exists():
        most = int(pages.read_text("ascii").split()[0]) * resource.getpagesize() + subject.memory_bytes  # type: ignore[attr-defined]
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _unlimit() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


def _in_fork(subject: Subject, request: int | list[int] | dict[str, Any]) -> str:
    """The report of a life, as a line."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            if isinstance(request, dict) and hasattr(subject, "asked"):
                subject, choices, seed = subject.asked(request)
            elif isinstance(request, dict):
                made, seed = request.get("choices"), request["seed"]
                choices = Choices.of_seed(seed) if made is None else Choices.of_list(made)
                if "first" in request:
                    function, argument = request["first"]
                    load(function)(argument)
            elif isinstance(request, int):
                choices, seed = Choices.of_seed(request), request
            else:
                choices, seed = Choices.of_list(request), 0
            _limit(subject)
            data = json.dumps(live(subject, choices, seed)).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(data)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):  # the application may have closed them
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        data = json.dumps({"seed": request, "broken": [f"the simulation itself ended with status {status}"]}).encode()
    return data.decode()


def _answer_all(report: dict[str, Any], requests: Iterable[str], reports: TextIO) -> None:
    """The job fails without any fault. What it began may still run, so that no life can be forked from here."""
    for _ in requests:
        print(json.dumps(report), file=reports, flush=True)
    os._exit(0)


def _own_pipes() -> tuple[TextIO, TextIO]:
    """The pipes of requests and reports, which no code of the application can reach: it reads nothing, and what it
    prints goes where errors go."""
    requests, reports = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, reports


def _forget_prints() -> None:
    """Empty the file of errors, which would grow with each life."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        os.ftruncate(2, 0)


def main() -> None:
    requests, reports = _own_pipes()
    module, _, name = sys.argv[1].partition(":")
    found = getattr(importlib.import_module(module), name)
    gc.disable()
    if sys.argv[2:]:
        subject = found(*sys.argv[2:])
        _limit(subject)
        first = live(*subject.asked({}))
        _unlimit()
        if first["broken"]:
            _answer_all(first, requests, reports)
    else:
        subject = found
        live(subject, Choices.of_seed(-1), 0)
    gc.collect()
    gc.freeze()
    for line in requests:
        with suppress(Exception):
            sys.stdout.flush()
        _forget_prints()
        print(_in_fork(subject, json.loads(line)), file=reports, flush=True)


if __name__ == "__main__":
    main()
