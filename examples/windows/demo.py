"""The demo of windows: publish the flights, run the job, check every pane. With `--crash`, kill processes meanwhile."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from examples.running import HOME, PENSTOCK, Crashes, Kind, run

JOB = "flight-windows"
INPUTS = ("departures", "arrivals")
RUN = (*PENSTOCK, "run", "examples/windows/app.py:app", "--until", "latest")
KINDS: list[Kind] = ["driver", "container", "worker"]


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or a pane is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash", action="store_true", help="kill -9 the driver, a container and a Python worker")
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier run")
    parser.add_argument("--flights", type=int, default=None, help="publish only this many flights")
    arguments = parser.parse_args()
    home = HOME / "demo-windows-crash" if arguments.crash else HOME
    os.environ["PENSTOCK_HOME"] = str(home.resolve())
    if arguments.crash:
        shutil.rmtree(home, ignore_errors=True)
    only = [] if arguments.flights is None else ["--flights", str(arguments.flights)]
    publish(home, only)
    if arguments.crash:
        seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
        command = (*RUN, "-c", "job.batch.max.messages=24000", "-c", "task.commit.ms=500", "-c", "job.lease.ms=3000")
        Crashes(JOB, command).run(KINDS, seed)
    else:
        run([*RUN, "-c", "job.batch.max.messages=40000", "-c", "task.commit.ms=2000"])
    run([sys.executable, "-m", "examples.windows.verify", *only])


def publish(home: Path, only: list[str]) -> None:
    """Publish departures and arrivals once. After an interrupted attempt, begin again without what it left."""
    done = home / "demo-windows-published"
    if done.exists():
        print("the departures and arrivals are already published; the job reads those after its last checkpoint")
        return
    streams = [*INPUTS, "airport-hours", "aircraft-sessions", "next-departures"]
    for left in [home / "jobs" / f"{JOB}-1", *(home / "streams" / stream for stream in streams)]:
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "examples.windows.data", folder, *only])
        for stream in INPUTS:
            run([*PENSTOCK, "stream", "create", stream, "--partitions", "4"])
            run([*PENSTOCK, "stream", "publish", stream, "--file", f"{folder}/{stream}.jsonl"])
    done.touch()


if __name__ == "__main__":
    main()
