"""Side inputs as a wing: stores that a container fills from streams, and attempts read. The failure of a fill is in
the form that the driver gets. For commands, a board shows the stores that a job only reads, with their sources, and
the metrics how far behind a run has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from penstock.api.side_inputs import PushedTable
from penstock.base.wording import counted, listed
from penstock.errors import KINDS, ContainerLostError, FailedMessage, PenstockError, RetryableError, UserCodeError
from penstock.facts import Column
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.job.board import Board, last_run
from penstock.job.paths import JobPaths
from penstock.metrics.snapshot import GaugeValue, Snapshot
from penstock.objects.store import ObjectStore
from penstock.wing import Wing
from penstock.wire.protocol import MINUTE, Call, Request


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
    container="penstock.side.inputs:SideInputService",
)


_STORE, _LAG = "store.", "side-inputs-lag-"


@dataclass(frozen=True, slots=True)
class SideStoreFacts:
    """A store that the job only reads, and its source: side inputs or a pushed table.

    Example:
        >>> from penstock.side.wing import SideStoreFacts
        >>> str(SideStoreFacts("planes", side_inputs=("local.planes",), processor="Seats", broadcast=True))
        'side input `local.planes`, through `Seats`; every task has all of it'
    """

    store: Annotated[str, Column("store")]
    side_inputs: Annotated[tuple[str, ...], Column("filled by", of=str)] = ()
    """The streams, `system.stream`; none for a pushed table."""
    processor: str = ""
    """The name of the processor of the messages; empty if each message is an entry."""
    pushed: str = ""
    """The path of the pushed table; empty for side inputs."""
    broadcast: bool = False
    """True if every task has everything."""

    @classmethod
    def of(cls, spec: StoreSpec) -> SideStoreFacts:
        side = spec.side
        if isinstance(side, PushedTable):
            return cls(spec.name, pushed=str(side.path), broadcast=side.broadcast)
        if isinstance(side, SideInputs):
            name = getattr(side.processor, "__name__", type(side.processor).__name__) if side.processor else ""
            return cls(spec.name, tuple(str(each.stream) for each in side.streams), name, broadcast=side.broadcast)
        raise AssertionError(f"the job itself writes `{spec.name}`")

    def __str__(self) -> str:
        whole = "; every task has all of it" if self.broadcast else ""
        if self.pushed:
            return f"pushed table `{self.pushed}`{whole}"
        noun = "side input" if len(self.side_inputs) == 1 else "side inputs"
        through = f", through `{self.processor}`" if self.processor else ""
        return f"{noun} {listed([f'`{each}`' for each in self.side_inputs])}{through}{whole}"

    @property
    def why_not_kept(self) -> str:
        """The reason why it is no part of checkpoints, and a command that shows its data, as a sentence."""
        if self.pushed:
            look = "`penstock table versions` lists its versions"
        else:
            look = f"`penstock stream tail {self.side_inputs[0]}` shows what fills it"
        return f"the job only reads store `{self.store}` ({self}), so it is no part of checkpoints: {look}"

    def note(self, copied: Collection[str]) -> str:
        """The note of `checkpoint show` about this store. `copied`: the stores that commits made copies of."""
        if self.store not in copied:
            return self.why_not_kept
        return (
            f"the job only reads store `{self.store}` ({self}): a host that does not have it begins with the copy that "
            "the last commit made, and reads what came since"
        )


@dataclass(frozen=True, slots=True)
class RunSideStores:
    """All side stores of the last run."""

    stores: tuple[SideStoreFacts, ...]


def side_store_board(objects: ObjectStore, paths: JobPaths) -> Board[RunSideStores]:
    """The board that each run replaces when it starts, and removes if it has no side stores."""
    damage = "does not hold what fills stores. Delete it, and the next run writes it. The cause"
    return Board(objects, last_run(paths, "side-stores"), RunSideStores, damage)


def put_side_stores(board: Board[RunSideStores], stores: tuple[SideStoreFacts, ...]) -> None:
    """Show the side stores of a run. Raises RetryableError."""
    if stores:
        board.put(RunSideStores(stores))
    else:
        board.remove()


@dataclass(frozen=True, slots=True)
class BootstrapProgress:
    """The catching up of side inputs, in all containers together."""

    stores: Mapping[str, tuple[int, int]]
    """Store → the messages that were read, and those that are to be read in all."""
    done: int
    total: int
    left_s: float | None = None
    """The estimated rest, in seconds; None while it is not known."""

    def __str__(self) -> str:
        if not self.total:
            return "looking at what the side inputs hold"
        left = "" if self.left_s is None else f", about {self.left_s:,.0f} s left"
        return f"{self.done:,} of {counted(self.total, 'message')}{left}"


@dataclass(frozen=True, slots=True)
class SideInputStatus:
    """One partition of a side input of a store. For a store that every container has, this is the container that is
    furthest behind."""

    store: Annotated[str, Column("store")]
    partition: Annotated[str, Column("partition")]
    """`system.stream.partition`."""
    lag: Annotated[int, Column("lag", right=True, most_first=True)]
    """In offsets."""
    catching_up: Annotated[bool, Column("state", of=lambda each: each.state)]
    """True while the first batch waits for it."""
    failing: bool
    """True while it fails and is tried again; the store keeps its content meanwhile."""

    @property
    def state(self) -> str | None:
        """Its trouble, in words; None without any."""
        if self.failing:
            return "fails"
        return "the first batch waits for it" if self.catching_up else None


def side_inputs_in(metrics: Snapshot) -> tuple[SideInputStatus, ...]:
    """The side inputs of a run, by store and partition."""
    gauges = {key: value.value for key, value in metrics.items() if isinstance(value, GaugeValue)}
    lags: dict[tuple[str, str], int] = {}
    states: dict[tuple[str, str], bool] = {}
    for key, value in gauges.items():
        store = key.group.removeprefix(_STORE)
        if key.group.startswith(_STORE) and key.name.startswith(_LAG):
            place = store, key.name.removeprefix(_LAG)
            lags[place] = max(int(value), lags.get(place, 0))
        elif key.name in {"side-inputs-catching-up", "side-inputs-failing"}:
            states[store, key.name] = states.get((store, key.name), False) or value > 0
    return tuple(
        SideInputStatus(
            store,
            partition,
            lag,
            states.get((store, "side-inputs-catching-up"), False),
            states.get((store, "side-inputs-failing"), False),
        )
        for (store, partition), lag in sorted(lags.items())
    )
