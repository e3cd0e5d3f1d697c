"""Differences in the state of a processor of PySpark since a checkpoint, in words. Pure.

The texts that are compared are made in `penstock.spark.processor.declared`. A value is `value-1(n:bigint)`, a map has
the columns of its keys before a semicolon, a grouping key is `key-1(user:string)`, and timers have the time mode before
the grouping key: `timers-1(eventtime;user:string)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from penstock.base.wording import listed
from penstock.checkpoint.store_layout import StoreLayout

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
