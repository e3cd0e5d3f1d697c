"""Side inputs as a wing: stores that a container fills from streams, and attempts read. The failure of a fill is in the
form that the driver gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.errors import KINDS, ContainerLostError, FailedMessage, PenstockError, RetryableError, UserCodeError
from penstock.wing import Wing
from penstock.wire.calls import MINUTE, Call
from penstock.wire.protocol import Request


@dataclass(frozen=True, slots=True)
class SideFailure:
    """The reason why side inputs no longer fill a store."""

    text: str
    kind: str = "PenstockError"
    failed: FailedMessage | None = None
    """The message at which the application's code failed; None if it did not fail."""

    def error(self, named: Callable[[FailedMessage], FailedMessage]) -> PenstockError:
        """The error that the run ends with. `named` adds the name of the message."""
        if self.failed is not None:
            return UserCodeError(named(self.failed))
        kind = KINDS.get(self.kind, PenstockError)
        if issubclass(kind, RetryableError) and kind is not ContainerLostError:
            kind = PenstockError  # it was tried again for long enough
        return kind(self.text)


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
