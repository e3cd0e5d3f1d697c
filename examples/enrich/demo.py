"""The demo of side inputs and pushed tables: both change while a job joins them, and no output mixes old and new. With
`--crash`, the driver, containers and a Python worker are killed meanwhile."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from examples.enrich.data import NEW_NAME, RENAMED, numbered_flights, push
from examples.flights.data import data_file
from examples.running import DEADLINE_S, HOME, PENSTOCK, Kind, containers, run, workers
from penstock import admin
from penstock.errors import NotFoundError

JOB = "enriched-flights"
SLICE, PAUSE_S = 500, 0.1
"""The flights published at once while the tables change, and the pause between two slices."""
LAST_SHARE, LAST_PAUSE_S = 20, 1.0
"""Towards the end a slice is this part of what is left, so that flights still come when a slow table is there."""
COMMAND = (*PENSTOCK, "run", "examples/enrich/app.py:app")
CONFIG = {
    "job.batch.max.messages": 20_000,
    "task.commit.ms": 500,
    "tables.poll.ms": 500,
    "job.lease.ms": 3000,
    "job.retry.max": 20,
}


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash", action="store_true", help="kill -9 the driver, containers and a Python worker")
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier run")
    parser.add_argument("--flights", type=int, default=None, help="publish only this many flights")
    arguments = parser.parse_args()
    home = (HOME / ("demo-enrich-crash" if arguments.crash else "demo-enrich")).resolve()
    shutil.rmtree(home, ignore_errors=True)
    os.environ["PENSTOCK_HOME"] = str(home)
    only = [] if arguments.flights is None else ["--flights", str(arguments.flights)]
    seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
    flights = [orjson.dumps(flight) + b"\n" for flight in numbered_flights(arguments.flights)]
    before, rest = len(flights) // 4, len(flights) * 3 // 4
    prepare(home, flights[:before])
    with Driver([*COMMAND, *assigned()], random.Random(seed) if arguments.crash else None) as driver:
        step("the job joins flights with the first edition of the planes and with the airlines of a stream")
        driver.strike("container", "during the bootstrap")
        driver.wait(lambda: read() >= before, f"{before:,} flights to be read")
        with Flow(flights[before:rest]):
            step(f"flights keep coming; {RENAMED} is now called {NEW_NAME}")
            publish("airlines", "csv", f"carrier,name\n{RENAMED},{NEW_NAME}\n".encode())
            driver.strike("container", "at an update")
            step("flights keep coming; a second edition of the planes is pushed")
            push(home / "planes", 2)
            driver.strike("worker", "at a push")
            driver.strike("driver", "at a push")
            driver.wait(lambda: shown(), "an output with both")
            step("the output shows both")
            driver.strike("container", "after a swap")
        step("the rest of the flights")
        publish("flights", "jsonl", b"".join(flights[rest:]))
        driver.strike("driver", "after a swap")
        driver.wait(lambda: read() >= len(flights), f"{len(flights):,} flights to be read")
        run([*PENSTOCK, "table", "versions", JOB, "planes"])
        run([*PENSTOCK, "stop", JOB])
        driver.ended()
    step("every output is compared with a plain join and with the other outputs of its batch")
    run([sys.executable, "-m", "examples.enrich.verify", *only])


def prepare(home: Path, flights: Sequence[bytes]) -> None:
    """Publish the airlines, the first flights and the first edition."""
    for stream in ("flights", "airlines"):
        run([*PENSTOCK, "stream", "create", stream, "--partitions", "4"])
    with data_file("airlines.csv").open("rb") as file:
        publish("airlines", "csv", file.read())
    publish("flights", "jsonl", b"".join(flights))
    push(home / "planes", 1)


def publish(stream: str, form: str, records: bytes) -> None:
    """Append records to a stream. The key is the airline."""
    with tempfile.NamedTemporaryFile(suffix=f".{form}") as file:
        file.write(records)
        file.flush()
        system = admin.open_stream(stream).system
        admin.publish(system, stream, file.name, admin.PublishOptions(key_field="carrier"))


def assigned() -> list[str]:
    """The `-c` options that set the job's configuration keys."""
    return [word for key, value in CONFIG.items() for word in ("-c", f"{key}={value}")]


def step(text: str) -> None:
    """Announce the next step."""
    print(f"\n--- {text}", flush=True)


class Flow:
    """Publishes flights slice by slice on a separate thread until the block ends."""

    def __init__(self, flights: Sequence[bytes]) -> None:
        self._flights = flights
        self._published = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Publish the rest of the flights."""
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._publish(len(self._flights))

    def _run(self) -> None:
        # The last flight stays for the end.
        while (left := len(self._flights) - self._published) > 1 and not self._stop.is_set():
            size = max(1, min(SLICE, left // LAST_SHARE))
            self._publish(self._published + size)
            self._stop.wait(PAUSE_S if size == SLICE else LAST_PAUSE_S)

    def _publish(self, until: int) -> None:
        if until > self._published:
            publish("flights", "jsonl", b"".join(self._flights[self._published : until]))
        self._published = until


class Driver:
    """The driver of the job. It runs until `ended`, and is started again after `strike` has killed it."""

    def __init__(self, command: list[str], chance: random.Random | None) -> None:
        """Without `chance`, `strike` does nothing."""
        self._command = command
        self._chance = chance
        self._process = subprocess.Popen(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def strike(self, kind: Kind, moment: str) -> None:
        """In the demo with `--crash`, kill a process of the kind with `kill -9`."""
        if self._chance is None:
            return
        find: dict[Kind, Callable[[int], list[int]]] = {
            "driver": lambda pid: [pid],
            "container": containers,
            "worker": workers,
        }
        self.wait(lambda: find[kind](self._process.pid), f"a {kind} to kill")
        time.sleep(self._chance.uniform(0.0, 1.0))
        found = sorted(find[kind](self._process.pid))
        if not found:
            print(f"no {kind} to kill {moment}", flush=True)
            return
        victim = self._chance.choice(found)
        os.kill(victim, signal.SIGKILL)
        print(f"kill -9 {victim} ({kind}) {moment}", flush=True)
        if kind == "driver":
            self._process.wait()
            self._process = subprocess.Popen(self._command)

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition. Exit if the job ends first."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"waited for {what}: the job ended, or {DEADLINE_S} s passed")
            time.sleep(0.1)

    def ended(self) -> None:
        """Wait for the driver to end. Exit with its status if it failed."""
        if self._process.wait(DEADLINE_S):
            sys.exit(self._process.returncode)


def read() -> int:
    """The number of flights that the last checkpoint covers."""
    try:
        with admin.open_job(JOB) as job:
            return sum(offset for task in admin.read_checkpoint(job).tasks for offset in task.next_offsets.values())
    except NotFoundError:
        return 0


def shown() -> bool:
    """Whether the newest outputs have the new name and the second edition."""
    tail = admin.StreamTail(admin.open_stream("enriched-flights"))
    try:
        last = [orjson.loads(message.value or b"null") for message in tail.messages(count=SLICE)]
    except NotFoundError:
        return False
    finally:
        tail.close()
    is_swapped = any(output["plane"] and output["plane"]["edition"] == 2 for output in last)
    return is_swapped and any(output["airline"] == NEW_NAME for output in last)


if __name__ == "__main__":
    main()
