"""What a job keeps under `job.root` besides its checkpoints and state: its uid."""

from __future__ import annotations

import secrets

from penstock.metadata.object_store import ObjectStore
from penstock.metadata.paths import JobPaths


def job_uid(objects: ObjectStore, paths: JobPaths) -> str:
    """The job's uid, minted by whoever comes first. Part of every local path, so that a job that was deleted and
    made again never meets its old files."""
    objects.put_if_absent(paths.uid, secrets.token_hex(6).encode())
    return objects.get(paths.uid).decode()
