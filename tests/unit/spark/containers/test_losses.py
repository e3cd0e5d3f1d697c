"""The two losses of a container: silence, and code of the application that does not return."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from penstock.config.load import load_config
from penstock.spark.containers.losses import LossWatch

DEADLINE_S = 60.0


@dataclass
class Client:
    """As much of a client as a watch looks at."""

    address: Any = field(default_factory=lambda: SimpleNamespace(container="7-0"))
    last_beat_at: float = field(default_factory=time.monotonic)
    last_beat: Any = None
    lost: str | None = None
    is_here: bool = True

    def death(self) -> None:
        return None


def watch(client: Client, **config: int) -> LossWatch:
    overrides = {"job.name": "j", **{key.replace("_", "."): value for key, value in config.items()}}
    settings = load_config(overrides=overrides, environ={}).container
    return LossWatch(cast("Any", None), settings, lambda: [cast("Any", client)])


def test_a_container_that_is_silent_for_too_long_is_lost() -> None:
    client, noticed = Client(), threading.Event()
    losses = watch(client, container_lost_ms=1000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert losses.lost.is_set()
    assert losses.loss("nothing").startswith("container 7-0: silent for ")


def test_a_container_whose_code_does_not_return_is_lost_though_it_beats() -> None:
    client, noticed = Client(last_beat=SimpleNamespace(stalled_ms=5000, overdue="")), threading.Event()
    losses = watch(client, container_attempt_timeout_ms=4000, container_lost_ms=600_000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert "processing one message for 5000 ms, container.attempt.timeout.ms is 4000" in str(client.lost)


def test_what_takes_longer_than_it_may_ends_the_batch() -> None:
    client, noticed = (
        Client(last_beat=SimpleNamespace(stalled_ms=0, overdue="operator `last` has taken")),
        threading.Event(),
    )
    losses = watch(client, container_lost_ms=600_000)
    losses.start(noticed.set)
    assert noticed.wait(DEADLINE_S)
    losses.stop()
    assert losses.overdue == client.lost == "operator `last` has taken"
    assert not losses.lost.is_set(), "the run does not go on elsewhere"


def test_a_container_that_ends_after_the_run_is_not_lost() -> None:
    client = Client()
    losses = watch(client)
    losses.stop()
    losses.lose(cast("Any", client))
    assert not losses.lost.is_set()
    assert losses.loss("nothing") == "nothing"
