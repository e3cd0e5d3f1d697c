"""A query with a job inside it, in a driver process; what must come out of it."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.checkpoint.log import CheckpointLog
from penstock.job.paths import JobPaths
from penstock.objects.open import open_store
from penstock.spark.query.plan import reached_batch
from tests.support.faults.plan import Faults
from tests.support.jobs.fault_jobs import executor_env, faulty
from tests.support.jobs.home import kill, wait_until
from tests.support.processes.class_archive import java_options
from tests.support.processes.inspection import HEARD, hear_ctrl_c
from tests.support.tools.places import ROOT

DRIVER = ROOT / "tests" / "support" / "faults" / "query_driver.py"
_DEADLINE_S = 240.0
LEASE_MS = 1500
LOCAL = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": java_options(),
}


@dataclass(frozen=True)
class Reached:
    """The progress of a query, as its files say; -1: no batch."""

    planned: int
    """The last batch that Spark has planned."""
    state: int
    """The last batch in the state."""
    written: int
    """The last batch that the sink has whole."""
    committed: int
    """The last batch that Spark takes for finished."""


class QueryRun:
    """A driver, and all processes that it started, wherever they are."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, log: Path) -> None:
        self.process = process
        self._mark = mark
        self._log = log

    @property
    def log(self) -> str:
        """Its output, with that of Spark's JVM."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def processes(self, word: str = "") -> list[psutil.Process]:
        """The live ones, or those with this word in their command."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PENSTOCK_TEST") == self._mark and word in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def ended(self) -> int:
        """Wait until it and all of its processes have ended. Returns its exit status."""
        status = self.process.wait(_DEADLINE_S)
        wait_until(lambda: not self.processes(), "the end of all processes of the driver")
        return status

    def clean_up(self) -> None:
        for each in self.processes():
            kill(each)
        self.process.kill()
        self.process.wait(_DEADLINE_S)


class QueryHome:
    """The folders of a query: one file of rows for each batch, and one folder of output."""

    def __init__(
        self,
        folder: Path,
        spark: Mapping[str, object] | None = None,
        seed: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """
        Args:
            spark: `spark.*` keys; without a master among them, Spark is local.
            config: further keys of Penstock.
        """
        self.folder = folder
        self.faults = Faults(folder / "faults")
        given = spark or {}
        own = {"spark.ui.enabled": "false", "spark.executorEnv.PENSTOCK_TEST": str(folder), **executor_env()}
        self._spark = {**own, **({} if "spark.master" in given else LOCAL), **given}
        backup = {"stores.backup.factories": faulty("changelog-files")}
        self._config = {"job.lease.ms": LEASE_MS, **backup, **(config or {})}
        self._random = random.Random(seed)
        self._files: list[list[str]] = []
        self._numbers = itertools.count()
        (folder / "in").mkdir()

    def publish(self, rows: int = 40, users: int = 12) -> None:
        """The rows of another batch."""
        number = len(self._files)
        names = [f"u{self._random.randrange(users)}" for _ in range(rows)]
        self._files.append(names)
        file, part = self.folder / "in" / f"{number:05}.parquet", self.folder / f"{number:05}.part"
        pq.write_table(pa.table({"user": names, "id": pa.array(range(rows), pa.int64())}), part)
        os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
        part.replace(file)

    def publish_until_left(self, batches: int) -> None:
        """Rows until so many batches are there that Spark does not take for finished."""
        while len(self._files) - 1 - self.reached().committed < batches:
            self.publish()

    def start(
        self,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        trigger: Mapping[str, object] | None = None,
        *,
        exits_on_sigterm: bool = False,
        files: int = 1,
        from_checkpoint: str | None = None,
    ) -> QueryRun:
        """Start a driver.

        Args:
            prefix: in front of its command.
            environ: its environment; by default that of this process.
            trigger: of the query; by default it ends when it has processed the files there are.
            exits_on_sigterm: whether it has a handler for SIGTERM, which exits.
            files: how many files a batch has.
            from_checkpoint: of `transform_with_state`.
        """
        number = next(self._numbers)
        parameters = {
            "path": str(ROOT),
            "folder": str(self.folder),
            "spark": self._spark,
            "config": self._config,
            "trigger": {"availableNow": True} if trigger is None else trigger,
            "exits on SIGTERM": exits_on_sigterm,
            "result": str(self.folder / "state.json"),
            "files": files,
            "from": from_checkpoint,
        }
        file, log = self.folder / f"parameters-{number}.json", self.folder / f"driver-{number}.log"
        file.write_text(json.dumps(parameters), encoding="utf-8")
        environment = {"PYSPARK_PYTHON": sys.executable, **(os.environ if environ is None else environ), **HEARD}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(DRIVER), str(file)],
                cwd=self.folder,
                env={**environment, "PENSTOCK_HOME": str(self.folder / "home"), "PENSTOCK_TEST": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=hear_ctrl_c,
            )
        return QueryRun(process, str(self.folder), log)

    @contextmanager
    def running(self, **how: Any) -> Iterator[QueryRun]:
        """A driver, see `start`. In the end nothing is left of it; if the block fails, its log is printed."""
        run = self.start(**how)
        try:
            yield run
        except BaseException:
            print(run.log[-8000:])
            raise
        finally:
            run.clean_up()

    def run(self, **how: Any) -> int:
        """Start a driver, see `start`, and wait until all of its processes have ended. Returns its exit status."""
        with self.running(**how) as run:
            status = run.ended()
            assert status in {0, -signal.SIGKILL}, f"the driver ended with {status}"
            return status

    def reached(self) -> Reached:
        store = open_store(str(self.folder / "root"))
        try:
            latest = CheckpointLog(store, JobPaths("visits", "1")).read().latest
        finally:
            store.close()
        checkpoint = self.folder / "checkpoint"
        return Reached(
            planned=_last(path.name for path in checkpoint.glob("offsets/*")),
            state=-1 if latest is None else reached_batch(latest),
            written=_last(path.parent.name.removeprefix("b=") for path in self.folder.glob("out/*/_SUCCESS")),
            committed=_last(path.name for path in checkpoint.glob("commits/*")),
        )

    def set_back(self, saved: Path) -> None:
        """Let the checkpoint location be as it was. The output of later batches goes, as a user would have it."""
        location = self.folder / "checkpoint"
        shutil.rmtree(location)
        shutil.copytree(saved, location)
        begun = {int(each.name) for each in (location / "offsets").iterdir() if each.name.isdigit()}
        for path in (self.folder / "out").iterdir():
            if int(path.name.removeprefix("b=")) > max(begun, default=-1):
                shutil.rmtree(path)

    def verify(self) -> None:
        """The output of each batch and the final state equal a plain computation, if each batch had one file."""
        self._verify([Counter(names) for names in self._files])

    def verify_sums(self) -> None:
        """The same, whatever files each batch had: how often each user was added to is taken from the output."""
        numbers = range(len(list((self.folder / "out").iterdir())))
        added = [Counter({row["user"]: row["added"] for row in self._rows(number)}) for number in numbers]
        assert sum(added, Counter()) == Counter(name for names in self._files for name in names)
        self._verify(added)

    def _rows(self, number: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pq.read_table(self.folder / "out" / f"b={number}", partitioning=None).to_pylist()
        return found

    def _verify(self, batches: Sequence[Counter[str]]) -> None:
        visits: Counter[str] = Counter()
        last: dict[str, str] = {}
        for number, added in enumerate(batches):
            table = self._rows(number)
            rows = {row["user"]: row for row in table}
            assert len(table) == len(rows) == len(added), f"batch {number}: one row for each user"
            visits += added
            for user, row in rows.items():
                expected = (added[user], visits[user], last.get(user))
                assert (row["added"], row["visits"], row["before"]) == expected, f"batch {number}, {row}"
                last[user] = row["token"]
        outputs = {path.name for path in (self.folder / "out").iterdir()}
        assert outputs == {f"b={number}" for number in range(len(batches))}
        state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        found = {_one(row, "user"): (_one(row, "n"), _one(row, "token")) for row in state}
        assert found == {user: (visits[user], last[user]) for user in visits}


def _last(numbers: Iterator[str]) -> int:
    return max((int(name) for name in numbers if name.isdigit()), default=-1)


def _one(row: Mapping[str, Any], name: str) -> Any:
    """The field of this name, at whichever depth."""
    for key, value in row.items():
        if key == name:
            return value
        if isinstance(value, dict) and (found := _one(value, name)) is not None:
            return found
    return None
