"""The demo of a deployment: a changed job takes over from a running one while messages come. All rows are checked."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import orjson

from examples.deploy import before
from examples.deploy.verify import OUTPUT, newest_wrong_row
from examples.drain.demo import assigned, lines, read_departures, running, step
from examples.running import DEADLINE_S, HOME, PENSTOCK, run
from penstock import admin
from penstock.errors import NotFoundError

OLD, NEW = before.app.name, f"{before.app.name}-2"
BEFORE, AFTER = "examples/deploy/before.py", "examples/deploy/after.py"
TASKS = 6
COMMIT_MS = 2000


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or a row is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flights", type=int, default=60_000, help="publish this many flights")
    arguments = parser.parse_args()
    home = (HOME / "demo-deploy").resolve()
    shutil.rmtree(home, ignore_errors=True)
    os.environ["PENSTOCK_HOME"] = str(home)
    only = ["--flights", str(arguments.flights)]
    departures = read_departures(only)
    options = assigned([f"task.commit.ms={COMMIT_MS}", "job.batch.max.messages=2000"])
    old = [*PENSTOCK, "run", f"{BEFORE}:app", *options]
    new = [f"{AFTER}:app", *options, *assigned([f"job.name={NEW}"])]
    run([*PENSTOCK, "stream", "create", "departures", "--partitions", "4"])

    step(f"{BEFORE} runs, with a label on its first checkpoint, while departures come")
    with running(old) as driver, Publisher(departures) as publisher, Rows() as rows:
        await_read(driver, OLD, 0)
        run([*PENSTOCK, "checkpoint", "label", OLD, "latest", "begin"])
        publisher.first(len(departures) // 4)
        await_read(driver, OLD, len(departures) // 4)

        step("one of its rows is wrong: a replay shows the messages that made it")
        if (row := newest_wrong_row(map(orjson.loads, departures))) is None:
            sys.exit("the old job has sent no wrong row yet")
        show_replay(f"local.{OUTPUT}:{row.partition}:{row.offset}")

        step(f"{AFTER} mends it. Its rows are of two hours")
        print("".join(difflib.unified_diff(lines(BEFORE), lines(AFTER), BEFORE, AFTER, n=0)))
        step(f"it takes over from the running job, with {TASKS} tasks in place of 4")
        deploy = ["deploy", OLD, *new, "--from", "begin", "--reset-operator", "hours", "--tasks", str(TASKS)]
        with running([*PENSTOCK, *deploy]) as successor:
            await_charge(successor)
            publisher.rest()
            await_read(successor, NEW, len(departures))
            longest = rows.longest_pause_s
            run([*PENSTOCK, "stop", NEW])

    step("the old job does not start again")
    refused(old)
    step(f"{NEW} runs to the end of the input, and the rows of both are compared with a plain computation")
    end = [*PENSTOCK, "run", *new, *assigned([f"job.intermediate.stream.partitions={TASKS}"]), "--until", "latest"]
    run(end)
    run([sys.executable, "-m", "examples.deploy.verify", *only])
    print(f"the longest time without a new row: {longest:.1f} s, with a commit every {COMMIT_MS / 1000:g} s")


class Publisher:
    """Publishes departures while the jobs run: some each second, until the rest is asked for."""

    EACH_SECOND = 150

    def __init__(self, departures: Sequence[bytes]) -> None:
        self._left = list(departures)
        self._stream = admin.open_stream("departures")
        self._whole = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish, name="publisher")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def first(self, count: int) -> None:
        """Publish so many at once, and then some each second."""
        self._append(count)
        self._thread.start()

    def rest(self) -> None:
        """Publish what is left."""
        self._whole.set()
        self._thread.join()

    def _publish(self) -> None:
        while self._left and not self._ended.is_set():
            self._append(len(self._left) if self._whole.wait(1.0) else self.EACH_SECOND)

    def _append(self, count: int) -> None:
        now, self._left = self._left[:count], self._left[count:]
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            file.writelines(now)
            file.flush()
            admin.publish(self._stream.system, "departures", file.name, admin.PublishOptions())


class Rows:
    """Watches how long no row comes to the output."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rows")
        self.longest_pause_s = 0.0

    def __enter__(self) -> Rows:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        looks = admin.open_stream(OUTPUT).system.admin()
        count, since = 0, time.monotonic()
        while not self._ended.wait(0.05):
            with suppress(NotFoundError):  # the first start of the job makes the stream
                now = sum(ends.upcoming for ends in looks.offsets(OUTPUT).values())
                if now != count:
                    pause_s = time.monotonic() - since if count else 0.0
                    self.longest_pause_s = max(self.longest_pause_s, pause_s)
                    count, since = now, time.monotonic()


def await_read(driver: subprocess.Popen[bytes], job: str, messages: int) -> None:
    """Wait for a checkpoint of the job that covers at least this many messages."""
    deadline = time.monotonic() + DEADLINE_S
    while read(job) < messages:
        if driver.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"job {job} ended, or had no checkpoint of {messages:,} messages within {DEADLINE_S} s")
        time.sleep(0.1)


def read(job: str) -> int:
    """The number of messages that the last checkpoint covers; -1 if there is none."""
    try:
        with admin.open_job(job) as found:
            return sum(offset for task in admin.read_checkpoint(found).tasks for offset in task.next_offsets.values())
    except NotFoundError:
        return -1


def await_charge(driver: subprocess.Popen[bytes]) -> None:
    """Wait until the new job is in charge."""
    deadline = time.monotonic() + DEADLINE_S
    with admin.open_job(OLD) as old:
        while "deploy" not in admin.status(old).wings:
            if driver.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"job {OLD} has not handed over within {DEADLINE_S} s")
            time.sleep(0.2)


def show_replay(message: str) -> None:
    """Print the end of what `penstock replay` says of an output message."""
    command = [*PENSTOCK, "replay", OLD, f"{BEFORE}:app", "--output", message]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    if done.returncode:
        sys.exit(done.stderr)
    print(f"penstock replay {OLD} {BEFORE}:app --output {message}")
    print("...\n" + "\n".join(done.stdout.splitlines()[-12:]))


def refused(command: list[str]) -> None:
    """Start the old job. The start must be refused with an error that names its successor."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False, timeout=DEADLINE_S)
    print(done.stderr.strip())
    if not done.returncode or f"has handed over to job `{NEW}-1`" not in done.stderr:
        sys.exit("the old job was not refused")


if __name__ == "__main__":
    main()
