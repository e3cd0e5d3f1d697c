"""A query with a job inside it, in a driver process; what must come out of it."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.fault_jobs import executor_env
from tests.support.jobs import kill, wait_until
from tests.support.killer import Killer
from tests.support.places import ROOT
from tests.support.processes import HEARD

DRIVER = Path(__file__).with_name("query_driver.py")
_DEADLINE_S = 300.0
LEASE_MS = 1500


class QueryHome:
    """The folders of a query: one file of rows for each batch, and one folder of output."""

    def __init__(
        self,
        folder: Path,
        spark: Mapping[str, object] | None = None,
        seed: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.killer = Killer(folder / "faults")
        self._spark = {"spark.master": "local[2]", "spark.ui.enabled": "false", **executor_env(), **(spark or {})}
        self._config = {"job.lease.ms": LEASE_MS, **(config or {})}
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

    def run(
        self,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        *,
        files: int = 1,
        from_checkpoint: str | None = None,
        **spark: object,
    ) -> int:
        """Start a driver, and wait until it and all of its processes have ended. Returns its exit status.

        Args:
            files: how many files a batch has.
        """
        number = next(self._numbers)
        parameters = {
            "path": str(ROOT),
            "folder": str(self.folder),
            "spark": {**self._spark, **spark},
            "config": self._config,
            "result": str(self.folder / "state.json"),
            "files": files,
            "from": from_checkpoint,
        }
        file, log = self.folder / f"parameters-{number}.json", self.folder / f"driver-{number}.log"
        file.write_text(json.dumps(parameters), encoding="utf-8")
        environment = {**(os.environ if environ is None else environ), **HEARD}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(DRIVER), str(file)],
                cwd=self.folder,
                env={**environment, "PENSTOCK_HOME": str(self.folder / "home"), "PENSTOCK_TEST": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            status = process.wait(_DEADLINE_S)
            wait_until(lambda: not self._processes(), "the end of all processes of the driver")
        finally:
            for each in [psutil.Process(process.pid)] if process.poll() is None else []:
                kill(each)
            for each in self._processes():
                kill(each)
        if status not in {0, -9}:
            raise AssertionError(f"the driver ended with {status}: {log.read_text(errors='replace')[-8000:]}")
        return status

    def _processes(self) -> list[psutil.Process]:
        """Those that have the environment of a driver of this query."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PENSTOCK_TEST") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found

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


def _one(row: Mapping[str, Any], name: str) -> Any:
    """The field of this name, at whichever depth."""
    for key, value in row.items():
        if key == name:
            return value
        if isinstance(value, dict) and (found := _one(value, name)) is not None:
            return found
    return None
