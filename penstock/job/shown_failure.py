"""The last words of a run that failed, on a board for commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from penstock.base.clock import SYSTEM_CLOCK
from penstock.base.documents import Count
from penstock.base.redaction import without_secrets
from penstock.errors import PenstockError, UserCodeError
from penstock.job.board import Board, last_run
from penstock.job.lease import Lease
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

logger = logging.getLogger(__name__)
_LONGEST = 4_000
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a run ended."""

    since_ms: int | None
    """The end of the run in epoch milliseconds. For a driver that is gone, its last sign of life; None if unknown."""
    error: str
    """The error's message, without its traceback."""
    place: str | None = None
    """The message, timer or start at which the application failed, in words; None if something else did."""
    traceback: str | None = None
    """The end of the application's traceback; None if something else failed."""

    @classmethod
    def of(cls, error: BaseException, now_ms: int) -> Failure:
        """The failure of a run that an error ends now."""
        if isinstance(error, UserCodeError):
            failed = error.failed
            traceback = _storable(without_secrets(failed.traceback)[-_LONGEST:])
            return cls(now_ms, _storable(failed.reason), _storable(failed.place), traceback)
        name = "" if isinstance(error, PenstockError) else f"{type(error).__name__}: "
        return cls(now_ms, _storable(f"{name}{error}"))


def _storable(text: str) -> str:
    """The text cut to a sensible length, without secrets, and without the lone surrogates that a file name in a message
    may have."""
    return without_secrets(text)[:_LONGEST].encode(errors="backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class RunFailure:
    """The failure of a start, and the epoch of the log's last claim then: its own, or the one before if it failed
    before it claimed the log; 0 in an empty log."""

    epoch: Count
    failure: Failure
    driver: str = ""
    """The token of the driver's lease; empty if an earlier Penstock wrote the words."""


def failure_board(objects: ObjectStore, paths: JobPaths) -> Board[RunFailure]:
    """The board for the last words of runs. Use `put_failure` and `failure_of`."""
    damage = "does not hold why a run failed. Delete it: nothing depends on it. The cause"
    return Board(objects, last_run(paths, "failure"), RunFailure, damage)


def put_failure(board: Board[RunFailure], words: RunFailure) -> None:
    """Show the failure of a start, unless a later epoch has failed as well: the words of a replaced driver must not
    hide those of the newer run. Raises RetryableError."""
    for _ in range(_TRIES):
        if board.put(words, unless=lambda found: found.epoch > words.epoch):
            return


def failure_of(board: Board[RunFailure], epoch: int, gone: str | None = None) -> Failure | None:
    """The failure of the last start, if it wrote one. The next claim of the job makes it a thing of the past.

    Args:
        board: the board that holds the words.
        epoch: the epoch of the log's last claim; 0 in an empty log.
        gone: the token of a lease whose driver has not given it back. The words of another driver are older.

    Raises:
        As `Board.get`.
    """
    found = board.get()
    if found is None or found.epoch != epoch or (gone is not None and found.driver not in ("", gone)):
        return None
    return found.failure


class LastWords:
    """Writes the failure of a run while its driver still holds the lease. An exit callback for an `ExitStack`.

    Nothing depends on the words. If the process dies before they are written, the lease shows that it is gone. If the
    job root takes nothing any more, they are left on the host, where the lease's token tells whose they are.
    """

    def __init__(
        self,
        board: Board[RunFailure],
        lease: Lease,
        epoch: Callable[[], int],
        *,
        stops: type[Exception] | tuple[()] = (),
        on_host: Callable[[bytes], None] | None = None,
    ) -> None:
        """
        Args:
            board: the board that holds the words.
            lease: the lease of the run.
            epoch: the epoch of the log's last claim, at the end of the run.
            stops: the error of a run that somebody stopped: it is no failure.
            on_host: keeps words that the job root does not take.
        """
        self._board = board
        self._lease = lease
        self._stops = stops
        self._on_host = on_host
        self._epoch = epoch

    def __call__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self.say(error)

    def say(self, error: BaseException) -> None:
        """Show the error, if it is a failure: Ctrl-C is none. A driver that has lost its lease writes nothing, because
        the job is another driver's, or its folder was deleted."""
        if not isinstance(error, Exception) or isinstance(error, self._stops) or self._lease.lost is not None:
            return
        failure = Failure.of(error, SYSTEM_CLOCK.now_ms())
        try:
            words = RunFailure(self._epoch(), failure, self._lease.state.token)
            try:
                put_failure(self._board, words)
            except PenstockError as failed:
                if self._on_host is None:
                    raise
                self._on_host(self._board.encode(words))
                logger.warning(
                    "`penstock status` says why this run failed on this host alone, because the job root took no more "
                    "words: %s",
                    failed,
                )
        except Exception as failed:  # no error here may hide the failure of the run
            logger.warning(
                "`penstock status` will not say why this run failed, because that was not written: %s", failed
            )
