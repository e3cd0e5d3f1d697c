"""Side inputs as a wing: stores that a container fills from streams, and attempts read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.side.failure import SideFailure
from penstock.wing import Wing
from penstock.wire.calls import MINUTE, Call
from penstock.wire.protocol import Request


@dataclass(frozen=True, slots=True)
class Bootstrap(Request):
    """Wait until the side inputs of the tasks have caught up."""


@dataclass(frozen=True, slots=True)
class BootstrapState:
    """Progress of the side inputs."""

    done: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    """Store → messages to read, as a difference of offsets: where offsets have gaps there are fewer messages."""
    failure: SideFailure | None = None


@dataclass(frozen=True, slots=True)
class SideState:
    """Failures of side inputs, in a heartbeat."""

    failure: SideFailure | None = None
    """A permanent one: the run fails with it."""
    troubles: tuple[str, ...] = ()
    """Temporary ones. The stores keep their content meanwhile, and the run continues."""


BOOTSTRAP = Call(
    "bootstrap",
    Bootstrap,
    BootstrapState,
    lambda config, _: config.side_inputs.bootstrap_timeout_ms / 1000 + MINUTE,
)
SIDE_WING = Wing(
    "side",
    calls=(BOOTSTRAP,),
    start="penstock.side.start:SideStart",
    driver="penstock.side.driver:SideDriver",
    container="penstock.side.container.inputs:SideInputService",
)
