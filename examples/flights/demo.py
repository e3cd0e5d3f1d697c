"""The demo: publish the flights, run the job, check its totals. With `--crash`, kill processes while it runs."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.running import HOME, PENSTOCK, PROGRAM, Crashes, Kind, run

FLIGHTS = 336_776
INTRODUCTION = f"""\
This demo
  1. publishes the {FLIGHTS:,} flights that left New York in 2013 to a stream (about a minute),
  2. runs the job in examples/flights/app.py on Spark, which adds them up by aircraft and by carrier, in two stores,
  3. compares every total with a plain computation over the same flights.
"""
RUN = (*PENSTOCK, "run", "examples/flights/app.py:app", "--until", "latest")


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or a total is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash", action="store_true", help="kill -9 the driver and containers while the job runs")
    parser.add_argument("--kills", type=int, default=4, help="how many processes --crash kills (default 4)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier run")
    parser.add_argument("--backup", help="the state backends, such as `blob,changelog-stream`; kept for later runs")
    parser.add_argument("--engine", choices=["rows", "columns"], default="rows", help="by column: both, side by side")
    parser.add_argument("--flights", type=int, default=None, help="publish only this many flights")
    parser.add_argument("--dashboard", action="store_true", help="serve the job's page until Ctrl-C")
    arguments = parser.parse_args()
    home = (HOME / "demo-crash") if arguments.crash else (HOME / "demo-columns") if by_column(arguments) else HOME
    os.environ["PENSTOCK_HOME"] = str(home.resolve())
    print(INTRODUCTION, flush=True)
    if arguments.crash:
        shutil.rmtree(home, ignore_errors=True)
    only = [] if arguments.flights is None else ["--flights", str(arguments.flights)]
    publish(home, only)
    with dashboard(wanted=arguments.dashboard):
        run_job(arguments, home, only)


def run_job(arguments: argparse.Namespace, home: Path, only: list[str]) -> None:
    """Run the job as it was asked for, and check its totals."""
    if by_column(arguments):
        run([sys.executable, "-m", "examples.flights.columns", *only])
        return
    if arguments.crash:
        seed = arguments.seed if arguments.seed is not None else random.randrange(1 << 30)
        kinds: list[Kind] = ["driver", "container"]
        command = (*RUN, "-c", "job.batch.max.messages=12000", "-c", "task.commit.ms=500", "-c", "job.lease.ms=3000")
        Crashes("flights", command).run((kinds * arguments.kills)[: arguments.kills], seed)
    else:
        backup = ["-c", f"stores.backup.factories={backends(home, arguments.backup)}"]
        run([*RUN, "-c", "job.batch.max.messages=40000", "-c", "task.commit.ms=2000", *backup])
    run([sys.executable, "-m", "examples.flights.verify", *only])


@contextmanager
def dashboard(*, wanted: bool) -> Iterator[None]:
    """Serve the page of the job meanwhile, and then until Ctrl-C; or say how to look at it."""
    if not wanted:
        yield
        home, program = (os.path.relpath(each) for each in (os.environ["PENSTOCK_HOME"], PROGRAM))
        command = program if Path(home) == HOME else f"PENSTOCK_HOME={home} {program}"
        print(f"""
Look at the job:
  {command} status flights
  {command} state get flights aircraft N14228
  {command} dashboard flights
Then read docs/learn.md. docs/demos.md has the other demos.""")
        return
    served = subprocess.Popen([*PENSTOCK, "dashboard", "--port", "0"])
    try:
        yield
        print("\nThe page above stays until Ctrl-C.")
        served.wait()
    except KeyboardInterrupt:
        served.wait()  # the terminal has told it, too
    finally:
        if served.poll() is None:
            served.terminate()
            served.wait()


def by_column(arguments: argparse.Namespace) -> bool:
    """True if the totals are computed by column."""
    return bool(arguments.engine == "columns")


def publish(home: Path, only: list[str]) -> None:
    """Publish the flights once. After an interrupted attempt, begin again without what it left."""
    done = home / "demo-published"
    if done.exists():
        print(f"{FLIGHTS:,} flights are already published; the job reads those after its last checkpoint")
        return
    for pattern in ("jobs/flights-1", "streams/flights*", "streams/aircraft-totals", "streams/carrier-totals"):
        for left in home.glob(pattern):
            shutil.rmtree(left)
    run([*PENSTOCK, "stream", "create", "flights", "--partitions", "8"])
    source = subprocess.Popen([sys.executable, "-m", "examples.flights.data", *only], stdout=subprocess.PIPE)
    command = [*PENSTOCK, "stream", "publish", "flights", "--file", "-"]
    run([*command, "--timestamp", "time_hour"], stdin=source)
    if source.wait() != 0:
        sys.exit("the flights could not be read")
    done.touch()


def backends(home: Path, named: str | None) -> str:
    """The state backends of the job: the ones named now, or else the ones that were named last."""
    remembered = home / "demo-backends"
    if named:
        remembered.write_text(named, encoding="utf-8")
    return remembered.read_text(encoding="utf-8") if remembered.exists() else "changelog-files"


if __name__ == "__main__":
    main()
