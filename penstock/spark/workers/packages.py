"""The part of a job for Spark's workers and containers, pickled once, and the identities of callers."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from penstock.errors import ConfigError
from penstock.host.logs import log_directory
from penstock.spark.workers.struct_classes import dumps
from penstock.start.job import ClaimedJob
from penstock.wire.package import PackedPackage, WorkerPackage


@dataclass(frozen=True, slots=True)
class Shipment:
    """The content that leaves the driver with every batch."""

    worker_package: PackedPackage
    secret: str = field(repr=False)

    @classmethod
    def of(cls, job: ClaimedJob) -> Shipment:
        """Raises ConfigError if the application cannot be pickled."""
        pages = str(log_directory(job.config, job.paths, job.uid))
        data = pickled(WorkerPackage(job.topology, job.settings, job.streams.systems, pages))
        return cls(
            PackedPackage(hashlib.sha256(data).hexdigest(), data),
            secrets.token_urlsafe(32),
        )


def pickled(package: object) -> bytes:
    """Pickle a package. User code may come from a script, so functions are pickled by value where they cannot be
    imported."""
    try:
        return dumps(package)
    except Exception as error:
        raise ConfigError(
            f"the application cannot be sent to the containers: {error}. Functions, tasks and serdes must be "
            "picklable; open files, locks and connections belong in StreamTask.init"
        ) from error
