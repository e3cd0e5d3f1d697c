"""The part of a wing in a container, in one epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from penstock.batch.batch import Batch
from penstock.checkpoint.record import CheckpointId
from penstock.container.shared import EpochResources, Service
from penstock.runtime.stage.task_instance import KeptOutput
from penstock.state.stores.task_store import SideView
from penstock.wing import wings
from penstock.wire.protocol import OpenEpoch

Q = TypeVar("Q")
A = TypeVar("A")
Answers: TypeAlias = Callable[[Any], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class EpochContext:
    """An epoch as the parts of wings get it."""

    resources: EpochResources
    request: OpenEpoch
    moves_wait: Callable[[], str]
    """See `ContainerPart.moves_wait`, of all parts together."""


class CopiedStore(Protocol):
    """A store of a task that no checkpoint needs, and that commits back up as a copy."""

    def take_change(self) -> bool:
        """True if the store has changed since the last call."""
        ...

    def copy_to(self, directory: Path) -> None:
        """Copy the content of one moment into a new directory."""
        ...


class ContainerPart(Service):
    """The part of a wing in a container, from the opening of an epoch until the container leaves it. By default it does
    nothing. It is made before the tasks are restored, and started as a service once they are."""

    wing: str = ""
    """The name of the wing, which is set once the part is made."""
    backup_backend: str = ""
    """The backend of the stores that are `copied`."""

    def __init__(self, epoch: EpochContext) -> None:
        self.resources = epoch.resources

    def answers(self) -> Mapping[str, Answers]:
        """By the name of a call of the wing: what answers its request, with one answer or several. Between two answers
        the container looks whether it is still in the epoch. Called by Flight's threads."""
        return {}

    # Stores that attempts read.

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """See `SideStores`: the stores of this part as an attempt reads them."""
        return {}

    def release(self, task: int, batch: int) -> None:
        """See `SideStores`."""

    # Commits.

    def kept_output(self, task: int) -> KeptOutput | None:
        """Output of a task that is kept to the next commit, in place of being written. Called once for each task, by
        several threads; None: nothing is kept."""
        return None

    def snapshot(self) -> None:
        """The synchronous part of a commit: between two batches, once all tasks have taken their changes."""

    def uploads(self, checkpoint_id: CheckpointId) -> Sequence[Callable[[], object]]:
        """The calls that make the last snapshot durable, beside the uploads of stores. Each is made by another thread.
        Asked for again after a RetryableError, this gives what is left."""
        return ()

    def uploaded(self) -> object:
        """A value for the driver about the last snapshot, which is durable; None if there is nothing to say."""
        return None

    def forget(self) -> None:
        """No upload runs or follows: forget what the last snapshot took."""

    def copied(self, task: int) -> Mapping[str, CopiedStore]:
        """More stores of a task, which commits back up with `backup_backend`. Always the same objects."""
        return {}

    # What the driver hears.

    def state(self) -> object:
        """The state that each heartbeat tells the driver; None if there is nothing to say. Called by any thread."""
        return None

    def ready(self) -> Collection[int]:
        """The tasks of other containers that this part could go on with at once. Called by any thread."""
        return ()

    def moves_wait(self) -> str:
        """The reason why a task that moved to this container now would wait, in words; empty if there is none. Called
        by any thread."""
        return ""


def once(method: Callable[[Q], A]) -> Callable[[Q], Iterator[A]]:
    """A method as what answers a call, with one answer."""

    def answers(request: Q) -> Iterator[A]:
        yield method(request)

    return answers


P = TypeVar("P", bound=ContainerPart)


class ContainerParts:
    """The parts of all wings in one epoch of a container."""

    def __init__(self, resources: EpochResources, request: OpenEpoch) -> None:
        context = EpochContext(resources, request, self.moves_wait)
        self._all = [wing.part(ContainerPart, wing.container, context) for wing in wings() if wing.container]
        self._of_call = {call.name: wing.name for wing in wings() for call in wing.calls}

    def __iter__(self) -> Iterator[ContainerPart]:
        return iter(self._all)

    def of(self, kind: type[P]) -> P:
        """A wing's part of this class."""
        return next(part for part in self._all if isinstance(part, kind))

    def answer(self, call: str, request: object) -> Iterator[Any]:
        """Answer a call of a wing. Raises what its part raises."""
        (part,) = (part for part in self._all if part.wing == self._of_call[call])
        return part.answers()[call](request)

    def copied(self, task: int) -> Mapping[str, CopiedStore]:
        """The stores of a task that commits copy for wings."""
        return {store: found for part in self._all for store, found in part.copied(task).items()}

    def backends_of_copied(self, task: int) -> Mapping[str, str]:
        """Store → the backend of its copies."""
        return {store: part.backup_backend for part in self._all for store in part.copied(task)}

    def kept_output(self, task: int) -> KeptOutput | None:
        """See `ContainerPart.kept_output`: the first one."""
        return next((kept for part in self._all if (kept := part.kept_output(task)) is not None), None)

    def snapshot(self) -> None:
        """See `ContainerPart.snapshot`."""
        for part in self._all:
            part.snapshot()

    def uploads(self, checkpoint_id: CheckpointId) -> list[Callable[[], object]]:
        """See `ContainerPart.uploads`: those of all parts."""
        return [each for part in self._all for each in part.uploads(checkpoint_id)]

    def forget(self) -> None:
        """See `ContainerPart.forget`."""
        for part in self._all:
            part.forget()

    def uploaded(self) -> dict[str, object]:
        """See `ContainerPart.uploaded`, by wing."""
        return {part.wing: found for part in self._all if (found := part.uploaded()) is not None}

    def views(self, task: int, batch: Batch) -> Mapping[str, SideView]:
        """See `SideStores`: those of all parts."""
        return {store: view for part in self._all for store, view in part.views(task, batch).items()}

    def release(self, task: int, batch: int) -> None:
        """See `SideStores`."""
        for part in self._all:
            part.release(task, batch)

    def states(self) -> dict[str, object]:
        """See `ContainerPart.state`, by wing."""
        return {part.wing: state for part in self._all if (state := part.state()) is not None}

    def ready(self) -> tuple[int, ...]:
        """The tasks of other containers that this one could take over at once."""
        return () if self.moves_wait() else tuple(sorted({task for part in self._all for task in part.ready()}))

    def moves_wait(self) -> str:
        """See `ContainerPart.moves_wait`: the first reason."""
        return next(filter(None, (part.moves_wait() for part in self._all)), "")
