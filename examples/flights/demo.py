"""The demo: publish the flights, run the job, check its totals. With `--crash`, kill things while it runs."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

HOME = Path(".penstock")
"""Where `penstock` looks by itself, so that its commands find the demo's job without being told where it is."""
APP = "examples/flights/app.py:app"
FLIGHTS = 336_776
DEADLINE_S = 240
RUN = [sys.executable, "-m", "penstock.cli", "run", APP, "--until", "latest"]


def main() -> None:
    """Run the demo. Exit status 1 if a step fails or a total is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--crash", action="store_true", help="kill -9 the driver and containers while the job runs")
    parser.add_argument("--kills", type=int, default=4, help="how many processes --crash kills (default 4)")
    parser.add_argument("--seed", type=int, default=None, help="repeat the kills of an earlier run")
    parser.add_argument("--backup", help="the state backends, `blob,changelog-stream`; remembered for the next time")
    arguments = parser.parse_args()
    home = (HOME / "demo-crash") if arguments.crash else HOME
    os.environ["PENSTOCK_HOME"] = str(home.resolve())
    if arguments.crash:
        shutil.rmtree(home, ignore_errors=True)
    publish(home)
    if arguments.crash:
        crash(arguments.kills, arguments.seed if arguments.seed is not None else random.randrange(1 << 30))
    else:
        backup = ["-c", f"stores.backup.factories={backends(home, arguments.backup)}"]
        run([*RUN, "-c", "job.batch.max.messages=40000", "-c", "task.commit.ms=2000", *backup])
    run([sys.executable, "-m", "examples.flights.verify"])


def publish(home: Path) -> None:
    """Publish the flights once; what an interrupted attempt left is published again."""
    done = home / "demo-published"
    if done.exists():
        print(f"{FLIGHTS} flights are published already; the job reads those that its last checkpoint has not seen")
        return
    for pattern in ("jobs/flights-1", "streams/flights*", "streams/aircraft-totals", "streams/carrier-totals"):
        for left in home.glob(pattern):
            shutil.rmtree(left)
    run([sys.executable, "-m", "penstock.cli", "stream", "create", "flights", "--partitions", "8"])
    source = subprocess.Popen([sys.executable, "-m", "examples.flights.data"], stdout=subprocess.PIPE)
    command = [sys.executable, "-m", "penstock.cli", "stream", "publish", "flights", "--file", "-"]
    run([*command, "--timestamp", "time_hour"], stdin=source)
    if source.wait() != 0:
        sys.exit("the flights could not be read")
    done.touch()


def backends(home: Path, named: str | None) -> str:
    """The state backends of the job: those named now or, without, the last time."""
    remembered = home / "demo-backends"
    if named:
        remembered.write_text(named, encoding="utf-8")
    return remembered.read_text(encoding="utf-8") if remembered.exists() else "changelog-files"


def run(command: list[str], stdin: subprocess.Popen[bytes] | None = None) -> None:
    """Run a command; end with its exit status if it fails."""
    status = subprocess.run(command, stdin=stdin.stdout if stdin else None, check=False).returncode
    if status:
        sys.exit(status)


def crash(kills: int, seed: int) -> None:
    """Run the job in small batches; kill its driver or one of its containers, again and again, then let it finish.

    Each kill waits until the job has committed a batch since the one before, so there is state to lose.
    """
    print(f"seed {seed}: {kills} kills of the driver or a container", flush=True)
    chance = random.Random(seed)
    command = [*RUN, "-c", "job.batch.max.messages=12000", "-c", "task.commit.ms=500", "-c", "job.lease.ms=3000"]
    driver = start(command)
    kinds = (["driver", "container"] * kills)[:kills]
    chance.shuffle(kinds)
    batch = 0
    for number, kind in enumerate(kinds, 1):
        checkpoint = await_commit(driver, batch)
        time.sleep(chance.uniform(0.0, 1.0))  # into some part of a batch or commit
        found = [driver.pid] if kind == "driver" else containers(driver.pid)
        if driver.poll() is not None or not found:
            sys.exit(f"the job ended after {number - 1} of {kills} kills")
        victim = chance.choice(found)
        os.kill(victim, signal.SIGKILL)
        batch = checkpoint["batch"]
        place = f"after checkpoint {checkpoint['id']}, batch {batch}"
        print(f"kill {number}: kill -9 {victim} ({kind}) {place}", flush=True)
        if victim == driver.pid:
            driver.wait()
            driver = start(command)
    if driver.wait():
        sys.exit(driver.returncode)


def await_commit(driver: subprocess.Popen[bytes], batch: int) -> dict[str, Any]:
    """Wait for a checkpoint of a later batch, and for the containers of the driver; returns the checkpoint."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline and driver.poll() is None:
        found = last_commit()
        if found is not None and found["batch"] > batch and containers(driver.pid):
            return found
        time.sleep(0.1)
    sys.exit(f"the job ended, or committed nothing after batch {batch} for {DEADLINE_S} s: nothing to kill")


def last_commit() -> dict[str, Any] | None:
    """The last checkpoint that a commit made; None before the first."""
    command = [sys.executable, "-m", "penstock.cli", "checkpoint", "list", "flights", "--json"]
    done = subprocess.run(command, capture_output=True, check=False)
    records = json.loads(done.stdout) if done.returncode == 0 else []
    return next((record for record in reversed(records) if record["kind"] == "commit"), None)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start the job."""
    return subprocess.Popen(command)


def containers(driver: int) -> list[int]:
    """The pids of the driver's containers. The last word of a container's command line is its executor's pid."""
    try:
        executors = {str(child.pid) for child in psutil.Process(driver).children(recursive=True)}
    except psutil.NoSuchProcess:
        return []
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "penstock.container" in command and command[-1] in executors:
            found.append(process.pid)
    return found


if __name__ == "__main__":
    main()
