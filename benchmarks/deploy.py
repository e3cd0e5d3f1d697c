"""The pause of outputs while one job takes over from another one, forth and back, under a constant load."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson

import penstock as ps
from benchmarks import harness
from benchmarks.jobs import append, counts, create_stream, places
from benchmarks.workload import STREAM
from penstock.checkpoint.log import CheckpointLog
from penstock.deploy.wing import DEPLOY
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.system.local import LocalSystem
from penstock.testing.system_contract import read_all

OUTPUT, JOBS = "counts", ("one", "two")
_EACH_S, _LOOK_S, _END_S = 0.05, 0.01, 180.0


def application() -> ps.StreamApplication:
    """A count for each key, and each message into the output."""
    return counts("deploy", [itemgetter("key")], [OUTPUT])


class Streams:
    """The input, which gets messages at a constant rate, and the output, which is watched."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        folder, self._partitions = Path(parameters["work"]) / "streams", parameters["partitions"]
        self._each, self._keys = round(parameters["rate"] * _EACH_S), parameters["keys"]
        create_stream(folder, STREAM, self._partitions, [])
        self._system, self.sent = LocalSystem("local", str(folder)), 0
        self._admin = self._system.admin()
        self._admin.create_stream(OUTPUT, self._partitions)
        self.grew: list[float] = []
        self._length = 0

    def append(self) -> None:
        """The messages of one moment."""
        rows: list[list[tuple[int, bytes | None, bytes | None]]] = [[] for _ in range(self._partitions)]
        for number in range(self.sent, self.sent + self._each):
            value = orjson.dumps({"key": f"key-{number % self._keys}", "amount": number})
            rows[number % self._partitions].append((0, None, value))
        append(self._system, STREAM, rows)
        self.sent += self._each

    def length(self) -> int:
        return sum(ends.upcoming for ends in self._admin.offsets(OUTPUT).values())

    def look(self) -> None:
        if (length := self.length()) > self._length:
            self._length = length
            self.grew.append(time.monotonic())

    def pause_since(self, began: float) -> float:
        """The longest time between two moments at which the output grew, since a moment."""
        times = [each for each in self.grew if each >= began]
        return max((after - before for before, after in itertools.pairwise(times)), default=0.0)

    def verified(self) -> dict[str, Any]:
        """Each message is in the output once."""
        found = Counter[int]()
        for partition in range(self._partitions):
            ssp = ps.SystemStreamPartition("local", OUTPUT, partition)
            found.update(orjson.loads(value or b"{}")["amount"] for _, _, _, value, *_ in read_all(self._system, ssp))
        twice = sum(times - 1 for times in found.values())
        return {"equal": len(found) == self.sent and not twice, "found": len(found), "twice": twice}


def take_over(parameters: dict[str, Any]) -> dict[str, Any]:
    """The jobs take over from each other; the pauses, and those of as long a time without."""
    work, streams = Path(parameters["work"]), Streams(parameters)
    commit_s, pauses, plain = parameters["commit_ms"] / 1000, list[float](), list[float]()
    with (
        harness.repeating(streams.append, _EACH_S),
        harness.repeating(streams.look, _LOOK_S),
        closing(open_store((work / "jobs").as_uri())) as objects,
    ):
        running = _command(parameters, "run", "one")
        harness.wait_for(lambda: len(streams.grew) > 5, "output", _check(running), _LOOK_S)
        for number in range(parameters["count"]):
            began = time.monotonic()
            time.sleep(max(10.0, 5 * commit_s))
            plain.append(streams.pause_since(began))
            old, new = JOBS[number % 2], JOBS[(number + 1) % 2]
            began = time.monotonic()
            successor = _command(parameters, "deploy", f"{old}-1", new, *(["--rollback"] if number else []))
            log = CheckpointLog(objects, JobPaths(new, "1"))

            def is_in_charge() -> bool:
                latest = log.read("report").latest  # noqa: B023 - called at once
                return latest is not None and latest.section(DEPLOY).took_over == f"{old}-1"  # noqa: B023

            harness.wait_for(is_in_charge, "the change", _check(successor), 0.1)
            changed = time.monotonic()
            harness.wait_for(
                lambda: sum(each > changed for each in streams.grew) > 3,  # noqa: B023
                "output of the successor",
                _check(successor),
                _LOOK_S,
            )
            pauses.append(streams.pause_since(began))
            running.wait(_END_S)
            running = successor
    streams.look()
    harness.wait_for(lambda: streams.length() >= streams.sent, "all output", _check(running), 0.1)
    running.terminate()
    running.wait(_END_S)
    return {
        "pause_p50_s": harness.percentile(pauses, 0.5),
        "pause_p99_s": harness.percentile(pauses, 0.99),
        "plain_p50_s": harness.percentile(plain, 0.5),
        "plain_p99_s": harness.percentile(plain, 0.99),
        "pauses_s": [round(each, 2) for each in pauses],
        "verified": streams.verified(),
    }


def _command(parameters: dict[str, Any], *words: str) -> subprocess.Popen[bytes]:
    verb, *jobs = [word for word in words if not word.startswith("--")]
    config = {
        **places(Path(parameters["work"]), parameters["threads"]),
        "job.name": jobs[-1],
        "task.commit.ms": parameters["commit_ms"],
        "job.intermediate.stream.partitions": parameters["partitions"],
        f"streams.local.{OUTPUT}.output.guarantee": "exactly-once",
    }
    command = [sys.executable, "-m", "penstock.cli", verb, *jobs[:-1], "benchmarks.deploy:application"]
    command += [word for word in words if word.startswith("--")]
    command += [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
    return subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, stdin=subprocess.DEVNULL)


def _check(process: subprocess.Popen[bytes]) -> Any:
    def check() -> None:
        if process.poll() is not None:
            raise RuntimeError(f"a command ended with {process.returncode}")

    return check


@harness.benchmark("deploy", __doc__, count=20, rate=5000, keys=1000, commit_ms=2000, partitions=2, threads=2)
def main(bench: harness.Bench) -> int:
    found = bench.run("penstock", "deploy:take_over", {})
    figures = dict.fromkeys(("pause_p50_s", "pause_p99_s", "plain_p50_s", "plain_p99_s"), ".2f")
    harness.show("the longest time without output", {"penstock": found}, **figures, peak_bytes="MB", verified="")
    goal = 2 * bench.options.commit_ms / 1000
    bench.target("the pause at the median, s", found["pause_p50_s"], at_most=goal)
    return bench.finish()
