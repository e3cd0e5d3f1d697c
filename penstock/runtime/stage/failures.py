"""The failures of an attempt: whose they are, and what becomes of their messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from penstock.errors import FIRED_OFFSET, FailedMessage, SystemAwayError
from penstock.runtime.context import OperatorFailedError
from penstock.runtime.messages.packet import fired_origin
from penstock.runtime.reports import engine_error
from penstock.runtime.stage.instance import StageInstance
from penstock.state.engines.engine import EngineFailedError


class AttemptFailures:
    """The failures of an attempt so far. With a dead-letter stream, a failure of the application is undone, and its
    message buried there; without one it ends the attempt's work. Any other failure ends it in both cases."""

    def __init__(self, instance: StageInstance) -> None:
        self._instance = instance
        self.message: FailedMessage | None = None
        """The message or the firing that the application failed for."""
        self.error: tuple[str, str] | None = None
        """Kind and text of an error that is not the application's."""
        self.dead_letters = 0
        self.first_dead_letter: FailedMessage | None = None
        self.buries = instance.settings.dead_letter
        """There is a dead-letter stream."""

    @property
    def end_work(self) -> bool:
        """True if nothing more is to be processed: the writes so far must not be applied."""
        return self.message is not None or self.error is not None

    def is_applications(self, failure: OperatorFailedError | EngineFailedError) -> TypeGuard[OperatorFailedError]:
        """True if the application failed; False if a store did, or a system is away that it needs. The batch runs again
        then, and no message is a dead letter."""
        if self._lost_store() or isinstance(failure, EngineFailedError):
            return False
        if isinstance(failure.cause, SystemAwayError):
            self.error = (SystemAwayError.__name__, str(failure.cause))
            return False
        return True

    def check_stores(self) -> None:
        """Check the stores once everything is processed. The failure of an engine is found here at the latest: the
        application may have caught the error, or `init` met it."""
        self._lost_store()
        for store in self._instance.stores.values():
            try:
                store.check()
            except Exception as error:
                self.note(OperatorFailedError(f"store {store.name}", error), None)

    def _lost_store(self) -> bool:
        """True if an engine failed: an error that the application then raises is not its failure, nor a dead letter."""
        failures = [store.failure for store in self._instance.stores.values() if store.failure is not None]
        if failures:
            self.error = engine_error(failures[0], self._instance.task)
        return bool(failures)

    def note(self, failure: OperatorFailedError, key: bytes | None) -> None:
        """Note that the application failed for the message at the position."""
        self.message = self.at_position(failure, key)

    def note_without_message(self, failure: OperatorFailedError | EngineFailedError) -> None:
        """Note that something failed for no message or firing."""
        if self.is_applications(failure):
            self.message = self.of_firing(failure, None)

    def at_position(self, failure: OperatorFailedError, key: bytes | None, what: str = "") -> FailedMessage:
        page, row = self._instance.position.page, self._instance.position.row
        return failure.describe(page.ssp(row), page.offsets[row], key, what)

    def of_firing(self, failure: OperatorFailedError, key: bytes | None) -> FailedMessage:
        return failure.describe(self._instance.ssps[fired_origin(self._instance.task)], FIRED_OFFSET, key)

    def bury(self, failed: FailedMessage, key: bytes | None, letter: bytes) -> None:
        """Send a dead letter."""
        self.dead_letters += 1
        self.first_dead_letter = self.first_dead_letter or replace(failed, traceback="")
        self._instance.dead_letter_outlet().push_raw(key, letter)

    def run_undoable(
        self, count: int, run: Callable[[int, int], None], bury: Callable[[OperatorFailedError, int], None]
    ) -> bool:
        """Run `count` messages or firings, undo those that fail, and bury them. Where all operators can take back many
        at once, a piece of them that fails is halved until the failing one is found; elsewhere each is a piece.

        Args:
            run: called with the number of the first one of a piece, and of the one after its last.
            bury: called with the failure of one, and its number.

        Returns:
            False if something else failed than the application.
        """
        instance = self._instance
        pieces = [(0, count)] if instance.undoes_many else [(number, number + 1) for number in reversed(range(count))]
        while pieces:
            begin, end = pieces.pop()
            mark = instance.mark()
            try:
                run(begin, end)
            except (OperatorFailedError, EngineFailedError) as failure:
                if not self.is_applications(failure):
                    return False
                instance.undo(mark)
                if end - begin > 1:
                    middle = (begin + end) // 2
                    pieces += (middle, end), (begin, middle)
                else:
                    bury(failure, begin)
        return True
