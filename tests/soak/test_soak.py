"""The smallest soaks: one in which everything holds, and one in which a record is there twice."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.soak.__main__ import main
from tests.soak.driver import of_starts
from tests.soak.events import EVENTS
from tests.soak.job import TOTALS
from tests.soak.soak import Soak
from tests.support.streams.kafka import QUIET, TIMEOUT_S

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def test_the_smallest_soak(capfd: pytest.CaptureFixture[str]) -> None:
    """A driver is killed while some of its processes stand still, and messages are read again."""
    events = ("stopped_and_left", "go_back")
    assert main(["--rounds", "1", "--seed", "4", "--calm", "1", "--events", *events]) == 0, capfd.readouterr()
    said = capfd.readouterr().out
    assert said.splitlines()[-1] == "broken: 0"
    assert "3 starts, 3 checks" in said
    assert "1 go_back, 1 stopped_and_left" in said
    assert of_starts() == []
    assert list(Path(tempfile.gettempdir()).glob("penstock-soak-*")) == []


def test_a_soak_tells_what_is_broken(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def double(soak: Soak) -> str:
        """Write the last result of a key a second time, as a writer that is not fenced would."""
        key, total = next(iter(soak.line.totals.items()))
        producer = Producer(soak.world.cluster.client_options(), logger=QUIET)
        producer.produce(TOTALS, f"[{soak.line.last[key].id}, {total[0]}, {total[1]}]".encode(), key.encode(), 0)
        assert producer.flush(TIMEOUT_S) == 0
        return "a record was doubled"

    monkeypatch.setitem(EVENTS, "double", double)
    assert main(["--rounds", "1", "--seed", "4", "--calm", "1", "--events", "double"]) == 1
    said = capfd.readouterr().out
    assert "BROKEN: BrokenError: totals: not expected, or once too often (1): ('k" in said
    assert said.index("the story of seed 4:") < said.rindex("double: a record was doubled")
    assert "broken: 1" in said
    assert of_starts() == []
