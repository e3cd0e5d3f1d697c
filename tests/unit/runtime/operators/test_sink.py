"""sink: a function called for each message."""

from __future__ import annotations

import pytest

import penstock as ps
from penstock.testing import TestRunner
from tests.support.oracles.tracebacks import frames_of_penstock


def test_it_gets_every_envelope_and_may_send() -> None:
    app = ps.StreamApplication("a")
    app.output("m.out")
    seen = []

    def sink(envelope: ps.IncomingMessageEnvelope, collector: ps.MessageCollector, _: ps.TaskCoordinator) -> None:
        seen.append((str(envelope.ssp), envelope.offset, envelope.value))
        collector.send("out", key="k", value=envelope.value + 1)

    app.input("m.in").sink(sink)
    runner = TestRunner(app, partitions=2).input("m.in", [1, 2, 3]).run()
    assert sorted(seen) == [("m.in.0", 0, 1), ("m.in.0", 1, 3), ("m.in.1", 0, 2)]
    assert sorted(m.value for m in runner.output("m.out")) == [2, 3, 4]


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_value_that_does_not_serialise_is_the_users_error(shuffled: bool) -> None:
    app = ps.StreamApplication("a")
    app.output("m.out")
    stream = app.input("m.in").partition_by(str) if shuffled else app.input("m.in")
    stream.sink(lambda _, collector, __: collector.send("out", value=object()), id="write")
    with pytest.raises(ps.UserCodeError) as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    reason = caught.value.failed.reason
    assert reason.startswith("SerdeError: output `m.out`: the value <object object at ")
    assert "cannot be written by ps.Json(): TypeError: Type is not JSON serializable: object. ps.Json() takes" in reason
    assert caught.value.failed.operator == "write"


def test_an_exception() -> None:
    app = ps.StreamApplication("a")
    app.input("m.in").sink(lambda e, *_: e.value.missing, id="write")
    with pytest.raises(ps.UserCodeError, match=r"AttributeError(.|\n)*`write`") as caught:
        TestRunner(app, partitions=1).input("m.in", [1]).run()
    assert frames_of_penstock(caught.value.failed.traceback) == []
