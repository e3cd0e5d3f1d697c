"""Reasons for which a repartition would be refused after it has claimed the job, found while nothing is claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing

from penstock.admin.jobs import FoundJob
from penstock.admin.state.held import state_versions
from penstock.base.wording import size_text
from penstock.checkpoint.log_view import LogView
from penstock.errors import REFUSALS, IncompatibleError
from penstock.job.identity import known_uid
from penstock.repartition.move import StorePart, moved_entries
from penstock.repartition.placement import ByKey
from penstock.repartition.plan import RepartitionPlan
from penstock.state.backends.registry import BackendAdmins
from penstock.state.reading.reader import StateReader
from penstock.system.base import System
from penstock.system.registry import open_systems

LOOKED_THROUGH_BYTES = 256 << 20
"""The largest store of an operator that is looked through for a plan: a larger one takes as long as the move."""


def refused_backends(
    found: FoundJob, plan: RepartitionPlan, systems: Mapping[str, System], view: LogView
) -> Iterator[str]:
    """Reasons why the backends of the stores do not fit the new number of tasks, as sentences."""
    uid = known_uid(found.objects, found.paths)
    stores = list(plan.placements)
    with closing(
        BackendAdmins(found.config, found.paths, found.objects, plan.tasks, stores, systems, uid, view.restorable)
    ) as admins:
        try:
            admins.check()
        except REFUSALS as error:
            yield from map(str, error.refusals or (error,))


def large_stores(found: FoundJob, plan: RepartitionPlan) -> Mapping[str, int]:
    """The operators' own stores that are not looked through for a plan, with the bytes that they take."""
    own = _of_operators(plan)
    sizes = Counter[str]()
    if own:
        for each in state_versions(found).objects:
            sizes[each.store] += each.size_bytes
    return {store: sizes[store] for store in own if sizes[store] > LOOKED_THROUGH_BYTES}


def notes_of_large(large: Mapping[str, int]) -> tuple[str, ...]:
    """The sentences of a plan about such stores."""
    return tuple(
        f"store `{store}` takes {size_text(size)}, so its entries are looked through in the move alone: if one of them "
        "cannot be placed, the move is refused then. It changes nothing in that case, and the job starts as it was"
        for store, size in large.items()
    )


def refused_entries(found: FoundJob, plan: RepartitionPlan, large: Mapping[str, int]) -> Iterator[str]:
    """Reasons why entries of operators' own stores cannot be placed, as sentences. Looks through the stores in which
    keys may be others than those of the messages, but for the large ones: what waits there is small, as a rule."""
    own = {store: place for store, place in _of_operators(plan).items() if store not in large}
    if not own:
        return
    with StateReader(found.config, found.paths, found.objects, open_systems(found.config)) as reader:
        for store, place in own.items():
            try:
                for task in range(plan.record.task_count):
                    with reader.open(plan.record, store, task) as engine:
                        part = StorePart(store, task, plan.expires_ms.get(store))
                        for _ in moved_entries(part, engine, place, plan.tasks):
                            pass
            except IncompatibleError as error:
                yield str(error).removesuffix(". Nothing was changed")


def _of_operators(plan: RepartitionPlan) -> dict[str, ByKey]:
    return {store: place for store, place in plan.placements.items() if isinstance(place, ByKey) and place.of_operator}
