"""The turns of an attempt: firings, which no message leads to, and the number of messages that it processes at once.

Firings are at the start and at the end of its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns

from penstock.errors import FIRED_OFFSET, PenstockTimeoutError
from penstock.host.position_page import PositionSlot
from penstock.runtime.context import FiredPage, OperatorFailedError, blaming
from penstock.runtime.messages.outlet import FLUSH_BYTES
from penstock.runtime.messages.packet import Packet, fired_origin
from penstock.runtime.messages.stored import encode_dead_letter
from penstock.runtime.operators.base import Firing, Firings
from penstock.runtime.stage.failures import AttemptFailures, MessageWatch
from penstock.runtime.stage.instance import StageInstance
from penstock.state.engines.engine import EngineFailedError

AT_ONCE = 1024
"""Messages decoded before they are processed: enough that the cost of a block is small for each, and few enough that
they are still in the processor's cache."""

BLOCK = 1 << 15
"""As `AT_ONCE`, of messages that stay in columns."""


class AttemptPace:
    """The number of messages that an attempt processes at once, so that their output has a bounded size; and the time
    that they took. Used by one thread; any thread may read `process_ns`."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self.at_once = at_once
        self.process_ns = 0

    def of(self, *, by_column: bool) -> int:
        """The number to process next. `by_column`: they stay in columns."""
        return max(self.at_once, BLOCK) if by_column else self.at_once

    def sent(self, size_bytes: int) -> None:
        """The last ones led to output of this size."""
        if size_bytes > FLUSH_BYTES:
            self.at_once = max(1, self.at_once * FLUSH_BYTES // size_bytes)
        else:
            self.at_once = min(AT_ONCE, 2 * self.at_once)


class FiringRuns:
    """Runs the firings of an attempt."""

    def __init__(
        self,
        instance: StageInstance,
        failures: AttemptFailures,
        pace: AttemptPace,
        slot: PositionSlot | None,
        watch: MessageWatch | None,
    ) -> None:
        self._instance = instance
        self._failures = failures
        self._pace = pace
        self._slot = slot
        self._watch = watch
        self.count = 0
        """Firings so far. May be read by any thread."""

    def run(self, firings: Iterator[tuple[str, Firing | Firings]]) -> Iterator[Packet]:
        """Run all firings (with the ids of their operators); yields packets that are ready to be sent on. With a
        dead-letter stream, a firing that fails goes there."""
        instance, router, failures = self._instance, self._instance.router, self._failures
        origin, page = fired_origin(instance.task), FiredPage(instance.ssps)
        self._enter_step()
        while (due := self._next(firings)) is not None and not failures.end_work:
            operator, fired = due
            done, count = 0, len(fired.keys) if isinstance(fired, Firings) else 1
            while done < count and not failures.end_work:
                end = min(count, done + self._pace.at_once)
                if isinstance(fired, Firing) and fired.origin is not None:
                    first = page.add_message(fired.timestamp_ms, fired.origin, origin)
                else:
                    first = page.add(fired.timestamp_ms, origin, FIRED_OFFSET, end - done)
                instance.position.page, instance.position.row = page, first
                began = perf_counter_ns()
                if isinstance(fired, Firings):
                    fire = partial(self._fire_at_once, operator, fired, slice(done, end))
                    instance.clock.timed(operator, fire)(first)
                else:
                    instance.clock.timed(operator, partial(self._fire, operator))(fired)
                self._pace.process_ns += perf_counter_ns() - began
                done = end
                if len(page.offsets) >= self._pace.at_once and not failures.end_work:
                    self._pace.sent(router.count_bytes())
                    yield from router.take_ready(page)
                    router.end_page(page)
                    page = FiredPage(instance.ssps)
        router.end_page(page)
        if self._slot is not None:
            self._slot.leave()

    def _enter_step(self) -> None:
        if self._slot is not None:
            self._slot.enter_step("timers, windows or the end of input")

    def _next(self, firings: Iterator[tuple[str, Firing | Firings]]) -> tuple[str, Firing | Firings] | None:
        try:
            return next(firings, None)
        except (OperatorFailedError, EngineFailedError) as failure:
            self._failures.note_without_message(failure)
        except PenstockTimeoutError as error:
            self._failures.error = (PenstockTimeoutError.__name__, str(error))
        return None

    def _fire(self, operator: str, firing: Firing) -> None:
        failures = self._failures
        mark = self._instance.mark() if failures.buries and not firing.must_succeed else None
        try:
            if self._watch is not None:
                self._look_at(self._watch, operator, firing, can_be_buried=mark is not None)
            with blaming(operator):
                firing.run()
        except (OperatorFailedError, EngineFailedError) as failure:
            if not failures.is_applications(failure):
                return
            if firing.origin is None:
                failed = failures.at_position(failure, firing.key, firing.what)
            else:  # its stream may be no input any more
                own = firing.origin
                failed = failure.describe(own.ssp, own.offset, firing.key, firing.what, own.sender)
            if mark is None:
                failures.message = failed
                return
            page, row = self._instance.position.page, self._instance.position.row
            self._instance.undo(mark)
            time_ms = firing.timestamp_ms if firing.time_ms is None else firing.time_ms
            identity = self._instance.settings.identities.get(failed.stream)
            letter = encode_dead_letter(
                failed,
                firing.key,
                firing.value,
                repartitioned=True,
                identity=identity if firing.origin is not None else None,
                fired={"name": firing.name, "timestamp": time_ms} if firing.origin is None else None,
                headers=page.headers(row),
            )
            failures.bury(failed, firing.key, letter)
        finally:
            if self._watch is not None:
                self._enter_step()
        self.count += 1

    def _look_at(self, watch: MessageWatch, operator: str, firing: Firing, *, can_be_buried: bool) -> None:
        """Name a firing on the page. Raises OperatorFailedError if it must not be run."""
        page, row = self._instance.position.page, self._instance.position.row
        message = watch.firing(operator, firing, page.origins[row], page.offsets[row])
        if can_be_buried and (failure := watch.failure(message, operator)) is not None:
            raise failure
        if self._slot is not None:
            self._slot.enter_message(message, f"{firing.what or firing.name} of operator `{operator}`")

    def _fire_at_once(self, operator: str, firings: Firings, some: slice, first: int) -> None:
        """Run firings together. With a dead-letter stream, those that fail are undone and halved, as messages are."""
        failures, position, keys = self._failures, self._instance.position, firings.keys
        start, count = some.start, some.stop - some.start

        def run(begin: int, end: int) -> None:
            position.row = first + begin
            with blaming(operator):
                firings.run(slice(start + begin, start + end), first + begin)

        def bury(failure: OperatorFailedError, number: int) -> None:
            key, fired = keys[start + number], {"name": firings.name, "timestamp": firings.timestamp_ms}
            failed = failures.of_firing(failure, key)
            failures.bury(failed, key, encode_dead_letter(failed, key, None, repartitioned=True, fired=fired))

        if failures.buries:
            if not failures.run_undoable(count, run, bury):
                return
        else:
            try:
                run(0, count)
            except (OperatorFailedError, EngineFailedError) as failure:
                if failures.is_applications(failure):
                    failures.message = failures.of_firing(failure, keys[start + position.row - first])
                return
        self.count += count
