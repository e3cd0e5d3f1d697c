"""Systems, backends and hosts by name. A name here is short for `module:attribute`, which a configuration may give as
well: what Penstock brings is found in the same way as a class of a user."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SYSTEMS = {
    "database": "penstock.system.database.system:DatabaseSystem",
    "delta": "penstock.system.lake.system:DeltaSystem",
    "files": "penstock.system.files.system:FilesSystem",
    "iceberg": "penstock.system.lake.system:IcebergSystem",
    "kafka": "penstock.system.kafka.system:KafkaSystem",
    "local": "penstock.system.local:LocalSystem",
    "memory": "penstock.system.memory:MemorySystem",
}
BACKENDS = {
    "changelog-files": "penstock.state.backends.changelog_files.factory:ChangelogFilesFactory",
    "blob": "penstock.state.backends.blob.factory:BlobFactory",
    "changelog-stream": "penstock.state.backends.changelog_stream.factory:ChangelogStreamFactory",
}
HOSTS = {"spark": "penstock.spark.job.launch:run_application"}
"""The functions that run an application."""
SECTIONS = ("drain", "outbox", "query", "streams", "time")
"""The sections of a checkpoint record that this Penstock can restore."""


def load(place: str) -> Any:
    """The object at `module:attribute`, as its module has it now: a program may have reloaded that.

    Raises:
        AttributeError: the module has no such attribute.
        Exception: the module cannot be imported.

    Example:
        >>> load("collections:Counter")
        <class 'collections.Counter'>
    """
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
