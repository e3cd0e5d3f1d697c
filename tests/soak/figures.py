"""The figures of a soak and their growth: memory, threads, open files of processes, files, logs, the changelog."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import harness
from benchmarks.soak import Growth, growth
from penstock.checkpoint.log import LogView
from tests.soak.driver import Driver
from tests.soak.world import CHANGELOG, World

MEGABYTE = 1 << 20
ALLOWED: Mapping[tuple[str, str], float] = {
    ("driver", "memory_bytes"): 32 * MEGABYTE,
    ("jvm", "memory_bytes"): 320 * MEGABYTE,
    ("spark workers", "memory_bytes"): 32 * MEGABYTE,
    ("containers", "memory_bytes"): 48 * MEGABYTE,
    ("files", "job_root"): 200,
    ("files", "job_root_bytes"): 8 * MEGABYTE,
    ("files", "local_state"): 120,
    ("files", "temporary"): 40,
    ("files", "spark"): 400,
    ("files", "log_records"): 20,
    ("files", "changelog_bytes"): 32 * MEGABYTE,
}
"""The largest growth of each figure from the median of the earlier half to that of the later one. Of processes of one
kind it is that of each. The JVM's memory goes up to its heap's limit before it collects, and its files go with that."""
THREADS_AND_FILES = 40
"""For threads and open files, whose number follows from the containers and brokers that there are."""
JVM_THREADS = 250
"""Spark's pools take another thread for each task until they have 100."""
_BY_SETTINGS = ("threads", "open_files")
"""A backend in Kafka has clients, and the direct way connections: only samples with the same settings are compared."""
_LEAST = 8
"""Fewer samples are of the time in which everything begins."""
LOGGED_BYTES = 2000
"""The most that drivers and containers may log for each batch, restarts included."""


@dataclass(frozen=True, slots=True)
class Found:
    """The growth of one figure, and what it may be."""

    growth: Growth
    allowed: float

    @property
    def too_much(self) -> bool:
        return self.growth.late - self.growth.early > self.allowed

    def __str__(self) -> str:
        return f"{self.growth}{' GREW' if self.too_much else ''}"


def table(samples: Sequence[Mapping[str, Any]]) -> list[Found]:
    """The growth of every figure. Empty before there are enough samples."""
    if len(samples) < _LEAST:
        return []
    alike = Counter(each.get("settings") for each in samples).most_common(1)[0][0]
    same = [each for each in samples if each.get("settings") == alike]
    found = [each for each in growth(samples) if each.figure not in _BY_SETTINGS]
    if len(same) >= _LEAST:
        found += [each for each in growth(same) if each.figure in _BY_SETTINGS]
    return [Found(each, _allowed(each)) for each in found]


def _allowed(each: Growth) -> float:
    if each.figure == "logged_bytes":
        return LOGGED_BYTES * each.batches
    if each.figure in ("threads", "open_files"):
        return JVM_THREADS if each.kind == "jvm" else THREADS_AND_FILES
    return ALLOWED[each.kind, each.figure]


def sample(world: World, driver: Driver, log: LogView) -> dict[str, dict[str, float]]:
    """Kind of process or `files` -> figure -> value. The claims of the log are no growth: each epoch has one, and a
    claim is never deleted."""
    found: dict[str, list[dict[str, float]]] = {}
    for kind, process in harness.processes_by_kind(driver.process.pid):
        with contextlib.suppress(psutil.Error, OSError):
            with process.oneshot():
                own = {"threads": float(process.num_threads()), "open_files": float(process.num_fds())}
            found.setdefault(kind, []).append({**own, "memory_bytes": memory_bytes(process.pid)})
    figures = {kind: {name: sum(p[name] for p in each) / len(each) for name in each[0]} for kind, each in found.items()}
    folder = world.folder
    root = files(folder / "jobs")
    figures["files"] = {
        "job_root": len(root) - len(log.claims),
        "job_root_bytes": sum(map(_size, root)),
        "local_state": len(files(folder / "state")),
        "temporary": len(files(folder / "tmp")),
        "spark": len(files(folder / "spark")),
        "log_records": len(log.checkpoints),
        "logged_bytes": world.logged_bytes(),
        "changelog_bytes": changelog_bytes(world),
    }
    return figures


def changelog_bytes(world: World) -> int:
    """The largest that a broker has of the changelog."""
    return max(
        sum(_size(path) for path in broker.folder.glob(f"data/**/{CHANGELOG}-*/*.log"))
        for broker in world.cluster.brokers
    )


def memory_bytes(pid: int) -> int:
    """The memory that the process has written, with its share of the pages that it has from its parent."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has no memory any more")


def files(folder: Path) -> list[Path]:
    """Every file below, as far as it stays while this looks."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found = [path for path in _walk(folder) if path.is_file() and not path.is_symlink()]
    return found


def _walk(folder: Path) -> Iterable[Path]:
    for path, _, names in os.walk(folder):
        for name in names:
            yield Path(path, name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
