"""Lives without end, or as many as are asked for: `make prove`.

Prints what was lived and what went wrong, and with `--rules` the seed that finds each rule that is taken out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.testing.simulation.simulate import WorkerProcess, in_parallel
from tests.simulation import deployments
from tests.simulation.rules import RULES, take_out
from tests.support.tools import scratch

SUBJECTS = {
    "sums": "tests.simulation.sums:subject",
    "calls": "tests.simulation.sums:calls",
    "graphs": "tests.simulation.graphs:subject",
    "topics": "tests.simulation.topics:subject",
}
DEPLOYMENTS = "deployments"
"""Lives on the real clock, without the simulator."""


@dataclass
class Tally:
    """The outcome of many lives."""

    lives: int = 0
    cpu_s: float = 0.0
    simulated_s: float = 0.0
    restores: int = 0
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, Any]] = field(default_factory=list)

    def add(self, report: dict[str, Any]) -> None:
        self.lives += 1
        self.cpu_s += report.get("cpu_s", 0.0)
        self.simulated_s += report.get("simulated_s", 0.0)
        self.restores += report.get("restores", 0)
        self.events += report.get("events", 0)
        self.faults.update(report.get("faults", {}))
        if report["broken"]:
            self.broken.append(report)

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {name}" for name, count in sorted(self.faults.items()) if count)
        return (
            f"{self.lives:,} lives, {self.simulated_s / 3600:,.1f} h simulated, {self.events:,} events, "
            f"{self.cpu_s / max(1, self.lives):.2f} s of CPU each\nfaults: {faults}\nstores restored from a "
            f"checkpoint and compared: {self.restores:,}\nbroken: {len(self.broken)}"
        )


def lived_without(rule: str, seed: int) -> dict[str, Any]:
    """The request for a life in a process that the rule is taken out of."""
    return {"seed": seed, "first": [f"{take_out.__module__}:{take_out.__name__}", rule]}


def live(
    subject: str,
    seeds: Iterator[int],
    *,
    processes: int = 1,
    without: str = "",
    most_broken: int = 3,
    until: float | None = None,
) -> Tally:
    """Live the seeds of a subject, in so many processes.

    Args:
        without: the name of the rule that is taken out.
        most_broken: no more lives begin once so many are broken.
        until: no more lives begin then, on the monotonic clock.
    """
    with ExitStack() as undo:
        place = scratch.where(in_memory=True)
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="penstock-prove-", dir=place)))
        workers = [
            undo.enter_context(closing(WorkerProcess(SUBJECTS[subject], folder=folder))) for _ in range(processes)
        ]
        requests = (lived_without(without, seed) if without else seed for seed in seeds)
        return live_in(workers, requests, most_broken=most_broken, until=until)


def live_in(
    workers: list[WorkerProcess],
    requests: Iterator[int | dict[str, Any]],
    *,
    most_broken: int = 3,
    until: float | None = None,
) -> Tally:
    """As `live`, in these processes."""
    tally = Tally()

    def enough(report: dict[str, Any]) -> bool:
        tally.add(report)
        return len(tally.broken) >= most_broken or (until is not None and time.monotonic() >= until)

    for _ in in_parallel(workers, requests, enough):
        pass
    return tally


def story(report: dict[str, Any]) -> str:
    """A broken life in words."""
    lines = [f"seed {report['seed']}: {each}" for each in report["broken"][:3]]
    return "\n".join([*lines, *report.get("story", [])[-40:], report.get("traceback", "")])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="for each subject's share of them")
    parser.add_argument("--first", type=int, default=None, help="the first seed; by default another one each time")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rules", action="store_true", help="take each rule out, and find out who notices")
    parser.add_argument("--lives", type=int, default=400, help="for each rule, and each subject")
    given = parser.parse_args()
    return _rules(given.processes, given.lives) if given.rules else _prove(given)


def _prove(given: argparse.Namespace) -> int:
    first = int(time.time()) if given.first is None else given.first
    failed = False
    share_s = given.minutes * 60 / (len(SUBJECTS) + 1)
    for subject in [*SUBJECTS, DEPLOYMENTS]:
        until = time.monotonic() + share_s
        if subject == DEPLOYMENTS:
            tally = Tally()
            for report in deployments.reports(first, processes=2 * given.processes, until=until):  # they wait, too
                tally.add(report)
        else:
            tally = live(subject, itertools.count(first), processes=given.processes, until=until)
        print(f"{subject}, seeds from {first}\n{tally}\n", flush=True)
        for report in tally.broken:
            print(story(report), json.dumps(report.get("choices")), sep="\n", flush=True)
        failed = failed or bool(tally.broken)
    return int(failed)


def _rules(processes: int, lives: int) -> int:
    unnoticed = []
    for name, rule in RULES.items():
        if isinstance(rule.missed_by, str):
            print(f"{name}: {rule.text}\n    {rule.missed_by}", flush=True)
            continue
        found = ""
        for subject in sorted(SUBJECTS, key=lambda each: each != rule.missed_by[0]):
            tally = live(subject, iter(range(lives)), processes=processes, without=name, most_broken=1)
            if tally.broken:
                report = tally.broken[0]
                found = f"{subject}, seed {report['seed']}, of {tally.lives} lives: {report['broken'][0][:200]}"
                break
        print(f"{name}: {rule.text}\n    {found or 'NOT NOTICED'}", flush=True)
        if not found:
            unnoticed.append(name)
    print(f"{len(RULES) - len(unnoticed)} of {len(RULES)} rules are missed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
