"""The metrics that go with beats: every fourth beat has them, fewer if they take long to collect."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.container.process import handlers
from penstock.host.log_lines import PassedOn
from penstock.metrics.snapshot import Snapshot
from penstock.wire.protocol import Beat, Identity, NoArguments


@dataclass
class NeverClosed:
    def wait(self, timeout_s: float) -> bool:
        return False


@dataclass
class CountingContainer:
    """A container whose metrics take `cpu_s` to collect."""

    cpu_s: float
    now_s: float = 0.0
    looks: list[int] = field(default_factory=list)
    beats: int = 0
    audience: Any = field(default_factory=nullcontext)
    closed: NeverClosed = field(default_factory=NeverClosed)
    passed_on: PassedOn = field(default_factory=PassedOn)

    def check_incarnation(self, identity: Identity) -> None: ...

    def beat(self, resident_bytes: int) -> Beat:
        self.beats += 1
        return Beat("0", "a", resident_bytes, 0, 0)

    def metrics(self) -> Snapshot:
        self.looks.append(self.beats)
        self.now_s += self.cpu_s
        return Snapshot()


@pytest.mark.parametrize(
    ("cpu_s", "looks"),
    [
        pytest.param(0.001, [0, 4, 8, 12, 16, 20, 24], id="few stores"),
        pytest.param(0.25, [0, 10, 20], id="hundreds of stores: 0.25 s every 10 beats, which is a twentieth"),
    ],
)
def test_collecting_metrics_takes_a_bounded_share_of_a_core(
    cpu_s: float, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    container: Any = CountingContainer(cpu_s)
    monkeypatch.setattr("time.thread_time", lambda: container.now_s)
    list(itertools.islice(handlers._beat(container, Identity("a", 1), NoArguments()), 25))
    assert container.looks == looks
