"""One look at a job, and the pages that somebody looks at, which threads keep up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TypeAlias

from penstock.admin.checkpoint.facts import checkpoints
from penstock.admin.job.look import status, statuses
from penstock.admin.job.status import JobStatus, graph, run_of
from penstock.admin.jobs import FoundJob
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.secrets import without_secrets
from penstock.dashboard.view import Document, Seen, job_document, list_document, unread, unread_by_input
from penstock.dashboard.work import STALE_MS, History, Totals
from penstock.errors import CorruptError, IncompatibleError, PenstockError
from penstock.job.shown import RunWork
from penstock.metrics.snapshot import Snapshot

logger = logging.getLogger(__name__)

LOOK_S = 2.0
"""The pause between two looks."""
FORGOTTEN_S = 120.0
"""A page that nobody has asked for so long is no longer kept up to date."""
WATCHES = 100
"""The most pages that are kept up to date at once."""

OpenJob = Callable[[str], AbstractContextManager[FoundJob]]
OpenAll = Callable[[], AbstractContextManager[list[FoundJob]]]


class Page:
    """The newest version of a page, from a thread that looks again and again. Thread-safe."""

    def __init__(self, name: str, look: Callable[[], Document], forgotten: Callable[[], bool]) -> None:
        """
        Args:
            name: for the thread.
            look: makes the page. Its errors become the page.
            forgotten: True if the thread is to end.
        """
        self.version = 0
        """Counts the pages that differed from the one before."""
        self.document: Document = {}
        self.looked_ms = 0
        """The end of the last look, in epoch milliseconds."""
        self._look = look
        self._forgotten = forgotten
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-page-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once nobody keeps the page up to date."""
        return self._thread.is_alive()

    def close(self) -> None:
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set() and not self._forgotten():
            try:
                document = self._look()
            except PenstockError as error:
                document = {"error": str(error)}
            except Exception as error:  # a fault in the page must not end the page
                if self._closing.is_set() or not threading.main_thread().is_alive():
                    return  # the program ends
                logger.exception("the dashboard failed to look at a job")
                document = {"error": without_secrets(f"{type(error).__name__}: {error}")}
            if document != self.document:
                self.document = document
                self.version += 1
            self.looked_ms = SYSTEM_CLOCK.now_ms()
            self._closing.wait(LOOK_S)


class Watches:
    """The pages that somebody looks at, by the name of the job; `` is the list of all jobs. Thread-safe."""

    def __init__(self, open_job: OpenJob, open_all: OpenAll, live: Live | None = None) -> None:
        """
        Args:
            open_job: opens the job of a name.
            open_all: opens all jobs.
            live: the metrics of the run in this process; None: the metrics in the job's folder are shown.
        """
        self._open_job = open_job
        self._open_all = open_all
        self._live = live
        self._pages: dict[str, Page] = {}
        self._asked: dict[str, float] = {}
        self._histories: dict[str, History] = {}
        self._lock = threading.Lock()

    def knows(self, job: str) -> bool:
        """True if the page of the job is kept up to date."""
        with self._lock:
            found = self._pages.get(job)
            return found is not None and found.is_alive

    def page(self, job: str) -> Page | None:
        """The page of a job, which is kept up to date from now on; None if there are too many."""
        with self._lock:
            self._asked[job] = time.monotonic()
            found = self._pages.get(job)
            if found is not None and found.is_alive:
                return found
            for name in [name for name, page in self._pages.items() if not page.is_alive]:
                self._pages.pop(name)
                self._histories.pop(name, None)
            self._asked = {name: at for name, at in self._asked.items() if name in self._pages or name == job}
            if len(self._pages) >= WATCHES:
                return None
            look = (lambda: self._look_at(job)) if job else self._list
            made = self._pages[job] = Page(job, look, lambda: self._is_forgotten(job))
            made.start()
            return made

    def close(self) -> None:
        """End all threads."""
        with self._lock:
            for page in self._pages.values():
                page.close()

    def _is_forgotten(self, job: str) -> bool:
        with self._lock:
            return time.monotonic() - self._asked.get(job, 0.0) > FORGOTTEN_S

    def _list(self) -> Document:
        with self._open_all() as jobs:
            return list_document(statuses(jobs))

    def _look_at(self, name: str) -> Document:
        history = self._histories.setdefault(name, History())
        with self._open_job(name) as job:
            return look_at(job, history, self._live)


Live: TypeAlias = Callable[[], tuple[str, Snapshot, RunWork] | None]
"""A text that distinguishes the start of the run in this process, its metrics and its work now; None before it is
there."""


def look_at(job: FoundJob, history: History, live: Live | None = None) -> Document:
    """The page of a job, now.

    Args:
        job: the job.
        history: the looks before, to which this one is added.
        live: the metrics of a run in this process; None: those in the job's folder count, and the lease is watched.

    Raises:
        CorruptError, IncompatibleError: the log or the lease cannot be read.
        RetryableError: the object store failed.
    """
    found = status(job, wait=live is None)
    if live is not None and found.status == "held, not verified":
        found = replace(found, status="running", reason="its driver serves this page")
    work = _add(job, found, history, live)
    shown = None
    with suppress(CorruptError, IncompatibleError):  # nothing depends on it
        shown = graph(job)
    return job_document(Seen(found, shown, checkpoints(job), history, SYSTEM_CLOCK.now_ms(), work))


def _add(job: FoundJob, found: JobStatus, history: History, live: Live | None) -> RunWork:
    """Adds a look to the history. Returns the work of the run, if it is that of now."""
    now_ms, work = SYSTEM_CLOCK.now_ms(), RunWork()
    if found.phase is None:
        history.forget()  # it does not run, or another start has just begun
    now = None if live is None else live()
    if now is not None:
        history.add(Totals.of(now[0], now_ms, now[1]))
        work = now[2]
    elif live is None:
        with suppress(CorruptError, IncompatibleError):
            run = run_of(job)
            is_of_phase = run is not None and (found.phase is None or run.driver == found.phase.driver)
            if run is not None and is_of_phase and (history.last is None or run.time_ms != history.last.time_ms):
                history.add(Totals.of(run.driver, run.time_ms, run.metrics))
            if run is not None and found.phase is not None and is_of_phase and now_ms - run.time_ms < STALE_MS:
                work = run.work
    history.saw_inputs(now_ms, unread_by_input(found))
    left = unread(found)
    if left is not None and found.phase is not None and found.phase.phase == "running":
        history.saw(now_ms, float(sum(left.values())))
    return work
