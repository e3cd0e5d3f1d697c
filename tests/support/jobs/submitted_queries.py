"""A streaming query that spark-submit starts: the script of docs/deployment.md, and what must come out of it."""

from __future__ import annotations

import contextlib
import os
import random
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.jobs.home import wait_until
from tests.support.jobs.submitted import QUERY, Submitted

_PROCESSOR = """
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from shop.gate import pass_gate


class CountVisits(StatefulProcessor):
    # Counts the rows of each user, and says so again half a second later, without rows.

    def init(self, handle):
        self._handle = handle
        self._visits = handle.getValueState("visits", "n LONG")

    def handleInputRows(self, key, rows, timerValues):
        pass_gate()
        (before,) = self._visits.get() or (0,)
        added = sum(1 for _ in rows)
        self._visits.update((before + added,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 500)
        yield Row(user=key[0], added=added, visits=before + added)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(user=key[0], added=0, visits=self._visits.get()[0])

    def close(self):
        pass
"""
_GATE = """
import os
import socket
import time
from pathlib import Path


def pass_gate():
    # Wait while the gate is closed. Its folder has a file with the name of each host that came to it.
    gate = Path(os.environ["GATE"])
    while (gate / "closed").exists():
        (gate / socket.gethostname()).touch()
        time.sleep(0.02)
"""
Rows = list[tuple[str, int, int]]


class SubmittedQuery:
    """The folders of a query: each batch with rows reads one file."""

    def __init__(self, folder: Path, root: str | None = None, seed: int = 1) -> None:
        """`root`: where the state is; by default in the folder."""
        self.folder = folder
        self.root = root or str(folder / "root")
        self.gate = folder / "gate"
        self._random = random.Random(seed)
        self._files: list[Counter[str]] = []
        for each in (folder / "in", self.gate, folder / "app"):
            each.mkdir()
        (folder / "app" / "app.py").write_text(QUERY, encoding="utf-8")
        (folder / "app" / "shop_query.py").write_text(_PROCESSOR, encoding="utf-8")
        with zipfile.ZipFile(folder / "shop.zip", "w") as archive:
            archive.writestr("shop/__init__.py", "")
            archive.writestr("shop/gate.py", _GATE)

    @property
    def py_files(self) -> str:
        """The value of `--py-files`. The script's own folder has the module as well, but only where the driver is."""
        return f"{self.folder / 'shop.zip'},{self.folder / 'app' / 'shop_query.py'}"

    def publish(self, rows: int = 60, users: int = 12) -> None:
        number = len(self._files)
        names = [f"u{self._random.randrange(users)}" for _ in range(rows)]
        self._files.append(Counter(names))
        part = self.folder / "part"
        pq.write_table(pa.table({"user": names, "id": pa.array(range(rows), pa.int64())}), part)
        os.utime(part, (1_700_000_000 + number, 1_700_000_000 + number))  # Spark reads the oldest first
        part.rename(self.folder / "in" / f"{number:05}.parquet")

    def submit(
        self, options: Sequence[str], prefix: Sequence[str] = (), environ: Mapping[str, str] = os.environ
    ) -> Submitted:
        folders = [str(self.folder / name) for name in ("in", "out", "checkpoint")]
        gate = ("--conf", f"spark.executorEnv.GATE={self.gate}")
        environ = {**environ, "GATE": str(self.gate)}
        return Submitted(self.folder, [*gate, *options], [*folders, self.root], prefix=prefix, environ=environ)

    def processes(self) -> list[psutil.Process]:
        """Every process of a driver of this query, on whichever host: each has its environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("GATE") == str(self.gate) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def await_end(self) -> None:
        """Until no process of a driver is left."""
        wait_until(lambda: not self.processes(), "the end of all processes of the driver")

    def committed(self) -> int:
        """The number of batches that Spark knows to have ended."""
        return sum(1 for file in (self.folder / "checkpoint" / "commits").glob("[0-9]*"))

    def outputs(self) -> list[Rows]:
        """The rows of all batches that Spark knows to have ended."""
        found = []
        for batch in range(self.committed()):
            table = pq.read_table(self.folder / "out" / f"batch={batch}", partitioning=None)
            found.append([(row["user"], row["added"], row["visits"]) for row in table.to_pylist()])
        return found

    def await_all(self, driver: Submitted) -> None:
        """Until all files were read, and the timers of the last one have fired."""
        timers = sum(len(names) for names in self._files)

        def reached() -> bool:
            return sum(1 for rows in self.outputs() for _, added, _ in rows if not added) >= timers

        wait_until(lambda: reached() or not driver.running, "the rows and timers of all files")
        assert driver.running, driver.log[-4000:]

    def verify(self) -> None:
        """The rows of each batch, and how often timers fired, equal a plain computation."""
        visits, fired, files = Counter[str](), Counter[str](), iter(self._files)
        for batch, rows in enumerate(self.outputs()):
            added = {user: (more, total) for user, more, total in rows if more}
            if added:
                names = next(files)
                visits += names
                assert added == {user: (more, visits[user]) for user, more in names.items()}, f"batch {batch}"
                assert sum(1 for _, more, _ in rows if more) == len(names), f"batch {batch}: a user is there twice"
            timers = [(user, total) for user, more, total in rows if not more]
            assert all(visits[user] == total for user, total in timers), f"batch {batch}"
            fired.update(user for user, _ in timers)
        assert next(files, None) is None, "not all files were read"
        assert fired == Counter(user for names in self._files for user in names)


def spark_options(config: Mapping[str, object], *more: str) -> list[str]:
    """The options of spark-submit for this configuration."""
    conf = dict(config)
    found = ["--master", str(conf.pop("spark.master"))]
    for key, value in conf.items():
        found += ["--conf", f"{key}={value}"]
    return [*found, *more]
