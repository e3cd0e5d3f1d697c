"""Finds jobs by their names, and versions of their state: by a checkpoint's id, by the number of its batch, as
`latest` or `latest-2`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.base.wording import argument, counted, listed
from penstock.checkpoint.record import CheckpointRecord, behind_latest
from penstock.config.load import load_config
from penstock.config.model import JobConfig
from penstock.errors import ConfigError, NotFoundError
from penstock.job.paths import JobPaths
from penstock.objects.forwarding import UntrustedError
from penstock.objects.open import open_job_root
from penstock.objects.store import ObjectStore

if TYPE_CHECKING:
    from penstock.application.application import Application
    from penstock.checkpoint.log import CheckpointLog
    from penstock.drain.requests import DrainRequests
    from penstock.start.startpoint_manager import StartpointManager
    from penstock.state.backends.registry import BackendAdmins


NO_JOB = "none"
"""The value of `job.name` where nothing needs one."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class FoundJob:
    """An open job: its configuration, the keys of its objects, and the object store. `application` is the application
    that it was opened with, if any. The log, the startpoints and the requests to drain are opened on first use, and
    kept: a list of jobs needs none of them."""

    config: JobConfig
    paths: JobPaths
    objects: ObjectStore
    application: Application | None = None

    @cached_property
    def log(self) -> CheckpointLog:
        """The checkpoint log. Each reading reads the objects as they are then."""
        from penstock.checkpoint.log import CheckpointLog  # late, as those below: completion in a shell is not to wait

        return CheckpointLog(self.objects, self.paths)

    @cached_property
    def startpoints(self) -> StartpointManager:
        """The requests for startpoints."""
        from penstock.start.startpoint_manager import StartpointManager

        return StartpointManager(self.objects, self.paths, self.config.job.startpoint_ttl_ms)

    @cached_property
    def drains(self) -> DrainRequests:
        """The requests to drain."""
        from penstock.drain.requests import DrainRequests

        return DrainRequests(self.objects, self.paths)


def backend_admins(
    found: FoundJob, record: CheckpointRecord, others: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> BackendAdmins:
    """The admins of the backends of a checkpoint's stores, and of `others` (backend → stores). The caller closes
    them."""
    from penstock.job.identity import known_uid  # late, as in FoundJob
    from penstock.state.backends.registry import BackendAdmins
    from penstock.system.registry import open_systems

    systems, uid, stores = open_systems(found.config), known_uid(found.objects, found.paths), sorted(record.stores)
    return BackendAdmins(
        found.config, found.paths, found.objects, record.task_count, stores, systems, uid, others=others
    )


def load_without_job(
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> JobConfig:
    """The configuration, with the placeholder `NO_JOB` if no `job.name` is given."""
    return load_config(file, overrides, assignments or (), default_job_name=NO_JOB)


@contextmanager
def open_job(
    name: str,
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
    app: Application | None = None,
    called: str | None = None,
    deleted: bool = False,
) -> Iterator[FoundJob]:
    """Open a job under the configured `job.root`, to look at it or to change it. Opening a job writes nothing.

    If both readings of a name are jobs (`a-1` as id 1 of `a`, and as a whole name), the first reading counts; name the
    other job `a-1-1`. With `app`, the job need not have been started before.

    Args:
        name: `name-id`, or the name alone, to take `job.id` from the configuration.
        file: a YAML or properties file with the configuration.
        assignments: `key=value` texts, which override the file and `overrides`.
        overrides: keys and values, which override the file.
        app: the job's application. It is needed for a job without a checkpoint, and for serdes that are not Penstock's.
        called: the application's name in messages; its own name, if None.
        deleted: find also a job that was deleted and has only its audit log left, for `audit`.

    Raises:
        NotFoundError: there is no such job.
        ConfigError: the name or the configuration is wrong, or the application is another job's.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     admin.status(job).last_checkpoint.batch
        2
        >>> with admin.open_job("counts") as job:
        ...     admin.status(job)
        Traceback (most recent call last):
        ...
        penstock.errors.NotFoundError: there is no job `counts`: looked for `counts-1` in job.root ...
    """
    if app is not None:
        with opened(load_config(file, overrides, assignments or (), default_job_name=app.name), app) as found:
            _check_name(found, name, called or app.name)
            yield found
        return
    config = load_without_job(file, assignments, overrides)
    with closing(open_job_root(config.job)) as objects:
        readings = _readings(name, config.job.id)
        paths = next((paths for paths in readings if _exists(objects, paths)), None)
        if paths is None and deleted:
            paths = next((paths for paths in readings if objects.list(paths.audit_log)), None)
        if paths is None:
            looked = " and ".join(f"`{reading.root}`" for reading in readings)
            raise NotFoundError(
                f"there is no job `{name}`: looked for {looked} in job.root {config.job.root}, which "
                f"{_jobs_there(objects, name)}. Check the name, and give the root of the job with {argument('file')}, "
                f"{argument('assignments', ['job.root=...'])} or PENSTOCK_HOME"
            )
        yield FoundJob(load_without_job(file, _named(assignments, paths), overrides), paths, objects)


@contextmanager
def opened(config: JobConfig, app: Application | None = None) -> Iterator[FoundJob]:
    """The job of a configuration, which need not have been started before."""
    with closing(open_job_root(config.job)) as objects:
        yield FoundJob(config, JobPaths(config.job.name, config.job.id), objects, app)


@contextmanager
def open_all_jobs(
    file: str | Path | None = None,
    assignments: Sequence[str] | None = None,
    *,
    overrides: Mapping[str, object] | None = None,
) -> Iterator[list[FoundJob]]:
    """Open every job under the configured `job.root`, ordered by name.

    Args:
        file, assignments, overrides: the configuration, as in `open_job`.

    Example:
        >>> with admin.open_all_jobs() as jobs:
        ...     [job.paths.root for job in jobs]
        ['flights-1']
    """
    with closing(open_job_root(load_without_job(file, assignments, overrides).job)) as objects:
        yield [
            FoundJob(load_without_job(file, _named(assignments, paths), overrides), paths, objects)
            for paths in _jobs(objects)
        ]


def _jobs(objects: ObjectStore) -> Iterator[JobPaths]:
    """The jobs in a root, by name."""
    for folder in objects.folders():
        name, _, job_id = folder.rpartition("-")
        with suppress(ConfigError):  # a folder of something else
            paths = JobPaths(name, job_id)
            if _exists(objects, paths):
                yield paths


def _jobs_there(objects: ObjectStore, wanted: str) -> str:
    """The jobs in a root, for a message: those with the names most like the wanted one."""
    names = [paths.root for paths in _jobs(objects)]
    if not names:
        return "has no jobs"
    near = [f"`{name}`" for name in difflib.get_close_matches(wanted, names, n=_MOST_NAMED, cutoff=0.0)]
    others = len(names) - len(near)
    return f"has {listed([*near, counted(others, 'other')] if others else near)}"


def _named(assignments: Sequence[str] | None, paths: JobPaths) -> list[str]:
    return [*(assignments or ()), f"job.name={paths.name}", f"job.id={paths.job_id}"]


def _check_name(found: FoundJob, name: str, called: str) -> None:
    paths = found.paths
    if name not in {paths.root, paths.name}:
        raise ConfigError(
            f"application `{called}` with this configuration is job `{paths.root}`, not `{name}`: set "
            f"`job.name` and `job.id`, or name `{paths.root}`"
        )


def _readings(name: str, job_id: str) -> list[JobPaths]:
    head, _, tail = name.rpartition("-")
    readings = []
    if head and tail:
        with suppress(ConfigError):
            readings.append(JobPaths(head, tail))
    readings.append(JobPaths(name, job_id))
    return readings


def _exists(objects: ObjectStore, paths: JobPaths) -> bool:
    """A job begins with its lease and, in slot 0 of its log, a claim, which is never deleted; a fork with its home."""
    for key in (paths.checkpoint(0), paths.lease, paths.home):
        with suppress(NotFoundError):
            with suppress(UntrustedError):  # whatever reads more of the job says so
                objects.get(key)
            return True
    return False


VERSION_FORMS = (
    "a checkpoint's ID or label, the number of its batch, `latest`, or `latest-N`, the N-th before the latest"
)

_VERSION_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_VERSION_BATCH = re.compile(r"[0-9]{1,18}")
_MOST_VERSIONS = 20


def choose_version(found: FoundJob, version: str) -> CheckpointRecord:
    """The retained checkpoint of a version. Raises as `choose_versions`."""
    return choose_versions(found, [version])[0]


def choose_versions(found: FoundJob, versions: Sequence[str]) -> list[CheckpointRecord]:
    """The retained checkpoint of each version, as of one moment.

    Which checkpoint is the latest, or the last of a batch, is unknown where the log is damaged; one that is named
    by its id or label can be read all the same.

    Raises:
        ConfigError: one of them names no version.
        NotFoundError: no checkpoint of that name is retained; says which are.
        CorruptError: the log is damaged, and not all versions are ids or labels.
    """
    from penstock.checkpoint.forks import check_whole  # late, as in FoundJob

    view = found.log.read("report")
    named = [view.id_of(version) for version in versions]
    if view.faults and not all(map(_VERSION_ID.fullmatch, named)):
        view = found.log.read()
    check_whole(found.objects, found.paths)
    if not view.restorable:
        raise NotFoundError(f"job `{found.paths.root}` has no checkpoint yet")
    return [find_version(view.restorable, version) for version in named]


def find_version(retained: Sequence[CheckpointRecord], version: str) -> CheckpointRecord:
    """The one of these checkpoints, oldest first, that a version names. Of several of one batch it is the newest: a
    run's first checkpoint has the batch that it went on from, and one that went back makes its batches again.

    Raises:
        ConfigError: this names no version.
        NotFoundError: it is none of them; says which there are.
    """
    if (behind := behind_latest(version)) is not None:
        matching = retained[: max(0, len(retained) - behind)]
    elif _VERSION_BATCH.fullmatch(version):
        matching = [record for record in retained if record.batch == int(version)]
    elif _VERSION_ID.fullmatch(version):
        matching = [record for record in retained if str(record.id) == version]
    else:
        raise ConfigError(f"`{version}` is not a version, and no label of the job: expected {VERSION_FORMS}")
    if not matching:
        raise NotFoundError(f"version `{version}` is not retained. Retained: {_listed(retained)}")
    return matching[-1]


def version_text(record: CheckpointRecord) -> str:
    return f"{record.id} (batch {record.batch})"


def _listed(retained: Sequence[CheckpointRecord]) -> str:
    newest = ", ".join(version_text(record) for record in reversed(retained[-_MOST_VERSIONS:]))
    more = len(retained) - _MOST_VERSIONS
    return f"{newest}, and {more} older ones that `penstock state list` shows" if more > 0 else newest
