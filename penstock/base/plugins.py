"""Found by name, and imported when first used.

Systems, backends, hosts, displays and wings have names. A name is short for `module:attribute`, which a configuration
may give as well: what Penstock brings is found in the same way as a class of a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from penstock.errors import ConfigError

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
    "blob": "penstock.state.backends.blob:BlobFactory",
    "changelog-stream": "penstock.state.backends.changelog_stream.factory:ChangelogStreamFactory",
}
HOSTS = {"spark": "penstock.spark.job:run_application"}
"""The functions that run an application."""
WINGS = {
    "side": "penstock.side.wing:SIDE_WING",
    "schemas": "penstock.schemas.registry:SCHEMAS_WING",
    "tables": "penstock.tables.wing:TABLES_WING",
    "outbox": "penstock.outbox.wing:OUTBOX_WING",
    "standby": "penstock.standby.wing:STANDBY_WING",
    "drain": "penstock.drain.wing:DRAIN_WING",
}
"""See `penstock.wing`. Parts act in this order, and end in the reverse one."""
OUTSIDE_WINGS = "penstock.wings"
"""The entry points under which other distributions bring wings."""
PICKLERS = {"spark": "penstock.spark.workers.packages:pickled"}
"""The functions that pickle an application for a host's workers. A test calls one to see whether it can run."""
DISPLAYS = {"dashboard": "penstock.dashboard.displays:serve", "notebook": "penstock.dashboard.displays:show"}
"""The functions that show a running job: on a page that its driver serves, and in the output of a notebook's cell."""


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


@cache
def from_outside(group: str) -> Mapping[str, Any]:
    """The objects that installed distributions bring as entry points of a group, by name, in the order of the names.

    Raises:
        ConfigError: one cannot be imported.
    """
    found = {}
    for each in sorted(entry_points(group=group), key=lambda each: each.name):
        try:
            found[each.name] = each.load()
        except Exception as error:
            raise ConfigError(
                f"`{each.name}` of the entry points `{group}` cannot be loaded from {each.value}: {error!r}. Repair or "
                "remove the distribution that brings it"
            ) from error
    return found
