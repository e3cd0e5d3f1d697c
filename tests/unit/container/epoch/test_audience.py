"""The listeners to a container's beats: nobody is missed before somebody was there."""

from __future__ import annotations

from contextlib import closing

from penstock.container.epoch.container import Container
from penstock.container.process.handlers import serve
from penstock.testing import SettableClock
from penstock.wire.calls import BEAT
from penstock.wire.protocol import Identity, NoArguments


def test_a_container_knows_how_long_nobody_has_listened() -> None:
    clock = SettableClock()
    container = Container("c", "00ff", clock)
    clock.advance(60)
    assert container.audience.absent_s == 0.0  # nobody has listened yet

    body = BEAT.encode(Identity("00ff", -1), NoArguments())
    with closing(serve(BEAT, container, body)) as first:
        next(first)
        clock.advance(60)
        assert container.audience.absent_s == 0.0
        with closing(serve(BEAT, container, body)) as second:  # over another connection
            next(second)
            first.close()
            clock.advance(60)
            assert container.audience.absent_s == 0.0
    clock.advance(20)
    assert container.audience.absent_s == 20.0
