"""Commits and restores of one task's state: what runs in the side's own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from benchmarks.state.content import KEY_BYTES
from benchmarks.state.job import StateJob, files_below, folder_bytes
from penstock.state.engines.engine import Engine
from penstock.state.reading.comparison import Digest, digest
from penstock.state.records import compress, encode_records

NEGLIGIBLE_MS = 1.0
"""Where two medians are below this, their ratio is that of the clock's and the scheduler's noise."""
PageCache = Literal["warm", "cold"]
VERIFIED_KEYS = 1_000_000
"""The largest state that is read back after the last commit."""
NO_SNAPSHOTS = {"state.snapshot.interval.commits": "0", "state.snapshot.interval.seconds": "0"}
"""After its base, the `changelog-files` backend writes deltas only."""
_READ_BYTES = 1 << 20


def snapshot(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state, back it up as a whole, then commit changes of it again and again."""
    keys, work = parameters["keys"], Path(parameters["work"])
    with closing(StateJob(work, parameters["backend"], parameters["value_bytes"])) as job:
        began = time.monotonic()
        job.fill(keys)
        filled = time.monotonic()
        job.commit()
        based = time.monotonic()
        commits = []
        for _ in range(parameters["warm_up"] + parameters["repeat"]):
            job.change(parameters["changed"])
            commits.append(asdict(job.commit()))
        return {
            "fill_seconds": filled - began,
            "base_seconds": based - filled,
            "files_bytes": folder_bytes(work / "local"),
            "commits": commits[parameters["warm_up"] :],
            "verified": _restores(job, work / "restored") if keys <= VERIFIED_KEYS else None,
        }


def commits(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state, back it up as a whole, then commit series of changes to the `changelog-files` backend: as deltas,
    or each as a snapshot."""
    keys, work, value_bytes = parameters["keys"], Path(parameters["work"]), parameters["value_bytes"]
    settings = {"state.changelog.enabled": "true" if parameters["changelog"] else "false"}
    with closing(StateJob(work, "changelog-files", value_bytes, settings)) as job:
        began = time.monotonic()
        job.fill(keys)
        filled = time.monotonic()
        job.commit()
        based = time.monotonic()
        before = job.written()
        series = [_series(job, one, parameters["warm_up"], value_bytes) for one in parameters["series"]]
        job.finish_snapshots()
        after = job.written()
        return {
            "fill_seconds": filled - began,
            "base_seconds": based - filled,
            "series_seconds": time.monotonic() - based,
            "files_bytes": folder_bytes(work / "local"),
            "series": series,
            "snapshots": after.snapshots - before.snapshots,
            "snapshot_bytes": after.snapshot_bytes - before.snapshot_bytes,
            "verified": _restores(job, work / "restored") if keys <= VERIFIED_KEYS else None,
        }


def _series(job: StateJob, wanted: Mapping[str, int], warm_up: int, value_bytes: int) -> dict[str, Any]:
    """Some commits of as many changed keys each."""
    for _ in range(warm_up):
        job.change(wanted["changed"])
        job.commit()
    before = job.written()
    commits: list[dict[str, Any]] = []
    zstd_bytes = 0
    for _ in range(wanted["commits"]):
        changes = job.change(wanted["changed"])
        was_busy, made_before = job.snapshots_under_way()
        times = job.commit()
        is_busy, made = job.snapshots_under_way()
        beside = was_busy or is_busy or made > made_before
        commits.append({"wait_ms": times.snapshot_ms, "durable_ms": times.durable_ms, "beside_snapshot": beside})
        zstd_bytes += len(compress(encode_records(changes)))
    after = job.written()
    return {
        **wanted,
        "net_bytes": wanted["commits"] * wanted["changed"] * (KEY_BYTES + value_bytes),
        "zstd_bytes": zstd_bytes,
        "delta_bytes": after.delta_bytes - before.delta_bytes,
        "snapshot_bytes": after.snapshot_bytes - before.snapshot_bytes,
        "times": commits,
    }


def restore(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state and back it up; then, after so many commits of changes, copy its files and restore it, in turn.

    A large state is compared with what was restored of it only after the last of them: to read it takes longer than to
    restore it.
    """
    work, points = Path(parameters["work"]), sorted(parameters["deltas"])
    with closing(StateJob(work, parameters["backend"], parameters["value_bytes"], NO_SNAPSHOTS)) as job:
        job.fill(parameters["keys"])
        job.commit()
        made = 0
        found = []
        for deltas in points:
            for _ in range(made, deltas):
                job.change(parameters["changed"])
                job.commit()
            made = deltas
            compared = parameters["keys"] <= VERIFIED_KEYS or deltas == points[-1]
            found.append({"deltas": deltas, **_point(job, work, parameters, compared)})
        return {"points": found}


def _point(job: StateJob, work: Path, parameters: Mapping[str, Any], compared: bool) -> dict[str, Any]:
    files = work / "files"
    job.engine.copy_to(files)
    rounds = [
        _copy_and_restore(job, files, work, parameters["page_cache"], compared and number == 0)
        for number in range(parameters["repeat"])
    ]
    found = {"files_bytes": folder_bytes(files), "durable_bytes": job.durable_bytes(), "rounds": rounds}
    shutil.rmtree(files)
    return found


def _copy_and_restore(job: StateJob, files: Path, work: Path, page_cache: PageCache, compared: bool) -> dict[str, Any]:
    restored = work / "restored"
    cp_seconds = time_cp(files, work / "copied", page_cache)
    settle(job.roots, page_cache)
    began = time.perf_counter()
    engine, counted = job.restore(restored)
    restore_seconds = time.perf_counter() - began
    with closing(engine):
        verified = digest(engine) == digest(job.engine) if compared else None
    shutil.rmtree(restored)
    return {
        "cp_seconds": cp_seconds,
        "restore_seconds": restore_seconds,
        "restored_bytes": counted,
        "verified": verified,
    }


def time_cp(source: Path, target: Path, page_cache: PageCache) -> float:
    """Seconds that `cp -r` takes. The copy is removed."""
    settle([source], page_cache)
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    seconds = time.perf_counter() - began
    shutil.rmtree(target)
    return seconds


def settle(folders: Iterable[Path], page_cache: PageCache) -> None:
    """Everything written is on disk, and the files of the folders are all in the page cache, or none of them is."""
    os.sync()
    for folder in folders:
        for path in files_below(folder):
            with path.open("rb", buffering=0) as file:
                if page_cache == "cold":
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.read(_READ_BYTES):
                        pass


def _restores(job: StateJob, directory: Path) -> bool:
    """True if the engine holds the state of the last commit."""
    engine, _ = job.restore(directory)
    return _digest_and_close(engine) == digest(job.engine)


def _digest_and_close(engine: Engine) -> Digest:
    with closing(engine):
        return digest(engine)
