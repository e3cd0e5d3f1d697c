"""Lives in which jobs take over from each other, on the real clock and the real file system, each in a folder that is
removed behind it."""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from tests.support.tools import scratch
from tests.support.world.deployed_world import PANES, TOTALS, DeployedWorld, own_place, sorted_messages

EXACTLY_ONCE = {f"streams.local.{stream}.output.guarantee": "exactly-once" for stream in (TOTALS, PANES)}
_DELAYS: tuple[dict[str, int], ...] = ({"one": 5000}, {}, {"two": 5000})
_LIVES_OF_A_PROCESS = 20
"""A process that is killed by its life's memory or hangs takes few others with it."""


def live(seed: int, steps: int = 120) -> Counter[str]:
    """A life in the working directory. What happened in it.

    Raises:
        AssertionError: a message is missing, or was sent twice.
    """
    world = DeployedWorld(seed, _DELAYS[seed % len(_DELAYS)], **EXACTLY_ONCE)
    world.live(steps)
    world.finish()
    assert sorted_messages(world.read(TOTALS)) == sorted_messages(world.expected_totals())
    assert sorted_messages(world.read(PANES)) == sorted_messages(world.expected_panes())
    return world.seen


def report_of(seed: int) -> dict[str, Any]:
    """A life in a folder that is made for it, as a report for `Tally`."""
    began = time.process_time()
    report: dict[str, Any] = {"seed": seed, "broken": []}
    with (
        tempfile.TemporaryDirectory(prefix="penstock-prove-", dir=scratch.where(in_memory=True)) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        own_place(Path(folder), patch)
        try:
            report["faults"] = dict(live(seed))
        except Exception as error:
            report |= {"broken": [repr(error)[:2000]], "traceback": traceback.format_exc()}
    return {**report, "cpu_s": time.process_time() - began}


def reports(first: int, *, processes: int, until: float, most: int | None = None) -> Iterator[dict[str, Any]]:
    """Lives from a seed on, in so many processes, as they end. None begins behind a time of the monotonic clock."""
    seeds = itertools.count(first) if most is None else iter(range(first, first + most))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, max_tasks_per_child=_LIVES_OF_A_PROCESS) as pool:
        running: set[Future[dict[str, Any]]] = set()
        while True:
            while len(running) < processes and time.monotonic() < until and (seed := next(seeds, None)) is not None:
                running.add(pool.submit(report_of, seed))
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)
