"""The stores that a job only reads, and what fills them: one object in the job's folder, for commands."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
import orjson

from penstock.api.state.side_inputs import PushedTable, SideInputs
from penstock.api.state.store import StoreSpec
from penstock.documents import decode_format, decoding
from penstock.errors import NotFoundError
from penstock.job.paths import JobPaths
from penstock.job.shown import show
from penstock.objects.store import ObjectStore
from penstock.wording import listed

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SideStoreFacts:
    """A store that the job only reads, and what fills it: side inputs or a pushed table.

    Example:
        >>> from penstock.side.shown import SideStoreFacts
        >>> str(SideStoreFacts("planes", side_inputs=("local.planes",), processor="Seats", broadcast=True))
        'side input `local.planes`, through `Seats`; every task has all of it'
    """

    store: str
    side_inputs: tuple[str, ...] = ()
    """The streams, `system.stream`; none of a pushed table."""
    processor: str = ""
    """The name of the processor of the messages; empty if each message is an entry."""
    pushed: str = ""
    """The path of the pushed table; empty of side inputs."""
    broadcast: bool = False
    """Whether every task has everything."""

    @classmethod
    def of(cls, spec: StoreSpec) -> SideStoreFacts:
        """What fills a store from the outside."""
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
        """Why it is no part of checkpoints, and where to look for it."""
        if self.pushed:
            look = "`penstock table versions` lists its versions"
        else:
            look = f"`penstock stream tail {self.side_inputs[0]}` shows what fills it"
        return f"the job only reads store `{self.store}` ({self}), so it is no part of checkpoints: {look}"

    def note(self, copied: Collection[str]) -> str:
        """What a list of what checkpoints have says of it. `copied`: the stores that commits made copies of."""
        if self.store not in copied:
            return self.why_not_kept
        return (
            f"the job only reads store `{self.store}` ({self}): a host that does not have it begins with the copy that "
            "the last commit made, and reads what came since"
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    stores: tuple[SideStoreFacts, ...]


class ShownSideStores:
    """The object, which each run replaces when it starts, and deletes if it has no such stores."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._key = paths.metadata("side-stores", "last-run")

    def put(self, stores: tuple[SideStoreFacts, ...]) -> None:
        """Replace what is shown. If another process does so at the same time, one of both is shown. Raises
        RetryableError."""
        if not stores:
            self._objects.delete(self._key)
            return
        shown = {"format": FORMAT, **msgspec.to_builtins(_Shown(stores))}
        show(self._objects, self._key, orjson.dumps(shown))

    def get(self) -> tuple[SideStoreFacts, ...]:
        """Those of the last run.

        Raises:
            CorruptError: they cannot be read.
            IncompatibleError: a newer Penstock wrote them.
            RetryableError: the object store failed.
        """
        what = f"`{self._key}` does not hold what fills stores. Delete it, and the next run writes it. The cause"
        try:
            data = self._objects.get(self._key)
        except NotFoundError:
            return ()
        with decoding(what):
            return decode_format(_Shown, data, what, f"`{self._key}`", FORMAT).stores
