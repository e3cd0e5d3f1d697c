"""The backends of a job: each by its name, their roots, and the admins of all of them.

A root is the job root, or a root of its own for each backend that is given one. The admins know the meaning of the
job's checkpoints to each backend. What the backends hold is derived from markers and the names of objects alone, and
reads no state.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from penstock.base.plugins import BACKENDS
from penstock.base.wording import first_characters
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.task_versions import needed_markers
from penstock.config.model import JobConfig, named_class
from penstock.errors import ConfigError, CorruptError, NotFoundError, PenstockError, Refusals
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.state.backends import base
from penstock.state.backends.resources import BackendRoots
from penstock.system.base import System


def built_in() -> dict[str, base.StateBackendFactory]:
    return {name: backend_factory(name) for name in BACKENDS}


def backend_factory(name: str) -> base.StateBackendFactory:
    """The backend with a short name, or of a class `module:Class`. Raises ConfigError if there is no such backend (the
    error lists all), or it is not a StateBackendFactory."""
    if name not in BACKENDS and ":" not in name:
        raise ConfigError(
            f"state backend `{name}` is not known; known: {', '.join(BACKENDS)}, or your own as `module:Class`"
        )
    return named_class(
        BACKENDS.get(name, name),
        base.StateBackendFactory,  # type: ignore[type-abstract]
        "penstock.state.backends.base.StateBackendFactory",
        f"state backend `{name}`",
    )()


logger = logging.getLogger(__name__)


class BackendAdmins:
    """Makes the resources of backends before containers open, and deletes objects that no retained checkpoint needs."""

    def __init__(
        self,
        config: JobConfig,
        paths: JobPaths,
        objects: ObjectStore,
        tasks: int,
        stores: Sequence[str],
        systems: Mapping[str, System],
        uid: str,
        restorable: Sequence[CheckpointRecord] = (),
        others: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            tasks: the number of tasks of the job.
            stores: the stores whose backends the configuration names.
            systems: the open systems, by name.
            restorable: the checkpoints that the job can restore now. They may name objects that it takes over.
            others: by backend, stores that may have objects in it, whatever the configuration names."""
        self._config = config
        self._paths = paths
        self._roots = BackendRoots(config, objects)
        self._tasks = tasks
        self._systems = systems
        self._uid = uid
        self._restorable = tuple(restorable)
        self._configured: dict[str, list[str]] = {}
        for store in stores:
            settings = config.store(store)
            for name in dict.fromkeys((*settings.backup_factories, *settings.restore_factories)):
                self._configured.setdefault(name, []).append(store)
        for name, also in others.items():
            own = self._configured.setdefault(name, [])
            own += [store for store in also if store not in own]
        self._admins: dict[str, base.StateBackendAdmin] = {}

    def prepare(self, epoch: int) -> None:
        """Make and check what the configured backends need, fenced with the epoch.

        Raises:
            ConfigError: something is missing or wrong.
            IncompatibleError: a backend's root is another job's.
        """
        self._roots.settle(self._config.rooted_backends, self._paths, self._uid)
        for name in self._configured:
            admin = self._admin(name, ())
            admin.create_resources(epoch)
            admin.validate_resources()

    def check(self) -> None:
        """Check what the configured backends have already, as `prepare` would. Writes nothing.

        Raises:
            ConfigError, IncompatibleError: something is wrong; says all of it.
        """
        refusals = Refusals("the backends of the state are refused")
        for name in self._configured:
            with refusals.noted():
                self._admin(name, ()).validate_resources()
        refusals.check()

    def collect(
        self,
        epoch: int,
        retained: Sequence[CheckpointRecord],
        left: Sequence[CheckpointRecord],
        *,
        sweep: bool,
        dry_run: bool = False,
    ) -> dict[str, base.Garbage]:
        """Delete objects that only checkpoints that left the list need; with `sweep`, also the leftovers of dead
        epochs.

        A backend that is not configured any more, but has markers in these checkpoints, is asked as well. If one fails
        the others are asked all the same, and then its error is raised.

        Raises:
            NotFoundError, CorruptError: a retained marker cannot be read, so that its backend deleted nothing. The
                caller checks if another driver has the job now, which may have deleted the marker's objects.
        """
        kept, gone = self._by_backend(retained), self._by_backend(left)
        found: dict[str, base.Garbage] = {}
        failures: list[PenstockError] = []
        for name in dict.fromkeys((*self._configured, *kept, *gone)):
            stores = [own.store for own in (*kept.get(name, ()), *gone.get(name, ()))]
            plan = base.Retention(epoch, kept.get(name, ()), gone.get(name, ()), sweep)
            try:
                found[name] = self._admin(name, stores).collect(plan, dry_run=dry_run)
            except (NotFoundError, CorruptError) as error:
                failures.append(
                    type(error)(
                        f"{name}: {error}. A retained checkpoint names it, so nothing of {name} is deleted: later "
                        "checkpoints may share what it names. Bring the object back from a backup of the store, or "
                        "wait until the checkpoint leaves `task.checkpoint.retained`; `penstock state verify` says "
                        "what can be restored"
                    )
                )
            except PenstockError as error:
                if isinstance(error, ConfigError) and name not in self._configured:
                    logger.warning("the objects of the dropped backend %s cannot be collected: %s", name, error)
                else:
                    failures.append(error)
        if failures:
            raise failures[0]
        return found

    def needed(self, retained: Sequence[CheckpointRecord]) -> dict[str, set[str]]:
        """By backend, the keys of all objects that the checkpoints need. Raises NotFoundError or CorruptError if a
        marker cannot be read."""
        return {
            name: set(self._admin(name, [own.store for own in markers]).needed(markers))
            for name, markers in self._by_backend(retained).items()
        }

    def close(self) -> None:
        for admin in self._admins.values():
            admin.close()
        self._roots.close()

    def _admin(self, name: str, stores: Sequence[str]) -> base.StateBackendAdmin:
        if name not in self._admins:
            named = tuple(dict.fromkeys((*self._configured.get(name, ()), *stores)))
            self._roots.check(name, self._paths, self._uid)
            objects = self._roots.of(name)
            context = base.AdminContext(
                objects,
                self._paths,
                self._tasks,
                named,
                self._config,
                self._systems,
                self._uid,
                lambda: self._by_backend(self._restorable).get(name, ()),
            )
            self._admins[name] = backend_factory(name).admin(context)
        return self._admins[name]

    def _by_backend(self, records: Sequence[CheckpointRecord]) -> dict[str, tuple[base.StoreMarker, ...]]:
        found: dict[str, dict[base.StoreMarker, None]] = {}
        for record in records:
            for task in record.tasks:
                changelogs = self._config.changelog_partitions(record.stores, task)
                for backend, stores in needed_markers(record, task, changelogs).items():
                    for store, own in stores.items():
                        found.setdefault(backend, {}).update(
                            (base.StoreMarker(store, task, each), None) for each in own
                        )
        return {backend: tuple(own) for backend, own in found.items()}


_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """Objects of one kind that a task's store has under the job root. `backend` is None for objects with unknown names,
    `task` for objects in no task's folder."""

    store: str
    task: int | None
    backend: str | None
    kind: str
    count: int
    size_bytes: int


def stored_objects(
    store: str, folder: str, sizes: Mapping[str, int], backends: Iterable[str] = ()
) -> list[StoredObjects]:
    """The objects in the folder of a store, by task, backend and kind; `sizes`: their sizes. Knows the objects of
    Penstock's own backends and of the `backends` that are named."""
    others = {name: factory for name in backends if (factory := _factory(name)) is not None}
    known = {**built_in(), **others}
    found: dict[tuple[int | None, str | None, str], tuple[int, int]] = {}
    for key, size in sizes.items():
        task, _, name = key.removeprefix(f"{folder}/").partition("/")
        place = (int(task) if task.isdecimal() and name else None, *_kind(name, known))
        count, total = found.get(place, (0, 0))
        found[place] = count + 1, total + size
    objects = [StoredObjects(store, *place, *totals) for place, totals in found.items()]
    return sorted(objects, key=lambda each: (-1 if each.task is None else each.task, each.backend or "", each.kind))


def summed(objects: Iterable[StoredObjects]) -> list[StoredObjects]:
    """The objects of all tasks together, by store, backend and kind."""
    found: dict[tuple[str, str | None, str], tuple[int, int]] = {}
    for each in objects:
        place = (each.store, each.backend, each.kind)
        count, size = found.get(place, (0, 0))
        found[place] = count + each.count, size + each.size_bytes
    total = [StoredObjects(store, None, backend, kind, *own) for (store, backend, kind), own in found.items()]
    return sorted(total, key=lambda each: (each.store, each.backend or "", each.kind))


def marker_text(backend: str, marker: str) -> str:
    """A marker for people, as its backend describes it; its beginning if the backend cannot be loaded."""
    factory = _factory(backend)
    return first_characters(marker) if factory is None else factory.marker_text(marker)


def span_text(texts: Iterable[str]) -> str:
    """The texts of several tasks as one: the text if all are equal, else the least and the greatest, numbers as
    such."""
    ordered = sorted(set(texts), key=lambda text: (text != base.EMPTY, _natural(text)))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


@cache
def _factory(backend: str) -> base.StateBackendFactory | None:
    try:
        return backend_factory(backend)
    except Exception:  # whatever the module of one's own raises: what it describes is no more than a help
        return None


def _kind(name: str, backends: Mapping[str, base.StateBackendFactory]) -> tuple[str | None, str]:
    for backend, factory in backends.items():
        if (kind := factory.kind_of(name)) is not None:
            return backend, kind
    return None, "other"


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key: `9.1` comes before `10.1`."""
    parts = _NUMBER.split(text)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
