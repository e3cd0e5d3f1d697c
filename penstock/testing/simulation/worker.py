"""A process that lives the lives of one subject, each in a fork of itself.

A fork has what the first lives have left in this process: caches, counters, imported modules. So a life depends on its
decisions alone, and not on those that were lived before it.

    python -m penstock.testing.simulation.worker MODULE:SUBJECT < requests > reports

Each request is a line: a seed, or the decisions of a life, as JSON. Each report is a line of JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Protocol

from penstock.testing.simulation import machine

machine.install()

from penstock.testing.simulation.choices import Choices  # noqa: E402
from penstock.testing.simulation.faults import Rates  # noqa: E402
from penstock.testing.simulation.life import JobUnderTest, Life, Outcome  # noqa: E402

_WARM_LIVES = 4
_STORY = 60
"""The last events that a report of a failure shows."""


class Subject(Protocol):
    """Makes jobs out of decisions, and knows what has to hold."""

    def job(self, choices: Choices) -> JobUnderTest:
        """A job with its inputs."""
        ...

    def broken(self, outcome: Outcome) -> list[str]:
        """What does not hold in the end, in words."""
        ...

    def rates(self, choices: Choices) -> Rates:
        """How much goes wrong."""
        ...


def live(subject: Subject, choices: Choices, seed: int) -> dict[str, Any]:
    """One life, and what is to be said of it."""
    began = time.process_time()
    folder = Path(tempfile.mkdtemp(prefix="penstock-simulation-"))
    try:
        job = subject.job(choices)
        rates = subject.rates(choices)
        outcome = Life(job, choices, folder, rates).run(seed)
        broken = [f"{type(each).__name__}: {each}" for each in outcome.failures]
        broken += outcome.broken
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
        "digest": _digest(outcome.events),
    }
    if broken:
        errors = [traceback.format_exception(each) for each in outcome.failures[:1]]
        report |= {
            "choices": outcome.choices,
            "story": outcome.events[-_STORY:],
            "traceback": "".join(line for lines in errors for line in lines),
        }
    return report


def _digest(events: list[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(events).encode()).hexdigest()[:16]


def _in_fork(subject: Subject, request: int | list[int]) -> str:
    """The report of a life, as a line."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            seed = request if isinstance(request, int) else 0
            choices = Choices.of_seed(seed) if isinstance(request, int) else Choices.of_list(request)
            data = json.dumps(live(subject, choices, seed)).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(data)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        data = json.dumps({"seed": request, "broken": [f"the simulation itself ended with status {status}"]}).encode()
    return data.decode()


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    subject: Subject = getattr(importlib.import_module(module), name)
    gc.disable()
    for seed in range(_WARM_LIVES):
        live(subject, Choices.of_seed(-1 - seed), seed)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        print(_in_fork(subject, json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
