"""State variables, timers and time to live against plain dicts, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType

from penstock.spark.processor import codec
from tests.support.oracles.processors import OneTask, spec_of
from tests.support.tools.profiles import examples

ROWS = StructType().add("key", StringType()).add("ask", StringType()).add("value", LongType())
OUT = StructType().add("key", StringType()).add("what", StringType())
VALUE = StructType().add("n", LongType()).add("s", StringType())
NAME = StructType().add("k", LongType())
TTL_MS = 100


class Asked(StatefulProcessor):
    """Does what each row asks for, and says what it found."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", VALUE, self._ttl_ms)
        self.list = handle.getListState("list", VALUE, self._ttl_ms)
        self.map = handle.getMapState("map", NAME, VALUE, self._ttl_ms)
        assert isinstance(self.list, ListState)
        assert isinstance(self.map, MapState)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            found = getattr(self, row.ask)(row.value, timerValues)
            yield Row(key=key[0], what=repr(found))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        yield Row(key=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()}")

    def update(self, n: int, times: Any) -> None:
        self.value.update((n, "x" * (n % 7)))

    def clear(self, n: int, times: Any) -> None:
        (self.value, self.list, self.map)[n % 3].clear()

    def put(self, n: int, times: Any) -> None:
        self.list.put([(each, None) for each in range(n + 1)])

    def append(self, n: int, times: Any) -> None:
        self.list.appendValue((n, "y" * 20))

    def extend(self, n: int, times: Any) -> None:
        self.list.appendList([(n, "z"), (None, None)])

    def put_entry(self, n: int, times: Any) -> None:
        self.map.updateValue((n % 5,), (n, "m"))

    def remove_entry(self, n: int, times: Any) -> None:
        self.map.removeKey((n % 5,))

    def register(self, n: int, times: Any) -> None:
        self.handle.registerTimer(times.getCurrentProcessingTimeInMs() + n)

    def unregister(self, n: int, times: Any) -> None:
        self.handle.deleteTimer(times.getCurrentProcessingTimeInMs() + n)

    def show(self, n: int, times: Any) -> Any:
        assert self.value.exists() == (self.value.get() is not None)
        assert self.list.exists() == bool(list(self.list.get()))
        assert self.map.exists() == bool(list(self.map.keys()))
        assert self.map.containsKey((n % 5,)) == (self.map.getValue((n % 5,)) is not None)
        entries = sorted(self.map.iterator())
        assert sorted(self.map.keys()) == [key for key, _ in entries]
        assert sorted(self.map.values()) == sorted(value for _, value in entries)
        return self.value.get(), list(self.list.get()), entries, list(self.handle.listTimers())

    def close(self) -> None:
        pass


class Model:
    """The values of a key, each with the time at which it expires."""

    def __init__(self) -> None:
        self.value: tuple[Any, float] | None = None
        self.list: list[tuple[Any, float]] = []
        self.map: dict[int, tuple[Any, float]] = {}
        self.timers: set[int] = set()

    def ask(self, what: str, n: int, now: int, ttl: float) -> str:
        if what == "show":
            return repr(self.show(now))
        getattr(self, what)(n, now, now + ttl)
        return "None"

    def show(self, now: int) -> Any:
        value = self.value[0] if self.value is not None and self.value[1] > now else None
        entries = sorted(((k,), v) for k, (v, until) in self.map.items() if until > now)
        return value, [v for v, until in self.list if until > now], entries, sorted(self.timers)

    def update(self, n: int, now: int, until: float) -> None:
        self.value = (n, "x" * (n % 7)), until

    def clear(self, n: int, now: int, until: float) -> None:
        if n % 3 == 0:
            self.value = None
        else:
            (self.list, self.map)[n % 3 - 1].clear()

    def put(self, n: int, now: int, until: float) -> None:
        self.list = [((each, None), until) for each in range(n + 1)]

    def append(self, n: int, now: int, until: float) -> None:
        self.list.append(((n, "y" * 20), until))

    def extend(self, n: int, now: int, until: float) -> None:
        self.list += [((n, "z"), until), ((None, None), until)]

    def put_entry(self, n: int, now: int, until: float) -> None:
        self.map[n % 5] = (n, "m"), until

    def remove_entry(self, n: int, now: int, until: float) -> None:
        self.map.pop(n % 5, None)

    def register(self, n: int, now: int, until: float) -> None:
        self.timers.add(now + n)

    def unregister(self, n: int, now: int, until: float) -> None:
        self.timers.discard(now + n)


ASKS = [name for name in vars(Asked) if not name.startswith("_") and name[:6] not in ("init", "handle", "close")]


class StateAgainstDicts(RuleBasedStateMachine):
    """Batches of random calls for random keys, a new process between some of them."""

    ttl_ms: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.task = OneTask(spec_of(Asked(self.ttl_ms), ["key"], ROWS, OUT, "ProcessingTime"))
        self.models: dict[str, Model] = {}
        self.now = 1_000

    @rule(
        asks=st.lists(
            st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from(ASKS), st.integers(0, 60)), max_size=12
        ),
        passed=st.integers(0, 80),
    )
    def batch(self, asks: list[tuple[str, str, int]], passed: int) -> None:
        self.now += passed
        found = self.task.batch([{"key": k, "ask": a, "value": n} for k, a, n in asks], self.now)
        expected = []
        for key in dict.fromkeys(key for key, _, _ in asks):
            model = self.models.setdefault(key, Model())
            ttl = float("inf") if self.ttl_ms is None else self.ttl_ms
            expected += [(key, model.ask(what, n, self.now, ttl)) for k, what, n in asks if k == key]
        fired = sorted((t, key) for key, model in self.models.items() for t in model.timers if t <= self.now)
        expected += [(key, f"timer {t}") for t, key in fired]
        for t, key in fired:
            self.models[key].timers.remove(t)
        rows = [(row["key"], row["what"]) for row in found]
        split = len(rows) - len(fired)
        assert rows[:split] == expected[:split]
        assert sorted(rows[split:]) == sorted(expected[split:])
        assert [row[1] for row in rows[split:]] == [row[1] for row in expected[split:]], "in the order of time"

    @rule()
    def restart(self) -> None:
        self.task.restart()

    @invariant()
    def the_oldest_timer_is_known(self) -> None:
        times = [t for model in self.models.values() for t in model.timers]
        assert self.task.next_due() == (None, min(times, default=None))

    @precondition(lambda self: self.ttl_ms is None)
    @rule()
    def nothing_is_left_of_empty_state(self) -> None:
        if not any(model.list for model in self.models.values()):
            assert self.task.state("list") == {}
        if not any(model.timers for model in self.models.values()):
            assert self.task.state("processor.timers") == {}


class ExpiringStateAgainstDicts(StateAgainstDicts):
    """The same with a time to live."""

    ttl_ms = TTL_MS


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PIECE_BYTES", 60)


TestState = StateAgainstDicts.TestCase
TestState.settings = examples(0.4)
TestExpiringState = ExpiringStateAgainstDicts.TestCase
TestExpiringState.settings = examples(0.4)


class Wrong(StatefulProcessor):
    """Does something in `init`, or for its rows, that cannot be done."""

    def __init__(self, step: str) -> None:
        self.step = step

    def init(self, handle: Any) -> None:
        self.handle = handle
        if self.step == "ttl":
            handle.getValueState("v", VALUE, 1_000)
        elif self.step == "ttl 0":
            handle.getValueState("v", VALUE, 0)
        else:
            self.value = handle.getValueState("v", VALUE)
            self.handle_list = handle.getListState("l", VALUE)
        if self.step == "twice":
            handle.getValueState("v", VALUE)
        if self.step == "timer":
            handle.registerTimer(5)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        if self.step == "late":
            self.handle.getListState("w", VALUE)
        if self.step.startswith("empty"):
            some = self.handle_list
            some.put([]) if self.step == "empty put" else some.appendList([])
        self.handle.registerTimer(5)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("step", "mode", "said"),
    [
        ("ttl", "None", "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL"),
        ("ttl", "EventTime", "Cannot use TTL for state=v"),
        ("ttl 0", "ProcessingTime", "TTL duration must be greater than zero"),
        ("twice", "None", "already"),
        ("timer", "ProcessingTime", "invalid handle state=PRE_INIT"),
    ],
)
def test_what_init_cannot_do_is_refused_on_the_driver(step: str, mode: str, said: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=said):
        spec_of(Wrong(step), ["key"], ROWS, OUT, mode)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("late", "operation=get_list_state with invalid handle state"),
        ("rows", "timeMode=None"),
        ("empty put", "EMPTY_LIST_VALUE"),
        ("empty append", "EMPTY_LIST_VALUE"),
    ],
)
def test_what_rows_cannot_do_is_refused(step: str, said: str) -> None:
    task = OneTask(spec_of(Wrong(step), ["key"], ROWS, OUT))
    with pytest.raises(Exception, match="handleInputRows, key") as raised:
        task.batch([{"key": "a", "ask": "x", "value": 1}])
    assert said in str(raised.value.__cause__)
