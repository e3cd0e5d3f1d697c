"""Commits and restores of one task's state: what runs in the side's own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from benchmarks.state_job import StateJob, files_below, folder_bytes
from penstock.state.engine import Engine
from penstock.state.verify import Digest, digest

PageCache = Literal["warm", "cold"]
VERIFIED_KEYS = 1_000_000
"""The largest state that is read back after the last commit."""
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


def restore(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fill a state and back it up; then copy its files and restore it, in turn."""
    work = Path(parameters["work"])
    with closing(StateJob(work, parameters["backend"], parameters["value_bytes"])) as job:
        job.fill(parameters["keys"])
        job.commit()
        base_bytes = job.durable_bytes()
        for _ in range(parameters["commits"]):
            job.change(parameters["changed"])
            job.commit()
        files = work / "files"
        job.engine.copy_to(files)
        original = digest(job.engine)
        return {
            "state": asdict(original),
            "files_bytes": folder_bytes(files),
            "base_bytes": base_bytes,
            "durable_bytes": job.durable_bytes(),
            "rounds": [
                _copy_and_restore(job, files, work, original, parameters["page_cache"])
                for _ in range(parameters["repeat"])
            ],
        }


def _copy_and_restore(
    job: StateJob, files: Path, work: Path, original: Digest, page_cache: PageCache
) -> dict[str, Any]:
    copied, restored = work / "copied", work / "restored"
    settle([files], page_cache)
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(files), str(copied)], check=True)
    cp_seconds = time.perf_counter() - began
    shutil.rmtree(copied)
    settle(job.roots, page_cache)
    began = time.perf_counter()
    engine, counted = job.restore(restored)
    restore_seconds = time.perf_counter() - began
    verified = _digest_and_close(engine) == original
    shutil.rmtree(restored)
    return {
        "cp_seconds": cp_seconds,
        "restore_seconds": restore_seconds,
        "restored_bytes": counted,
        "verified": verified,
    }


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
    """Whether what was committed last is what the engine holds."""
    engine, _ = job.restore(directory)
    return _digest_and_close(engine) == digest(job.engine)


def _digest_and_close(engine: Engine) -> Digest:
    with closing(engine):
        return digest(engine)
