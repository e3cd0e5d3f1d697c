"""What a job keeps under `job.root` besides its checkpoints and state: its uid, and the probe of a start."""

from __future__ import annotations

import secrets

from penstock.errors import NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths


def job_uid(objects: ObjectStore, paths: JobPaths) -> str:
    """The job's uid, minted by whoever comes first. Part of every local path, so that a job that was deleted and
    made again never meets its old files."""
    objects.put_if_absent(paths.uid, secrets.token_hex(6).encode())
    return objects.get(paths.uid).decode()


def existing_uid(objects: ObjectStore, paths: JobPaths) -> str:
    """The uid of a job that has run before. Raises NotFoundError if it never has."""
    try:
        return objects.get(paths.uid).decode()
    except NotFoundError:
        raise NotFoundError(
            f"there is no job `{paths.name}` with id `{paths.job_id}` under job.root: it never started, or job.root "
            "or job.id is another"
        ) from None
