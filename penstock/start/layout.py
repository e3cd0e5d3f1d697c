"""Layouts of stores, and the check that an application fits the stores of a checkpoint. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import replace

from penstock.base.refusals import Refusals
from penstock.base.wording import argument, counted, listed
from penstock.checkpoint.record import CheckpointRecord
from penstock.checkpoint.store_layout import StoreLayout
from penstock.errors import IncompatibleError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import OPERATOR_STORES, StoreSpec, layout_of
from penstock.start.row_layout import processor_change

_EMPTY = (
    f"begin with empty stores: set a startpoint with {argument('with_state', 'clear')}, or give the job a new `job.id`"
)
_WORDS = re.compile(r"[^:,()]+")
TABLE = "(table)"
"""The operators of a table: any may write and join it. No operator can have this id."""


def store_layout(graph: ApplicationGraph) -> dict[str, str]:
    """Store that the job writes -> what a checkpoint remembers of it, the text of a `StoreLayout`."""
    ids = graph.state_ids()
    users = {store: [ids.get(each, each) for each in own] for store, own in graph.store_users().items()}
    return {spec.name: str(_layout_of(spec, users.get(spec.name, []))) for spec in graph.written_stores}


def _layout_of(spec: StoreSpec, users: list[str]) -> StoreLayout:
    operators = (TABLE,) if spec.is_shared else tuple(users)
    return StoreLayout(operators, spec.key_serde.name, spec.value_serde.name, spec.ttl is not None)


def check_layout(
    record: CheckpointRecord,
    layout: Mapping[str, str],
    tasks: int,
    emptied: Container[str] = (),
    job: str = "JOB",
    inputs: str = "",
) -> None:
    """Raise IncompatibleError if the application cannot go on from the checkpoint. Of stores in `emptied` it takes
    nothing, whatever the checkpoint has. `job` is the job's name in commands, `inputs` names the inputs with the most
    partitions."""
    if record.task_count != tasks:
        raise IncompatibleError(
            f"checkpoint {record.id} was made with {counted(record.task_count, 'task')}, now there are {tasks}: the "
            f"largest partition count of the inputs{f' ({inputs})' if inputs else ''}, "
            "job.intermediate.stream.partitions or task.broadcast.inputs has changed. Keys would move away from their "
            f"state. Set it back, move the state (`penstock state repartition APP --tasks {tasks}`), or, to begin "
            f"without it, delete the job (`penstock job delete {job}`) or give it a new `job.id`"
        )
    refusals = Refusals(f"the application does not fit checkpoint {record.id}")
    for store, before in record.stores.items():
        if store not in emptied:
            with refusals.noted():
                _check_store(record, store, before, layout.get(store), job)
    refusals.check()


def _check_store(record: CheckpointRecord, store: str, before: str, now: str | None, job: str) -> None:
    if now == before or (now is not None and _is_read_as(StoreLayout.parse(before), StoreLayout.parse(now), now)):
        return
    if (why := processor_change(store, before, now)) is not None:
        raise IncompatibleError(f"{why}. The checkpoint is {record.id}; nothing was changed")
    if store.endswith(OPERATOR_STORES):
        if not record.is_closed:  # after the end of the stream nothing waits in it
            raise _changed_operator(record, store, before, now, job)
        return
    if now is None:
        raise IncompatibleError(
            f"store `{store}` is in checkpoint {record.id} (operators, key serde, value serde: {before}) but no "
            f"longer in the application. Declare it again, or {_EMPTY}"
        )
    old = StoreLayout.parse(before)
    if old.expires and now == str(replace(old, expires=False)):
        raise _without_ttl(record, store)
    raise IncompatibleError(
        f"store `{store}` was written as `{before}` (operators, key serde, value serde) and is declared as "
        f"`{now}` now. {_renamed(before, now) or _old_numbers(store, before, now)}Set it back, or {_EMPTY}"
    )


def _is_read_as(old: StoreLayout, new: StoreLayout, now: str) -> bool:
    """True if a store is read as it was written: its entries get a time to live in the first batch, or its rows have
    more fields now."""
    return (new.expires and now == str(replace(old, expires=True))) or new.adds_fields(old)


def _without_ttl(record: CheckpointRecord, store: str) -> IncompatibleError:
    """Its entries say when they expire, in a form that a store without a time to live does not read."""
    return IncompatibleError(
        f"the entries of store `{store}` in checkpoint {record.id} have a time to live, and the application declares "
        f'none. Declare it again: app.store("{store}", ..., ttl_ms=...). The time may be another one: '
        "entries that are written from now on have it, and the others keep theirs. Or start from a checkpoint from "
        f"before the store had one ({argument('from_checkpoint')}), or {_EMPTY}"
    )


def _changed_operator(
    record: CheckpointRecord, store: str, before: str, now: str | None, job: str
) -> IncompatibleError:
    """No other operator can read an operator's own store, nor the same one if it is defined otherwise."""
    operator, _, kind = store.rpartition(".")
    kind = kind.removeprefix("in-")
    was = before.split(" ")[-1]
    verb, it = ("are", "them") if kind == "timers" else ("is", "it")
    is_now = "" if now is None else now.split(" ")[-1]
    alone = f"{it} alone with `penstock drain {job} --operator {operator} --wait`, or all operators with "
    drain = f"drain {'' if kind == 'aggregate' else alone}`penstock drain {job} --wait`: what waits fires, and "
    drain += "the next start may be of"
    reset = f"Or drop what waits in {it}, and keep all other state: {argument('reset_operators', [operator])}"
    if is_now and layout_of(was) != layout_of(is_now):
        return IncompatibleError(
            f"the {kind} of operator `{operator}` {verb} in checkpoint {record.id} in layout {layout_of(was)} of the "
            f"store, which another version of Penstock wrote. This version reads layout {layout_of(is_now)}: what "
            f"waits in {it} would be read wrongly. Start the application, as it was, with that version, and {drain} "
            f"this version. {reset}"
        )
    found = f"{verb} in checkpoint {record.id} as `{was}` and {verb} "
    found += f"`{is_now}` now" if is_now else "no longer in the application"
    if changes := _difference(was, is_now):
        found = f"{verb} in checkpoint {record.id}, but {verb} defined in another way now: {changes}"
    put = "Put" if now is None else "Set"
    if now is None:
        found += f' (if it has another id now, declare it with renamed_from="{operator}")'
    if kind == "order":
        now_is = f"It is ordered as `{is_now}` now" if is_now else "It is not ordered by event time any more"
        return IncompatibleError(
            f'operator `{operator}` had order="event-time" at checkpoint {record.id} (`{was}`), so messages wait in '
            f'it for their turn. {now_is}, and they would be lost. Give it back its order, with id="{operator}". To '
            f"change it, start the application as it was, and {drain} the changed one. {reset}"
        )
    if kind == "aggregate":
        return IncompatibleError(
            f"the aggregate of operator `{operator}` {found}. Its totals "
            f'cannot be continued. {put} it back, with id="{operator}". To change it, drop its totals, and keep all '
            f"other state: {argument('reset_operators', [operator])}. They begin at 0 again, with the messages that "
            "are read from then on. To count all messages again, set startpoints at the oldest ones with "
            f"{argument('with_state', 'clear')} instead"
        )
    return IncompatibleError(
        f"the {kind} of operator `{operator}` {found}. The content that waits in {it} would be lost. {put} {it} back, "
        f'with id="{operator}". To change {it}, start the application as it was, and {drain} the changed one. {reset}'
    )


def _difference(was: str, now: str) -> str:
    """The words that changed, where both texts have the same form and are long; empty otherwise, and where a word does
    not say what it is about."""
    old, new = _WORDS.findall(was), _WORDS.findall(now)
    changed = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
    if not len(old) == len(new) > max(4, len(changed)) or not all("=" in a for a, _ in changed):
        return ""
    return listed([f"`{a}` became `{b}`" for a, b in changed])


def _renamed(before: str, now: str) -> str:
    """The hint where only the ids of operators differ: operators without an id are numbered."""
    (old, *serdes), (new, *others) = before.split(" "), now.split(" ")
    olds, news = old.split(","), new.split(",")
    if serdes != others or len(olds) != len(news):
        return ""
    moved = [(was, is_now) for was, is_now in zip(olds, news, strict=True) if was != is_now]
    ids = " and ".join(f'.process(..., id="{was}") to the one that is `{is_now}` now' for was, is_now in moved)
    return (
        "Operators without an id are numbered in order: one that is put before another changes its id. If these are "
        f"the operators that wrote the store, give them their ids back: {ids}; and give each one before them a new id. "
        "Otherwise: "
    )


def _old_numbers(store: str, before: str, now: str) -> str:
    """The serde to declare if only the form of number keys differs: they were declared in Samza's form."""
    old, new = before.split(" "), now.split(" ")
    if len(old) != 3 or len(new) != 3 or (old[0], old[2]) != (new[0], new[2]) or new[1] != f"ordered-{old[1]}":
        return ""
    return (
        "Its keys are in Samza's form, which has no ranges: "
        f'app.store("{store}", key=ps.Samza{old[1].capitalize()}()) reads them. '
    )
