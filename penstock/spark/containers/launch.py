"""Starts containers on executors, and waits for executors."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from pyspark import SparkContext

from penstock.config.settings import ContainerSettings
from penstock.errors import ConfigError, ContainerLostError, PenstockTimeoutError
from penstock.spark.containers.executor_python import Launch, PythonFault, fault_in, fault_of, starting
from penstock.spark.session.executors import (
    LOCAL_ID,
    Executor,
    KeptExecutors,
    configured_executors,
    give_up_executor,
    job_group,
    live_executors,
    rdd_on,
)
from penstock.spark.session.gateway import cause_of
from penstock.wire.containers import ContainerAddress, ContainerSpec, LaunchFailure

logger = logging.getLogger(__name__)
_TRIES = 2
"""Failures of containers on an executor before others are preferred."""
_SETTLE_SECONDS = 1.0
_NEWCOMERS_SECONDS = 2.0
_REPORT_SECONDS = 10.0
_CANCEL_SECONDS = 5.0
_POLL_SECONDS = 0.2
Answers = Mapping[Executor, "Future[list[ContainerAddress | LaunchFailure]]"]


class ContainerLauncher:
    """Starts containers, one Spark job for each executor, so that one which hangs holds up no other."""

    def __init__(
        self,
        context: SparkContext,
        settings: ContainerSettings,
        spec: ContainerSpec,
        pool: ThreadPoolExecutor,
        abort: threading.Event,
    ) -> None:
        """`abort`: nothing is waited for once it is set."""
        self._context = context
        self._settings = settings
        self.spec = spec
        """Used for every start from now on."""
        self._pool = pool
        self._abort = abort
        self._kept = KeptExecutors(context)
        self._expected = self._kept.number or configured_executors(context)
        """The expected number of executors; None until it is known."""
        self._started = False
        self._failures: Counter[str] = Counter()
        """By executor."""
        self._found: dict[str, ContainerAddress] = {}
        """Container → address: all that were found."""
        self._under_way: Answers = {}
        """Launches that nobody waits for, because the run is about to end."""
        self._ask_at = 0.0

    def await_containers(
        self, condemned: frozenset[str], known: frozenset[str] = frozenset()
    ) -> list[ContainerAddress]:
        """Containers on the present executors, one for each slot; none of the condemned incarnations.

        The first time it waits for all executors until `job.container.start.timeout.ms` has passed, later at most
        `container.lost.ms` for one that is missing. Without it, its tasks go to the others until it comes back
        (`newcomers`).

        Args:
            condemned: incarnations that count as lost.
            known: executors that have had containers. As long as one of them is there, it waits for no other one: a job
                does not stand still for an executor that comes back.

        Raises:
            ConfigError: the Python of an executor cannot run containers, at the first time or with no other executor.
            ContainerLostError: a container did not start, or the run was asked to end.
            PenstockTimeoutError: there is no executor.
        """
        start_s = self._settings.start_timeout_ms / 1000
        patience_s = min(self._settings.lost_ms / 1000, start_s) if self._started else start_s
        begun = settled = time.monotonic()
        report_at = begun + _REPORT_SECONDS
        listed: list[Executor] = []
        found: dict[str, ContainerAddress] = {}
        reasons: dict[str, str] = {}
        while True:
            executors = self._usable(live_executors(self._context))
            still_known = [executor for executor in executors if executor.id in known]
            executors = still_known or executors
            if executors != listed:
                listed, settled = executors, time.monotonic()
            self._launch_missing(executors, found, condemned, reasons)
            now = time.monotonic()
            if self._complete(executors, found, now - settled, all_there=bool(still_known)):
                break
            if now - begun > patience_s and found:
                logger.warning("%s: continuing with them", self._state(found, reasons))
                for executor_id in reasons.keys() & {e.id for e in executors} - _executors_of(found):
                    self.count_failure(executor_id)
                break
            if now - begun > start_s:
                raise PenstockTimeoutError(self._no_executor_text(reasons))
            if now > report_at:
                logger.warning("%s: waiting for the others", self._state(found, reasons))
                report_at = now + _REPORT_SECONDS
            if self._abort.wait(_POLL_SECONDS):
                raise ContainerLostError("the run was asked to end at once")
        self._expected = len(_executors_of(found))
        self._started = True
        return list(found.values())

    def newcomers(self, used: Collection[str]) -> list[str]:
        """The executors that are not used yet and have not failed too often. Asks Spark every few seconds only."""
        now = time.monotonic()
        if now < self._ask_at:
            return []
        self._ask_at = now + _NEWCOMERS_SECONDS
        unused = [each for each in live_executors(self._context) if each.id not in used]
        found = [str(each) for each in unused if self._failures[each.id] < _TRIES]
        return found if self._kept.number is None else found[: max(0, self._kept.number - len(used))]

    def missing(self, used: Mapping[str, int]) -> bool:
        """True if an executor has fewer containers than slots; `used` has the number of each. Asks Spark every few
        seconds only."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + _NEWCOMERS_SECONDS
        return any(used.get(e.id, 0) < e.slots for e in self._usable(live_executors(self._context)))

    def count_failure(self, executor_id: str) -> None:
        """Count a container that did not start, or cannot be reached, against its executor."""
        self._failures[executor_id] += 1
        if self._failures[executor_id] == _TRIES and executor_id != LOCAL_ID:
            logger.error("no more containers are started on executor %s as long as there are others", executor_id)

    def forget_failures(self, executor_id: str) -> None:
        """Count anew, because the executor's containers are reached."""
        self._failures.pop(executor_id, None)

    def end(self, close: Callable[[ContainerAddress], None]) -> None:
        """End the launches. `close` gets the present containers at once. It gets those of a launch that nobody waits
        for when they have started, in another thread."""
        for address in list(self._found.values()):
            close(address)
        patience_s = self._settings.start_timeout_ms / 1000 + _CANCEL_SECONDS
        for executor, future in self._under_way.items():
            timer = threading.Timer(patience_s, self._context.cancelJobGroup, [self._group(executor)])
            timer.daemon = True
            timer.start()
            future.add_done_callback(partial(_close_started, close, timer))

    def release(self) -> None:
        """Let Spark remove the executors, because their containers are closed."""
        self._kept.release()

    def give_up(self, executor_id: str, reason: str) -> None:
        """Have Spark drop the executor, because nothing on its host answers."""
        if give_up_executor(self._context, executor_id, f"Penstock: {reason}"):
            logger.warning("Spark gives up executor %s, whose host does not answer (%s)", executor_id, reason)

    def _usable(self, executors: list[Executor]) -> list[Executor]:
        """The executors without those that have failed too often, as long as there are others; no more than are
        kept."""
        usable = [e for e in executors if self._failures[e.id] < _TRIES] or executors
        return sorted(usable, key=lambda e: e.id not in self._kept)[: self._kept.number]

    def _complete(
        self,
        executors: Sequence[Executor],
        found: Mapping[str, ContainerAddress],
        quiet_s: float,
        *,
        all_there: bool,
    ) -> bool:
        """True if every executor has its containers, and no more executors are expected. If the expected number is
        unknown, true once no more have come for a moment."""
        complete = bool(executors) and _executors_of(found) >= {executor.id for executor in executors}
        if all_there:
            return complete
        if self._expected is None:
            return complete and quiet_s > _SETTLE_SECONDS
        return complete and len(executors) >= self._expected

    def _state(self, found: Mapping[str, ContainerAddress], reasons: Mapping[str, str]) -> str:
        of = "" if self._expected is None else f" of {self._expected}"
        return f"{len(_executors_of(found))}{of} executors have containers" + "".join(
            f"; {r}" for r in reasons.values()
        )

    def _no_executor_text(self, reasons: Mapping[str, str]) -> str:
        context = self._context
        application, master = str(context.applicationId), str(context.master)
        limit_ms = self._settings.start_timeout_ms
        return no_executor_text(limit_ms, application, master, context.uiWebUrl, reasons.values())

    def _launch_missing(
        self,
        executors: Sequence[Executor],
        found: dict[str, ContainerAddress],
        condemned: frozenset[str],
        reasons: dict[str, str],
    ) -> None:
        """Bring `found` up to date. An executor that breaks off may be on its way out while Spark still lists it: the
        reason is put into `reasons`, and it is tried again as long as the caller waits.

        Raises:
            ConfigError: the executor's Python cannot run containers.
            ContainerLostError: a container did not start, or the run was asked to end.
        """
        ids = {executor.id for executor in executors}
        for name in [name for name, address in found.items() if address.executor_id not in ids]:
            del found[name]
        missing = [executor for executor in executors if executor.id not in _executors_of(found)]
        if not missing:
            return
        for executor, future in self._launch(missing, condemned).items():
            error = _error(future, self._settings.start_timeout_ms)
            if (fault := _fault(future)) is not None:
                reasons[executor.id] = self._refuse(executor, fault, others=len(executors) > 1)
                continue
            if error is not None:
                if executor.is_local:
                    raise ContainerLostError(f"the containers could not be started: {error}")
                reasons[executor.id] = f"{executor}: {error}"
                logger.info("%s has not started its containers: %s", executor, error)
                if not future.done():
                    self.give_up(executor.id, error)
                continue
            for answer in future.result():
                if isinstance(answer, LaunchFailure):
                    self.count_failure(answer.executor_id)
                    where = "" if executor.is_local else f" of executor {answer.executor_id}"
                    raise ContainerLostError(f"a container{where} did not start: {answer.reason}")
                found[answer.container] = self._found[answer.container] = answer

    def _refuse(self, executor: Executor, fault: PythonFault, *, others: bool) -> str:
        """Never try this executor again, because its Python cannot run containers. Returns the fault as text.

        A job that has run before goes on with the other executors, if there are any.

        Raises:
            ConfigError: in all other cases.
        """
        where = "the executor" if executor.is_local else str(executor)
        text = fault.text(where, self._context.pythonExec)
        if not self._started or not others:
            raise ConfigError(text)
        logger.error("%s. No containers are started on it as long as there are others", text)
        self._failures[executor.id] = _TRIES
        return text

    def _launch(self, executors: Sequence[Executor], condemned: frozenset[str]) -> Answers:
        """Run a Spark task on each executor that makes sure its containers run; wait for all of them.

        Raises:
            ContainerLostError: the run was asked to end meanwhile.
        """
        timeout_s = self._settings.start_timeout_ms / 1000
        context, spec = self._context, self.spec
        addresses = {executor.id: executor.address for executor in executors if not executor.is_local}

        def one(executor: Executor) -> list[ContainerAddress | LaunchFailure]:
            launch = Launch(spec, executor.slots, timeout_s, condemned, addresses)
            with job_group(context, self._group(executor), "Starting Penstock containers"):
                answers = self._kept.caching(rdd_on(context, executor).mapPartitions(starting(launch)))
                found: list[ContainerAddress | LaunchFailure] = answers.collect()
            self._kept.keep({each.executor_id for each in found if isinstance(each, ContainerAddress)}, answers)
            return found

        answers = {executor: self._pool.submit(one, executor) for executor in executors}
        self._await_answers(answers, time.monotonic() + timeout_s + _CANCEL_SECONDS)
        if self._abort.is_set():
            self._under_way = answers
            raise ContainerLostError("the run was asked to end at once")
        for executor, future in answers.items():
            if not future.done():
                context.cancelJobGroup(self._group(executor))
        return answers

    def _await_answers(self, answers: Answers, deadline: float) -> None:
        """Wait for all answers, and log from time to time which are missing."""
        report_at = time.monotonic() + _REPORT_SECONDS
        while slow := [executor for executor, future in answers.items() if not future.done()]:
            now = time.monotonic()
            if now > deadline or self._abort.is_set():
                return
            if now > report_at:
                names = ", ".join(str(executor) for executor in slow)
                logger.info("waiting for the containers of %s, for at most %.0f s more", names, deadline - now)
                report_at = now + _REPORT_SECONDS
            wait([answers[executor] for executor in slow], _POLL_SECONDS)

    def _group(self, executor: Executor) -> str:
        return f"penstock-launch-{self.spec.run_id}-{executor.id}"


def _executors_of(found: Mapping[str, ContainerAddress]) -> set[str]:
    return {address.executor_id for address in found.values()}


def _close_started(
    close: Callable[[ContainerAddress], None],
    timer: threading.Timer,
    launch: Future[list[ContainerAddress | LaunchFailure]],
) -> None:
    timer.cancel()
    if launch.done() and launch.exception() is None:
        for answer in launch.result():
            if isinstance(answer, ContainerAddress):
                close(answer)


def _fault(answer: Future[list[ContainerAddress | LaunchFailure]]) -> PythonFault | None:
    """The fault of the Python of an executor that has answered, or could not; None if there is none."""
    if not answer.done():
        return None
    if (error := answer.exception()) is not None:
        return fault_in(str(error))
    failures = (each.reason for each in answer.result() if isinstance(each, LaunchFailure))
    return fault_of(answer.result()) or next(filter(None, map(fault_in, failures)), None)


def no_executor_text(
    limit_ms: int, application: str, master: str, url: str | None, reasons: Collection[str] = ()
) -> str:
    """The error of a start for which Spark had no executor, or none that works.

    Args:
        limit_ms: how long the start waited.
        application: the id of the Spark application, by which the cluster's manager knows it.
        master: the cluster's address, as `spark.master`.
        url: the address of Spark's page, if there is one.
        reasons: what failed on executors that came.
    """
    page = "" if url is None else f" Spark's page is {url}."
    if reasons:
        return (
            f"no container started on any executor of Spark application {application} within "
            f"job.container.start.timeout.ms={limit_ms}: {'; '.join(reasons)}"
        )
    return (
        f"no executor came up within job.container.start.timeout.ms={limit_ms}: the cluster at {master} has given "
        f"Spark application {application} none. Look there whether cores and memory are free for it.{page}"
    )


def _error(answer: Future[list[ContainerAddress | LaunchFailure]], limit_ms: int) -> str | None:
    """The reason why an executor has not answered; None if it has."""
    if not answer.done():
        return (
            f"Spark has started no containers there within job.container.start.timeout.ms={limit_ms}: its slots may be "
            "busy with other work, or its host does not answer"
        )
    error = answer.exception()
    return None if error is None else cause_of(error)
