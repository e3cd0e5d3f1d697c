"""Found by name, and imported when first used.

Systems, backends, hosts, displays and wings have names. A name is short for `module:attribute`, which a configuration
may give as well: what Penstock brings is found in the same way as a class of a user.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
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
    "changelog-stream": "penstock.state.backends.changelog_stream:ChangelogStreamFactory",
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
    "shadow": "penstock.shadow.wing:SHADOW_WING",
    "replay": "penstock.replay.wing:REPLAY_WING",
    "deploy": "penstock.deploy.wing:DEPLOY_WING",
}
"""See `penstock.wing`. Parts act in this order, and end in the reverse one."""
OUTSIDE_WINGS = "penstock.wings"
"""The entry points under which other distributions bring wings."""
CHECKS = {OUTSIDE_WINGS: "penstock.wing:check_outside"}
"""By group of entry points: the function that checks what is found there, before anybody uses it."""
COMMANDS = (
    *(
        "new",
        "run",
        "check",
        "simulate",
        "status",
        "dashboard",
        "logs",
        "drain",
        "stop",
        "fork",
        "replay",
        "shadow",
        "deploy",
        "job",
    ),
    *("checkpoint", "startpoint", "state", "stream", "table", "config"),
)
"""The commands of `penstock`, whose names no wing may have."""
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


def has_module(name: str) -> bool:
    """True if a module can be found. Nothing is imported, nor are the packages that it is in.

    Example:
        >>> has_module("collections.abc"), has_module("collections.cba")
        (True, False)
    """
    path = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        package = ".".join(parts[:count])
        if package in sys.modules:
            path = getattr(sys.modules[package], "__path__", ())
            continue
        specs = (finder.find_spec(package, path) for finder in sys.meta_path)
        spec = next((each for each in specs if each is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations or ()
    return True


@dataclass(frozen=True, slots=True)
class FromOutside:
    """An object that an installed distribution brings as an entry point."""

    name: str
    value: Any
    origin: str
    """The distribution, in words."""


@cache
def from_outside(group: str) -> Mapping[str, Any]:
    """The objects that installed distributions bring as entry points of a group, by name, in the order of the names.

    Raises:
        ConfigError: one cannot be imported, two have one name, or the check of the group refuses one.
    """
    found: dict[str, FromOutside] = {}
    for each in sorted(entry_points(group=group), key=lambda each: each.name):
        origin = _origin(each)
        if each.name in found:
            raise ConfigError(
                f"two distributions bring `{each.name}` of the entry points `{group}`: {found[each.name].origin} and "
                f"{origin}. Remove one of them"
            )
        try:
            found[each.name] = FromOutside(each.name, each.load(), origin)
        except Exception as error:
            raise ConfigError(
                f"`{each.name}` of the entry points `{group}` cannot be loaded from {each.value}: {error!r}. Repair or "
                f"remove {origin}"
            ) from error
    if found and group in CHECKS:
        load(CHECKS[group])(tuple(found.values()))
    return {each.name: each.value for each in found.values()}


def _origin(entry: EntryPoint) -> str:
    """The distribution of an entry point, in words."""
    if entry.dist is None:
        return f"the distribution that brings `{entry.value}`"
    return f"the distribution `{entry.dist.name}` {entry.dist.version}"
