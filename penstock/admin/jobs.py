"""Finding a job from outside, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.shared.options import load_without_job
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.open import open_store
from penstock.metadata.paths import JobPaths

JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job: `name-id`, or its name alone, with the `job.id` of the configuration.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that has been started at least once, and where its objects are. `config` has its name and id."""

    config: JobConfig
    paths: JobPaths
    objects: ObjectStore


@contextmanager
def open_job(name: str, file: Path | None, assignments: list[str] | None) -> Iterator[FoundJob]:
    """The job of a name under the configured `job.root`, which is only read.

    If both readings of a name are jobs (`a-1` as id 1 of `a`, and as a whole name), the first one counts;
    the other is `a-1-1`.

    Raises:
        NotFoundError: there is no such job.
        ConfigError: the name or the configuration is wrong.
    """
    config = load_without_job(file, assignments)
    objects = open_store(config.job.root)
    try:
        readings = _readings(name, config.job.id)
        paths = next((paths for paths in readings if _exists(objects, paths)), None)
        if paths is None:
            looked = " and ".join(f"`{reading.root}`" for reading in readings)
            raise NotFoundError(
                f"there is no job `{name}`: looked for {looked} in job.root {config.job.root}. Check the name, and "
                "name the job's own root with --config, `-c job.root=...` or PENSTOCK_HOME"
            )
        own = [*(assignments or ()), f"job.name={paths.name}", f"job.id={paths.job_id}"]
        yield FoundJob(load_without_job(file, own), paths, objects)
    finally:
        objects.close()


@contextmanager
def open_all_jobs(file: Path | None, assignments: list[str] | None) -> Iterator[list[FoundJob]]:
    """Every job under the configured `job.root`, by name."""
    config = load_without_job(file, assignments)
    objects = open_store(config.job.root)
    try:
        found = []
        for folder in objects.folders():
            name, _, job_id = folder.rpartition("-")
            with suppress(ConfigError):  # a folder of something else
                paths = JobPaths(name, job_id)
                if _exists(objects, paths):
                    own = [*(assignments or ()), f"job.name={name}", f"job.id={job_id}"]
                    found.append(FoundJob(load_without_job(file, own), paths, objects))
        yield found
    finally:
        objects.close()


def _readings(name: str, job_id: str) -> list[JobPaths]:
    head, _, tail = name.rpartition("-")
    readings = []
    if head and tail:
        with suppress(ConfigError):
            readings.append(JobPaths(head, tail))
    readings.append(JobPaths(name, job_id))
    return readings


def _exists(objects: ObjectStore, paths: JobPaths) -> bool:
    """A job begins with its lease and, in slot 0 of its log, a claim, which is never deleted."""
    for key in (paths.checkpoint(0), paths.lease):
        with suppress(NotFoundError):
            objects.get(key)
            return True
    return False
