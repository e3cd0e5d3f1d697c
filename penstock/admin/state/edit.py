"""Changes single entries of a store of a stopped job: a plan first, then one checkpoint with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

from penstock.admin.checkpoint.change import next_checkpoint
from penstock.admin.job.logs import audited
from penstock.admin.job.running import refuse_running
from penstock.admin.jobs import FoundJob
from penstock.admin.state.serdes import StoreSerdes, Texts, store_serdes
from penstock.admin.state.store_uploads import StoreUploads
from penstock.admin.table import refuse_side_stores
from penstock.api.serdes import Serde
from penstock.base.retry import SYSTEM_CLOCK, Retry, retry
from penstock.base.wording import counted, flag
from penstock.checkpoint import edit
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.facts import FOR_PEOPLE, Column, Facts, FactTable, Shown
from penstock.graph.stores import OPERATOR_STORES, StoreLayout
from penstock.host.process import process_folder
from penstock.shadow.wing import refuse_loud
from penstock.state.outside_backup import StoreLoad
from penstock.state.reading.comparison import Difference
from penstock.state.reading.reader import StateReader, StoreVersion
from penstock.system.base import System
from penstock.system.registry import open_systems

_MOST_SHOWN = 20
_RETRY = Retry(pause_s=0.2, tries=5)


@dataclass(frozen=True, slots=True)
class EntryChange:
    """An entry that changes, as text."""

    task: Annotated[int, Column("task", right=True)]
    key: Annotated[str, Column("key")]
    before: Annotated[str | None, Column("before")]
    after: Annotated[str | None, Column("after", absent="(deleted)")]


@dataclass(frozen=True, slots=True)
class StateEdit(Shown):
    """Planned changes of a store's entries, from `plan_edit`. `edit_state` makes them."""

    job: FoundJob = field(repr=False)
    store: str
    base: CheckpointRecord = field(repr=False)
    seen: LogView = field(repr=False)
    changes: tuple[Difference, ...] = field(repr=False)
    keys: Texts = field(repr=False)
    values: Texts = field(repr=False)
    systems: Mapping[str, System] = field(repr=False, default_factory=dict, metadata=FOR_PEOPLE)

    @property
    def is_needed(self) -> bool:
        """True if anything would change."""
        return bool(self.changes)

    def shown(self, most: int | None = None) -> tuple[EntryChange, ...]:
        """The changes as text.

        Args:
            most: at most so many; None: all.
        """
        return tuple(
            EntryChange(
                each.task,
                self.keys.short(each.key),
                None if each.before is None else self.values.short(each.before),
                None if each.after is None else self.values.short(each.after),
            )
            for each in islice(self.changes, most)
        )

    def as_facts(self) -> Facts:
        count = counted(len(self.changes), "entry")
        more = f"The first {_MOST_SHOWN} are shown." if len(self.changes) > _MOST_SHOWN else ""
        title = f"Store {self.store} of {self.job.paths.root}, checkpoint {self.base.id}: {count} would change"
        return Facts({}, (FactTable(title, self.shown(_MOST_SHOWN), note=more),))


@dataclass(frozen=True, slots=True)
class EditFacts:
    """The result of `edit_state`. `checkpoint` is None if nothing had to change; otherwise the label `undo` keeps the
    checkpoint before."""

    job: str
    store: str
    origin: str
    checkpoint: str | None
    undo: str | None
    changed: int


Apply = Callable[[Any, Any], Any]
"""From an entry's key and value to its new value; None deletes it."""


@contextmanager
def plan_edit(
    job: FoundJob,
    store: str,
    *,
    sets: Mapping[str, str] | None = None,
    deletes: Sequence[str] = (),
    function: Apply | None = None,
    task: int | None = None,
    called: str | None = None,
) -> Iterator[StateEdit]:
    """Plan to change entries of a store, as of the last checkpoint. Writes nothing.

    Args:
        job: a job that is not running, or a fork of one that is. Open it with its application if the store's serdes are
            not Penstock's.
        store: a store of the application's own, and not of an operator such as a window.
        sets: new values by key, as text: what the store's serdes read, as `penstock state get` takes keys.
        deletes: keys to delete. There must be an entry of each.
        function: called with the key and the value of each entry, after `sets` and `deletes`; returns the value, a new
            one, or None to delete the entry.
        task: the number of the task that has the keys; by default all that have an entry of the key, and for a new one
            the task that owns it if the store is kept by the key of its messages.
        called: the name of the application in messages.

    Raises:
        ConfigError: a text cannot be read, or a serde is not known.
        NotFoundError: there is no such store, or a key to delete is not in it.
        IncompatibleError: the entries are an operator's, or expire; or there is no checkpoint.

    Example:
        >>> with admin.open_job("flights") as job, admin.plan_edit(job, "miles", sets={"N1": "7"}) as planned:
        ...     [(each.key, each.before, each.after) for each in planned.shown()]
        [('N1', '1200', '7')]
    """
    view = job.log.read()
    base = edit.choose_origin(view, None, job.config.task)
    if base is None:
        raise IncompatibleError(f"job `{job.paths.root}` has no checkpoint yet, so there is no entry to change")
    if twice := [key for key in deletes if key in (sets or {})]:
        raise ConfigError(f"the key `{twice[0]}` is both set and deleted: give one of them")
    refuse_side_stores(job, base, [store])
    serdes = store_serdes(base, store, job.application, called)
    _refuse_store(base, store, setting=bool(sets) or function is not None)
    keys, values = Texts("key", serdes.key_name, serdes.key), Texts("value", serdes.value_name, serdes.value)
    systems = open_systems(job.config)
    with (
        StateReader(job.config, job.paths, job.objects, systems) as reader,
        StoreVersion(reader, job.log, base, store) as version,
    ):
        wanted = {keys.parse(key): values.parse(value) for key, value in (sets or {}).items()}
        changes = list(_of_keys(version, keys, wanted, [keys.parse(key) for key in deletes], task))
        if function is not None:
            changes = list(_applied(version, serdes, function, changes, task))
        yield StateEdit(job, store, base, view, tuple(changes), keys, values, systems)


def edit_state(planned: StateEdit) -> EditFacts:
    """Make planned changes: one checkpoint, with the positions and all other state of the one before.

    The checkpoint before gets a label, `before-edit-` and its id, so the changes can be undone: start with it
    (`penstock run --from`), or fork it. Until the new checkpoint is written, nothing has changed.

    Args:
        planned: the plan, from `plan_edit`.

    Raises:
        LeaseHeldError: the job runs.
        IncompatibleError: another process has written a checkpoint since.
        ConfigError: the job is a shadow, and the configuration does not say so.
        PenstockError: a backend failed.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     with admin.plan_edit(job, "miles", sets={"N1": "7"}, deletes=["N2"]) as planned:
        ...         done = admin.edit_state(planned)
        ...     with admin.open_state(job, "miles") as miles:
        ...         {each.key: each.value for each in miles.scan()}, done.undo.startswith("before-edit-")
        ({'N1': 7, 'N14': 90}, True)
    """
    job, base, store = planned.job, planned.base, planned.store
    facts = EditFacts(job.paths.root, store, str(base.id), None, None, len(planned.changes))
    if not planned.is_needed:
        return facts
    refuse_running(job)
    refuse_loud(job.config, planned.seen, job.paths.root)
    undo = f"before-edit-{base.id}"
    noted = {"store": store, "entries": str(len(planned.changes)), "undo": undo}
    with audited(job, "state edit", noted) as change:
        retry(lambda: job.log.label(undo, base.id, SYSTEM_CLOCK.now_ms()), _RETRY)
        record = _carry_out(planned)
        change.changes |= {"checkpoint": f"{base.id} -> {record.id}"}
    return replace(facts, checkpoint=str(record.id), undo=undo)


def _refuse_store(record: CheckpointRecord, store: str, *, setting: bool) -> None:
    """Raise IncompatibleError if entries of the store cannot be changed one by one."""
    layout = StoreLayout.parse(record.stores[store])
    if store.endswith(OPERATOR_STORES):
        raise IncompatibleError(
            f"store `{store}` is of an operator, which keeps its entries in another form: change a store of a "
            "task, or of `reduce`"
        )
    if layout.expires and setting:
        raise IncompatibleError(
            f"entries of store `{store}` expire, and nobody but the job knows when a new one would: delete entries "
            f"({flag('deletes')}), and let the job write them"
        )


def _of_keys(
    version: StoreVersion, keys: Texts, sets: Mapping[bytes, bytes], deletes: Sequence[bytes], task: int | None
) -> Iterator[Difference]:
    for key in (*sets, *deletes):
        after = sets.get(key)
        found = version.lookup(key, version.tasks if task is None else [task])
        if after is None and not found:
            raise NotFoundError(
                f"there is no key `{keys.short(key)}` in store `{version.store}` at checkpoint {version.record.id}, so "
                "it cannot be deleted"
            )
        if not found:
            yield Difference(key, version.owner(key) if task is None else task, None, after)
        for entry in found:
            if entry.value != after:
                yield Difference(key, entry.task, entry.value, after)


def _applied(
    version: StoreVersion, serdes: StoreSerdes, function: Apply, changes: Sequence[Difference], task: int | None
) -> Iterator[Difference]:
    """The changes, and what a function makes of each entry as it is after them."""
    keys = _needed("key", serdes.key_name, serdes.key, version.store)
    values = _needed("value", serdes.value_name, serdes.value, version.store)
    changed = {(each.key, each.task): each for each in changes}
    for entry in version.scan(tasks=None if task is None else [task]):
        known = changed.pop((entry.key, entry.task), None)
        now = entry.value if known is None else known.after
        after = None if now is None else _of_function(function, keys, values, entry.key, now)
        if after != entry.value:
            yield Difference(entry.key, entry.task, entry.value, after)
    for known in changed.values():  # entries that are new
        after = None if known.after is None else _of_function(function, keys, values, known.key, known.after)
        if after is not None:
            yield replace(known, after=after)


def _of_function(function: Apply, keys: Serde[Any], values: Serde[Any], key: bytes, value: bytes) -> bytes | None:
    decoded, unchanged = keys.from_bytes(key), values.to_bytes(values.from_bytes(value))
    try:
        made = function(decoded, values.from_bytes(value))
    except Exception as error:
        raise ConfigError(f"the function failed for the key {decoded!r}: {type(error).__name__}: {error}") from error
    if made is None:
        return None
    try:
        written = values.to_bytes(made)
    except Exception as error:
        raise ConfigError(f"the value of the function for the key {decoded!r} cannot be stored: {error}") from error
    return value if written == unchanged else written  # one that a job writes may have other bytes for the same


def _needed(what: str, name: str, serde: Serde[Any] | None, store: str) -> Serde[Any]:
    if serde is None:
        raise ConfigError(
            f"the {what} serde `{name}` of store `{store}` is not one of Penstock's: open the job with its application"
        )
    return serde


def _carry_out(planned: StateEdit) -> CheckpointRecord:
    job, base = planned.job, planned.base
    late = f"nothing was changed: another process wrote a checkpoint of job `{job.paths.root}` meanwhile"
    with ExitStack() as stack:
        following = stack.enter_context(next_checkpoint(job, "edit", planned.seen, late))
        uploads = stack.enter_context(closing(StoreUploads(following, base.task_count, planned.systems)))
        markers = _backed_up(planned, uploads)
        record = following.record(base, _content(planned, markers))
        following.append(record)
    return record


def _backed_up(planned: StateEdit, uploads: StoreUploads) -> dict[int, Mapping[str, str]]:
    """The new markers of the store, by backend, in each task that changes."""
    job, base, store = planned.job, planned.base, planned.store
    backup = uploads.outside(base.id, [store])
    found: dict[int, Mapping[str, str]] = {}
    with (
        process_folder("penstock-edit-") as scratch,
        StateReader(job.config, job.paths, job.objects, planned.systems) as reader,
    ):
        for task in sorted({each.task for each in planned.changes}):
            changed = {each.key: each.after for each in planned.changes if each.task == task}
            with (
                reader.open(base, store, task) as engine,
                closing(StoreLoad(job.config.store(store), 1, scratch / str(task))) as load,
            ):
                for key, value in engine.scan(None, None):
                    if key not in changed:
                        load.put(0, key, value)
                for key, after in changed.items():
                    if after is not None:
                        load.put(0, key, after)
                (copy,) = load.copies()
                found[task] = backup.upload(task, store, copy)
                copy.release()
    return found


def _content(planned: StateEdit, markers: Mapping[int, Mapping[str, str]]) -> edit.CheckpointContent:
    job, base = planned.job, planned.base
    before = edit.content_of(base, lambda task: job.config.changelog_partitions(base.stores, task))
    merged = {
        task: edit.with_store(own, planned.store, markers[task]) if task in markers else own
        for task, own in before.markers.items()
    }
    return replace(before, markers=merged)
