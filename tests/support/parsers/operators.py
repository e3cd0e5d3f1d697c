"""Entries of the stores of operators: keys and values, of which any may be damaged. What cannot be read is a failure of
that operator, whatever the error."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

import penstock as ps
from penstock.batch.batch import END_OF_TIME
from penstock.graph.event_time import join_of
from penstock.graph.stores import StoreSpec
from penstock.runtime.joins import EveryRow, NewestRow, sides_of
from penstock.runtime.order import WaitingMessage, pack, unpack
from penstock.runtime.timers import Timers, key_and_name, place_of
from penstock.runtime.windows.cells import Cells, WindowSlot
from penstock.runtime.windows.contents import content_of
from penstock.spark.processor.codec import PIECE_BYTES, StoredLists
from penstock.state.engines.memory import MemoryEngine
from penstock.state.stores.serdes import SerdeStore
from penstock.state.stores.timed_entries import META, engine_key, header, index_key, live_view, meta_bytes
from tests.support.parsers.parser import Parser

Entry = tuple[bytes, bytes]


def new_store(entries: Iterable[Entry] = ()) -> SerdeStore:
    store = SerdeStore(StoreSpec("s", ps.Bytes(), ps.Bytes()), MemoryEngine(), 100)
    store.begin()
    store.put_all(dict(entries))
    return store


def entries_of(store: SerdeStore) -> bytes:
    return msgspec.msgpack.encode(list(store.all()))


def of_entries(use: Callable[[SerdeStore], object], fill: Callable[[SerdeStore], object]) -> Parser:
    def read(data: bytes) -> None:
        with suppress(msgspec.MsgspecError):
            entries = msgspec.msgpack.decode(data, type=list[Entry])
            use(new_store(entries))

    store = new_store()
    fill(store)
    return Parser(read, [entries_of(store)], Exception)


WINDOWS = [
    ps.Windows.tumbling(10, fold=(0, lambda total, n: total + n)),
    ps.Windows.tumbling(10, aggregates={"n": ps.Count(), "mean": ps.Mean(lambda n: n)}),
    ps.Windows.tumbling(10),
]


def fill_windows(store: SerdeStore, window: Any) -> None:
    content = content_of(window, ps.Json())
    cells = Cells(store, content, ps.String())
    for key in (b"\x01k", b"\x00"):
        cell = cells.new(WindowSlot(10, 0, key), complete=False)
        cell.content, cell.messages = content.add(cell.content, 3, 5), 1
        cells.save(cell, 20)
        cells.save_sessions(key, [cell])


def use_windows(store: SerdeStore, window: Any) -> None:
    cells = Cells(store, content_of(window, ps.Json()), ps.String())
    for found in (cells.complete_by(END_OF_TIME), cells.kept_until(END_OF_TIME), cells.triggered_by(END_OF_TIME)):
        for cell in found:
            cells.whole(cell)
    cells.sessions(b"\x01k")


SIDES = sides_of(join_of(10, "outer", "all", None))


def fill_join(store: SerdeStore, kept: Callable[..., EveryRow | NewestRow]) -> None:
    rows = kept(store, SIDES)
    for time_ms in range(0, 30, 3):
        rows.take(SIDES[time_ms % 2], b"k", (time_ms, b"v" * 600))
        rows.save()


def use_join(store: SerdeStore, kept: Callable[..., EveryRow | NewestRow]) -> None:
    rows = kept(store, SIDES)
    for side in SIDES:
        for time_ms in (0, 21):
            rows.take(side, b"k", (time_ms, b"v"))
    with suppress(ValueError):
        rows.at(SIDES[0], b"k", 0)


def fill_timers(store: SerdeStore) -> None:
    for key in (b"a\0b", None):
        Timers(store).set("event", place_of(key, "name"), 5)


def use_timers(store: SerdeStore) -> None:
    for timer in Timers(store).due("event", 10, live=False):
        key_and_name(timer.place)
    Timers(store).oldest("processing")


def fill_expiring(store: SerdeStore) -> None:
    data = header(5_000, 3) + b"value"
    store.put_all({META: meta_bytes(None), engine_key(b"k"): data, index_key(data, b"k"): b""})


def use_expiring(store: SerdeStore) -> None:
    view = live_view(store.overlay, 4_000)
    for key, _ in view.scan(None, None):
        view.get(key)


def fill_lists(store: SerdeStore, ttl_ms: int | None) -> None:
    StoredLists(store, ttl_ms).put(b"k", [b"element", b"x" * PIECE_BYTES, b""])


def use_lists(store: SerdeStore, ttl_ms: int | None) -> None:
    lists = StoredLists(store, ttl_ms)
    for key, _ in list(store.all()):
        with suppress(Exception):
            list(lists.get(key))
        with suppress(Exception):
            lists.append(key, [b"more"])
        lists.put(key, [])


def sketch_of(aggregate: Any) -> bytes:
    state = aggregate.add(aggregate.one(7, 0), 8, 1)
    return base64.b64decode(aggregate.to_json(state))


def use_sketch(aggregate: Any, data: bytes) -> object:
    state = aggregate.from_json(data.decode())
    return aggregate.result(aggregate.merge(aggregate.add(state, 9, 3), aggregate.one(7, 0)))


WAITING = WaitingMessage(1, "local.s", b"headers", b"value")
SKETCHES = [ps.ApproxDistinct(lambda x: x), ps.ApproxQuantiles(lambda x: x, [0.5])]
STORES = {
    "message that waits for its turn": Parser(unpack, [pack(WAITING)], Exception, again=pack, kind=WaitingMessage),
    **{
        f"state of {type(each).__name__}": Parser(
            partial(use_sketch, each), [sketch_of(each)], Exception, wrap=base64.b64encode
        )
        for each in SKETCHES
    },
    **{
        f"list of a processor, {ttl_ms}": of_entries(
            partial(use_lists, ttl_ms=ttl_ms), partial(fill_lists, ttl_ms=ttl_ms)
        )
        for ttl_ms in (None, 5)
    },
    **{
        f"window {number}": of_entries(partial(use_windows, window=window), partial(fill_windows, window=window))
        for number, window in enumerate(WINDOWS)
    },
    "join, all": of_entries(partial(use_join, kept=EveryRow), partial(fill_join, kept=EveryRow)),
    "join, newest": of_entries(partial(use_join, kept=NewestRow), partial(fill_join, kept=NewestRow)),
    "timers": of_entries(use_timers, fill_timers),
    "time to live": of_entries(use_expiring, fill_expiring),
}
