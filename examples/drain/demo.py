"""The demo of a drain: run a job half-way, drain it, change it, run it to the end, and check the output of both."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.drain.before import app
from examples.drain.verify import stored_aircraft
from examples.running import DEADLINE_S, HOME, PENSTOCK, run
from penstock import admin
from penstock.errors import NotFoundError

JOB = app.name
BEFORE, AFTER = "examples/drain/before.py", "examples/drain/after.py"


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or a pane is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=None, help="publish only this many flights")
    arguments = parser.parse_args()
    home = (HOME / "demo-drain").resolve()
    shutil.rmtree(home, ignore_errors=True)
    os.environ["PENSTOCK_HOME"] = str(home)
    only = [] if arguments.flights is None else ["--flights", str(arguments.flights)]
    departures = read_departures(only)
    count = len(departures)
    options = [f"job.batch.max.messages={count // 20}", "task.commit.ms=500", "job.drain-monitor.poll.interval.ms=200"]
    first, second = ([*PENSTOCK, "run", f"{file}:app", *assigned(options)] for file in (BEFORE, AFTER))
    run([*PENSTOCK, "stream", "create", "departures", "--partitions", "4"])
    publish(departures[: count // 3])

    step(f"{BEFORE} runs and is stopped: its windows stay open")
    with running(first) as driver:
        await_read(driver, count // 6)
        run([*PENSTOCK, "stop", JOB])

    step(f"{AFTER} is a changed version")
    print("".join(difflib.unified_diff(lines(BEFORE), lines(AFTER), BEFORE, AFTER, n=0)))
    step("without a drain, its start is refused: it cannot read what waits in the windows")
    refused(second)

    step(f"{BEFORE} runs again and is drained half-way")
    publish(departures[count // 3 : count * 3 // 4])
    with running(first) as driver:
        await_read(driver, count // 2)
        run([*PENSTOCK, "drain", JOB, "--wait"])
    show_store(read())

    step(f"{AFTER} runs to the end: it reads the departures that the drained run left, and the rest of the year")
    publish(departures[count * 3 // 4 :])
    run([*second, "--until", "latest"])
    show_store(count)
    step("the panes of both versions together are compared with a plain computation")
    run([sys.executable, "-m", "examples.drain.verify", *only])


def assigned(keys: list[str]) -> list[str]:
    """The `-c` options that set these configuration keys."""
    return [word for each in keys for word in ("-c", each)]


def step(text: str) -> None:
    """Announce the next step."""
    print(f"\n--- {text}", flush=True)


def lines(file: str) -> list[str]:
    """The lines of a file without the first, its description."""
    return Path(file).read_text(encoding="utf-8").splitlines(keepends=True)[1:]


def read_departures(only: list[str]) -> list[bytes]:
    """All departures as JSON, in the order in which they happened."""
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "examples.windows.data", folder, *only])
        return Path(folder, "departures.jsonl").read_bytes().splitlines(keepends=True)


def publish(departures: list[bytes]) -> None:
    """Append these departures to the input."""
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.writelines(departures)
        file.flush()
        run([*PENSTOCK, "stream", "publish", "departures", "--file", file.name])


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The driver of the job, which runs until another command ends it."""
    driver = subprocess.Popen(command)
    try:
        yield driver
        if driver.wait(DEADLINE_S):
            sys.exit(driver.returncode)
    finally:
        driver.kill()
        driver.wait()


def await_read(driver: subprocess.Popen[bytes], messages: int) -> None:
    """Wait for a checkpoint that covers at least this many messages."""
    deadline = time.monotonic() + DEADLINE_S
    while read() < messages:
        if driver.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the job ended, or had no checkpoint of {messages:,} messages within {DEADLINE_S} s")
        time.sleep(0.1)


def read() -> int:
    """The number of messages that the last checkpoint covers."""
    try:
        with admin.open_job(JOB) as job:
            return sum(offset for task in admin.read_checkpoint(job).tasks for offset in task.next_offsets.values())
    except NotFoundError:
        return 0


def refused(command: list[str]) -> None:
    """Start the second version. The start must be refused with an error that names the window."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S)
    print(done.stderr.strip())
    if not done.returncode or "operator `hours`" not in done.stderr:
        sys.exit("the changed application was not refused")


def show_store(messages: int) -> None:
    """Print the totals of the store. Exit if they do not count exactly this many messages."""
    totals = stored_aircraft()
    found = sum(total["departures"] for total in totals.values())
    print(f"the store `aircraft` has {len(totals):,} aircraft with {found:,} departures")
    if found != messages:
        sys.exit(f"but {messages:,} departures were read")


if __name__ == "__main__":
    main()
