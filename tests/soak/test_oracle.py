"""The oracle of the soak says what the job does, and its checks find each kind of damage in what the job wrote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import pytest

from penstock.testing import TestRunner
from tests.soak import figures
from tests.soak.job import AUDIT, FIRST_MS, INPUT, PANES, PARTITIONS, STEP_MS, TOTALS, application
from tests.soak.load import KEYS, partition_of
from tests.soak.oracle import (
    Emitted,
    Event,
    Input,
    Line,
    Result,
    broken_at_least_once,
    broken_input,
    broken_once,
    broken_state,
)
from tests.support.tools.fixtures import fixture_of


@dataclass
class Life:
    """The job in a test runner, and its line."""

    runner: TestRunner
    input: Input = field(default_factory=Input)
    expected: Emitted = field(default_factory=Emitted)
    made: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(1)
        self.line = Line(self.input)

    def load(self, count: int) -> None:
        """Events of random keys, and at last one in each partition."""
        keys = [f"k{self.chance.randrange(KEYS)}" for _ in range(count)]
        keys += {partition_of(key): key for key in (f"k{n}" for n in range(KEYS))}.values()
        for key in keys:
            partition, n = partition_of(key), self.chance.randrange(1000)
            value = {"id": self.made, "k": key, "n": n, "t": FIRST_MS + self.made * STEP_MS}
            self.runner.input(f"kafka.{INPUT}", [value], partition=partition)
            own = self.input.events[partition]
            own.append(Event(len(own), self.made, key, n, 0.0))
            self.made += 1
        self.runner.run(batch_messages=self.chance.randrange(1, 50))
        self.runner.commit()

    def forward(self, behind: int) -> None:
        self.expected.add(self.line.forward(self.input.ends, behind))

    def found(self) -> Emitted:
        totals, panes = (self.output(f"kafka.{name}") for name in (TOTALS, PANES))
        return Emitted(Counter(totals), Counter(panes))

    def output(self, stream: str) -> list[Result]:
        return [(message.key, *message.value) for message in self.runner.output(stream)]


@contextmanager
def begun(count: int = 0) -> Iterator[Life]:
    """A life that has so many events behind it."""
    once = {f"streams.kafka.{name}.output.guarantee": "exactly-once" for name in (TOTALS, PANES)}
    with closing(TestRunner(application(), partitions=PARTITIONS, config=once)) as runner:
        life = Life(runner)
        if count:
            life.load(count)
            life.forward(1)
        yield life


life = fixture_of(begun, using=())
lived = fixture_of(begun, 300, using=(), scope="module")
"""One that no test changes."""


def broken(life: Life, found: Emitted) -> list[str]:
    totals, seen = life.runner.store("totals"), life.runner.store("seen")
    return [
        *broken_once("totals", found.totals, life.expected.totals, complete=True),
        *broken_once("panes", found.panes, life.expected.panes, complete=True),
        *broken_at_least_once("audit", life.output(f"local.{AUDIT}"), life.expected.totals),
        *broken_state(life.line, totals, seen, 0.0),
    ]


def test_it_says_what_the_job_does(life: Life) -> None:
    """In any batches, over a crash, and over a drain."""
    life.load(250)
    life.forward(1)
    assert broken(life, life.found()) == []
    life.runner.crash().restore()
    life.load(150)
    life.forward(2)
    assert broken(life, life.found()) == []
    life.runner.drain()
    life.expected.add(life.line.drain(3))
    life.runner.restore()
    assert broken(life, life.found()) == []
    life.load(150)
    life.forward(4)
    assert broken(life, life.found()) == []
    assert len(life.expected.panes) > 20


def test_a_line_that_goes_back_lives_the_same_again(life: Life) -> None:
    """To a checkpoint within a step, to one in front of a drain, and behind messages that were left out."""
    for step in range(3):
        life.load(100)
        life.forward(2 * step + 1)
        if step == 1:
            life.line.drain(2 * step + 2)
    life.load(10)
    life.line.skip(life.input.ends, 8)
    life.load(50)
    rest = life.line.forward(life.input.ends, 9)
    end = dict(life.input.ends)
    for checkpoint in range(1, 10):
        positions = {p: place - 1 for p, place in life.line.places.items()} if checkpoint == 9 else end
        back = life.line.back(checkpoint, positions, None)
        back.forward(end, 9)
        assert (back.places, set(back.last)) == (life.line.places, set(life.line.last))
    back = life.line.back(8, {p: place - 1 for p, place in life.line.places.items()}, None)
    again = back.forward(end, 9)
    assert (back.totals, back.last, back.windows) == (life.line.totals, life.line.last, life.line.windows)
    assert again.totals.items() <= rest.totals.items()


def test_windows_that_were_due_and_had_not_fired_do_so_behind_a_checkpoint_that_is_gone_back_to(life: Life) -> None:
    life.load(300)
    panes = life.line.forward(life.input.ends, 1).panes
    starts = sorted({start for _, start, *_ in panes})
    back = life.line.back(1, life.input.ends, starts[1])
    assert back.forward(life.input.ends, 2).panes == Counter({pane: 1 for pane in panes if pane[1] >= starts[1]}), (
        "the first window alone ends with the watermark of the checkpoint"
    )


def lose(found: Counter[Result], key: Result) -> None:
    found[key] -= 1


def double(found: Counter[Result], key: Result) -> None:
    found[key] += 1


def change(found: Counter[Result], key: Result) -> None:
    found[key] -= 1
    found[*key[:3], key[3] + 1] += 1


@pytest.mark.parametrize("damage", [lose, double, change])
@pytest.mark.parametrize("output", [TOTALS, PANES])
def test_one_wrong_record_of_exactly_once_output_is_found(
    lived: Life, output: str, damage: Callable[[Counter[Result], Result], None]
) -> None:
    found = lived.found()
    records = getattr(found, output)
    damage(records, lived.chance.choice(sorted(records)))
    (said, *_) = broken(lived, found)
    assert said.startswith(output)


def test_damage_of_everything_else_is_found(lived: Life) -> None:
    life, right = lived, lived.expected.totals
    audit = life.output(f"local.{AUDIT}")
    assert broken_at_least_once("audit", [*audit, *audit], right) == []
    assert broken_at_least_once("audit", audit[1:], right) != []
    assert broken_at_least_once("audit", [*audit, ("k1", 10**6, 1, 1)], right) != []
    totals, seen = dict(life.runner.store("totals")), dict(life.runner.store("seen"))
    key = next(iter(totals))
    assert broken_state(life.line, {**totals, key: [0, 0]}, seen, 0.0) != []
    assert broken_state(life.line, {k: v for k, v in totals.items() if k != key}, seen, 0.0) != []
    assert broken_state(life.line, totals, {**seen, key: -1}, 0.0) != []
    assert broken_state(life.line, totals, {}, -100.0) != [], "the events were written later than they may have expired"
    assert broken_state(life.line, totals, {}, 100.0) == []
    fates = {0: "committed", 1: "aborted", 2: "unknown", 3: "committed"}
    assert broken_input([0, 3], fates) == broken_input([0, 2, 3], fates) == []
    assert all(broken_input(wrong, fates) for wrong in ([0], [0, 1, 3], [0, 0, 3]))


@pytest.mark.parametrize(
    ("kind", "figure", "each"),
    [
        ("containers", "memory_bytes", 1 << 20),
        ("driver", "open_files", 1),
        ("jvm", "threads", 3),
        ("files", "temporary", 1),
        ("files", "job_root", 3),
        ("files", "log_records", 1),
        ("files", "logged_bytes", 500_000),
        ("files", "changelog_bytes", 1 << 20),
    ],
)
def test_a_leak_is_found(kind: str, figure: str, each: int) -> None:
    """A figure that grows by so much from check to check, a hundred batches apart."""
    steady = {"driver": 900, "jvm": 900, "containers": 900, "files": 900}
    samples = [
        {"batches": 100 * n, "figures": {name: {figure: value + (n * each if name == kind else 0)}
         for name, value in steady.items() if (name == "files") == (kind == "files")}}
        for n in range(200)
    ]  # fmt: skip
    grown = [found.growth.kind for found in figures.table(samples) if found.too_much]
    assert grown == [kind]
