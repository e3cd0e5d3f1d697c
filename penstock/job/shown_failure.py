"""The last words of a run that failed: one object in the job's folder, for commands."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import msgspec
import orjson

from penstock.documents import Count, decode_format, decoding
from penstock.errors import NotFoundError, PenstockError, UserCodeError
from penstock.job.lease import Lease
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

logger = logging.getLogger(__name__)
FORMAT = 1
_LONGEST = 4_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run ended."""

    since_ms: int | None
    """When it ended, in epoch milliseconds; of a driver that is gone, its last sign of life, None if that is not
    known."""
    error: str
    """The error's message, without its traceback."""
    place: str | None = None
    """The message, timer or start at which the application failed, in words; None if something else did."""

    @classmethod
    def of(cls, error: BaseException, now_ms: int) -> Failure:
        """What to say of an error that ends a run now."""
        if isinstance(error, UserCodeError):
            return cls(now_ms, _written(error.failed.reason), _written(error.failed.place))
        name = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
        return cls(now_ms, _written(f"{name}{error}"))


def _written(text: str) -> str:
    """The text as UTF-8 can hold it, cut to a sensible length: a file name in a message may have lone surrogates."""
    return text[:_LONGEST].encode(errors="backslashreplace").decode()


class _Written(msgspec.Struct):
    epoch: Count
    failure: Failure


class ShownFailure:
    """The object. Only the newest epoch counts: the next claim of the job makes it a thing of the past, and the words
    of a driver that was replaced neither replace nor pass for those of the newer run."""

    def __init__(self, objects: ObjectStore, paths: JobPaths) -> None:
        """
        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
        """
        self._objects = objects
        self._key = paths.metadata("failure", "last-run")

    def put(self, epoch: int, failure: Failure) -> None:
        """Show why the run failed, unless a later epoch has failed as well. Raises RetryableError."""
        data = orjson.dumps({"format": FORMAT, "epoch": epoch, "failure": msgspec.to_builtins(failure)})
        for _ in range(_TRIES):
            found, tag = self._read()
            if found is not None and found.epoch > epoch:
                return
            if self._objects.put_if_match(self._key, data, tag):
                return

    def get(self, epoch: int) -> Failure | None:
        """Why the run with this epoch failed; None if it did not say that it did.

        Raises:
            CorruptError: it cannot be read.
            IncompatibleError: a newer Penstock wrote it.
            RetryableError: the object store failed.
        """
        found, _ = self._read()
        return found.failure if found is not None and found.epoch == epoch else None

    def _read(self) -> tuple[_Written | None, str | None]:
        try:
            data, tag = self._objects.get_with_tag(self._key)
        except NotFoundError:
            return None, None
        what = f"`{self._key}` does not hold why a run failed. Delete it: nothing depends on it. The cause"
        with decoding(what):
            return decode_format(_Written, data, what, f"`{self._key}`", FORMAT), tag


class LastWords:
    """Writes why a run failed, while its driver still holds the lease. An exit of an ExitStack: see `contextlib`.

    Nothing depends on the words. If the process dies before they are written, the lease says that it is gone.
    """

    def __init__(
        self, shown: ShownFailure, lease: Lease, epoch: int, *, stops: type[Exception] | tuple[()] = ()
    ) -> None:
        """
        Args:
            shown: the object that holds the words.
            lease: the lease of the run.
            epoch: what the log's claim for the run says.
            stops: the error that says that somebody stopped the run: it is no failure.
        """
        self._shown = shown
        self._lease = lease
        self._stops = stops
        self.epoch: Callable[[], int] = lambda: epoch
        """The epoch at the end: a run opens new ones."""

    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Show the error that passes, if one does."""
        if error is not None:
            self.say(error)

    def say(self, error: BaseException) -> None:
        """Show the error, if it is a failure: Ctrl-C is none. A driver that has lost its lease says nothing: the job is
        another's, or its folder was deleted."""
        if not isinstance(error, Exception) or isinstance(error, self._stops) or self._lease.lost is not None:
            return
        try:
            self._shown.put(self.epoch(), Failure.of(error, time.time_ns() // 1_000_000))
        except Exception as failed:  # whatever it is must not hide why the run failed
            logger.warning(
                "`penstock status` will not say why this run failed, because that was not written: %s", failed
            )
