"""Layouts of stores, and the check that an application fits the stores of a checkpoint. Pure.

Differences in the state of a processor of PySpark are told in words. The texts that are compared are made in
`penstock.spark.processor.declared`. A value is `value-1(n:bigint)`, a map has the columns of its keys before a
semicolon, a grouping key is `key-1(user:string)`, and timers have the time mode before the grouping key:
`timers-1(eventtime;user:string)`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from urllib.parse import unquote

from penstock.base.wording import argument, counted, listed
from penstock.checkpoint.record import CheckpointRecord
from penstock.errors import IncompatibleError, Refusals
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import OPERATOR_STORES, WAITING_STORES, StoreLayout, StoreSpec, layout_of

_STATE = re.compile(r"(value|list|map|timers)-[0-9]+\((.*)\)")
_KEY = re.compile(r"key-[0-9]+\((.*)\)")
_OPENS, _CLOSES = "<(", ">)"
_OUT = "Set it back, or begin with empty state: give the query another root or name, and a new checkpoint location"


def processor_change(store: str, before: str, now: str | None) -> str | None:
    """Why a processor cannot have the state of a checkpoint, with the ways out; None: the store is of no processor.

    Args:
        store: the name of the store.
        before: its layout in the checkpoint.
        now: its layout in the application; None: it has no such store.

    Example:
        >>> before, now = "p key-1(user:string) value-1(n:bigint)", "p key-1(user:string) value-1(n:string)"
        >>> processor_change("visits", before, now).split(". ")[0]
        'the state variable `visits` has changed: column `n` was bigint and is string now'
    """
    old = StoreLayout.parse(before)
    found = _STATE.fullmatch(old.value)
    if found is None:
        return None
    is_timers = found[1] == "timers"
    what = "the timers of the processor" if is_timers else f"the state variable `{store}`"
    if now is None:
        gone = (
            "have a time mode in the checkpoint, and the query has none now"
            if is_timers
            else "is in the checkpoint, and the processor does not declare it now"
        )
        drop = "" if is_timers else f'To drop it, call handle.deleteIfExists("{store}") in `init`. Otherwise: '
        return f"{what} {gone}. {drop}{_OUT}"
    new = StoreLayout.parse(now)
    if is_timers:
        changes = list(_timers(found[2], new.value))
    else:
        changes = [*_key(old.key, new.key), *_value(found, new.value), *_expiry(old, new)]
    verb = "have" if is_timers else "has"
    return f"{what} {verb} changed: {listed(changes) or f'it was `{before}` and is `{now}` now'}. {_OUT}"


def columns(text: str) -> dict[str, str]:
    """Names and types of a list of columns.

    Example:
        >>> columns("a:struct<x:int,y:int>,b%20c:decimal(10,2)")
        {'a': 'struct<x:int,y:int>', 'b c': 'decimal(10,2)'}
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in _OPENS) - (letter in _CLOSES)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    found = [part.partition(":") for part in parts if part]
    return {unquote(name): unquote(kind) for name, _, kind in found}


def _key(before: str, now: str) -> Iterator[str]:
    old, new = _KEY.fullmatch(before), _KEY.fullmatch(now)
    if old is not None and new is not None and before != now:
        yield f"the grouping key was {_shown(old[1])} and is {_shown(new[1])} now"


def _value(old: re.Match[str], now: str) -> Iterator[str]:
    new = _STATE.fullmatch(now)
    if new is None or new[1] != old[1]:
        yield f"it was a {old[1]} and is {f'a {new[1]}' if new else 'something else'} now"
        return
    *before_key, before = old[2].removeprefix("ttl;").split(";")
    *now_key, after = new[2].removeprefix("ttl;").split(";")
    if before_key != now_key:
        yield f"its key was {_shown(''.join(before_key))} and is {_shown(''.join(now_key))} now"
    yield from _columns(columns(before), columns(after))


def _columns(old: dict[str, str], new: dict[str, str]) -> Iterator[str]:
    changes = []
    for name, kind in old.items():
        if name not in new:
            changes.append(f"column `{name}` of type {kind} is gone")
        elif new[name] != kind:
            changes.append(f"column `{name}` was {kind} and is {new[name]} now")
    in_order = list(new)[: len(old)] == list(old)
    if not in_order and not changes:
        changes.append(f"its columns were {listed(list(old))} and are {listed(list(new))} now; new ones go to the end")
    yield from changes


def _expiry(old: StoreLayout, new: StoreLayout) -> Iterator[str]:
    was, is_now = (each.expires or each.value.startswith("list-1(ttl;") for each in (old, new))
    if was != is_now:
        yield "its values had a time to live" if was else "its values have a time to live now, and had none"


def _timers(before: str, now: str) -> Iterator[str]:
    new = _STATE.fullmatch(now)
    old_mode, _, old_key = before.rpartition(";")
    new_mode, _, new_key = ("", "", "") if new is None else new[2].rpartition(";")
    if old_mode != new_mode:
        yield f"the time mode was {old_mode} and is {new_mode} now"
    if old_key != new_key:
        yield f"the grouping key was {_shown(old_key)} and is {_shown(new_key)} now"


def _shown(text: str) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in columns(text).items()) + ")"


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
        if not record.is_closed or not store.endswith(WAITING_STORES):  # after the end of the stream nothing waits
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
    verb, it = _grammar(kind)
    is_now = "" if now is None else now.split(" ")[-1]
    drain, reset = _ways_on(operator, it, job)
    if is_now and layout_of(was) != layout_of(is_now):
        where = f"in checkpoint {record.id} in layout {layout_of(was)} of the store"
        return _other_layout(operator, kind, where, layout_of(is_now), job)
    if kind == "order":
        now_is = f"It is ordered as `{is_now}` now" if is_now else "It is not ordered by event time any more"
        return IncompatibleError(
            f'operator `{operator}` had order="event-time" at checkpoint {record.id} (`{was}`), so messages wait in '
            f'it for their turn. {now_is}, and they would be lost. Give it back its order, with id="{operator}". To '
            f"change it, start the application as it was, and {drain} the changed one. {reset}"
        )
    found = f"{verb} in checkpoint {record.id}" + _change(operator, was, is_now, verb)
    put = "Set" if is_now else "Put"
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


def _other_layout(operator: str, kind: str, where: str, now: int, job: str) -> IncompatibleError:
    """Another version of Penstock wrote the store."""
    which = f"{where}, which another version of Penstock wrote. This version reads layout {now}"
    if kind == "aggregate":
        return IncompatibleError(
            f"the totals of operator `{operator}` are {which}. Start the job with that version. Or drop the totals, "
            f"and keep all other state: {argument('reset_operators', [operator])}. They begin at 0 again"
        )
    verb, it = _grammar(kind)
    drain, reset = _ways_on(operator, it, job)
    return IncompatibleError(
        f"the {kind} of operator `{operator}` {verb} {which}: what waits in {it} would be read wrongly. Start the "
        f"application, as it was, with that version, and {drain} this version. {reset}"
    )


def _grammar(kind: str) -> tuple[str, str]:
    """The verb and the pronoun for what an operator's store has."""
    return ("are", "them") if kind == "timers" else ("is", "it")


def _ways_on(operator: str, it: str, job: str) -> tuple[str, str]:
    """The way to drain what waits in an operator's store, as the beginning of a sentence, and the way to drop it."""
    drain = (
        f"drain {it} alone with `penstock drain {job} --operator {operator} --wait`, or all operators with "
        f"`penstock drain {job} --wait`: what waits fires, and the next start may be of"
    )
    return drain, f"Or drop what waits in {it}, and keep all other state: {argument('reset_operators', [operator])}"


def _change(operator: str, was: str, now: str, verb: str) -> str:
    """The change of an operator's definition, as the end of a sentence. `now` is empty if there is no such operator."""
    if not now:
        renamed = f'(if it has another id now, declare it with renamed_from="{operator}")'
        return f" as `{was}` and {verb} no longer in the application {renamed}"
    if changes := _difference(was, now):
        return f", but {verb} defined in another way now: {changes}"
    return f" as `{was}` and {verb} `{now}` now"


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
