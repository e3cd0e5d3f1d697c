"""The lease of a job's driver. It only decides who may try; the checkpoint log decides who owns the job.

Times in the object are for people. An observer counts how long the object stood unchanged on its own monotonic clock.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum

import msgspec
import orjson
import psutil

from penstock.base.documents import Count, Positive, decode_format
from penstock.base.retry import SYSTEM_CLOCK
from penstock.errors import NotFoundError, PenstockError, PenstockTimeoutError, RetryableError
from penstock.host.posix import boot_id, boot_time, is_process, namespace, process_start
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore

FORMAT = 1

Clock = Callable[[], float]


class LeaseHeldError(PenstockError):
    """Another driver runs this job. `holder` (a LeaseHolder) names its run, process and host."""

    def __init__(self, key: str, holder: LeaseHolder) -> None:
        self.holder = holder
        job = key.partition("/")[0]
        super().__init__(
            f"this job is run by {holder} (since {holder.started_at}, lease `{key}`). Stop that run first (`penstock "
            f"stop {job}`), or give this job another `job.id`; for a query, give it another `name=`, or another root"
        )


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """One process that runs a job. The first five fields tell processes of one host apart across reuse of a pid."""

    host: str
    pid: Positive
    process_start: str
    boot_id: str
    pid_namespace: str
    run_id: str
    started_at: str

    def __str__(self) -> str:
        return f"run `{self.run_id}`, pid {self.pid} on host `{self.host}`"

    @classmethod
    def of_this_process(cls, run_id: str) -> LeaseHolder:
        """This process as a holder. Fields that the system does not tell are empty and never compared."""
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            process_start=process_start(os.getpid()) or "",
            boot_id=boot_id(),
            pid_namespace=namespace("pid"),
            run_id=run_id,
            started_at=datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC).isoformat(timespec="seconds"),
        )

    def known_dead(self) -> bool:
        """True if this process can see that the holder's process no longer exists; False if it lives or is unknown, as
        some systems leave it (`penstock.host.posix`): then only a lease that stands still tells."""
        return self._is_visible() and is_process(self.pid, self.process_start) is False

    def known_alive(self) -> str | None:
        """The system's word for the state of the holder's process (`sleeping`, `stopped`), if this process can see that
        it lives; None if it is gone or unknown."""
        if not self._is_visible() or not is_process(self.pid, self.process_start):
            return None
        try:
            return str(psutil.Process(self.pid).status())
        except psutil.Error:
            return None

    def _is_visible(self) -> bool:
        here = (socket.gethostname(), boot_id(), namespace("pid"))
        return (self.host, self.boot_id, self.pid_namespace) == here and all(here) and bool(self.process_start)


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The content of the lease object. `token` names one acquisition, `renewal` counts its writes: no two states are
    equal."""

    holder: LeaseHolder
    lease_ms: int
    token: str
    renewal: int = 0
    released: bool = False
    renewed_ms: int | None = None
    """The time of the write in epoch milliseconds, for people; None if an earlier Penstock wrote it."""

    def encode(self) -> bytes:
        return orjson.dumps({"format": FORMAT, **{k: v for k, v in asdict(self).items() if v is not None}})

    @classmethod
    def decode(cls, data: bytes, key: str) -> LeaseState:
        """Raises CorruptError, or IncompatibleError for a newer format; both name the key."""
        what = f"lease `{key}` is damaged; once no driver runs, delete it"
        name = f"lease `{key}` was written by another version of Penstock: it"
        written = decode_format(_LeaseDocument, data, what, name, FORMAT)
        return cls(*msgspec.structs.astuple(written))


class _LeaseDocument(msgspec.Struct):
    holder: LeaseHolder
    lease_ms: Positive
    token: str
    renewal: Count
    released: bool
    renewed_ms: Count | None = None


@dataclass(slots=True)
class Lease:
    """A lease this process has acquired. Thread-safe; renewed by its `LeaseKeeper`, released by its owner."""

    store: ObjectStore
    key: str
    state: LeaseState
    tag: str
    renewed_at: float
    clock: Clock
    lost: str | None = None
    """A sentence about the new holder, or why the lease is missing. None as long as the lease is not lost. A lost
    lease is never written again."""
    released: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def may_start_batch(self) -> bool:
        """True while the last successful renewal began less than half of the lease ago and it is neither lost
        nor released."""
        held = self.lost is None and not self.released
        return held and self.clock() - self.renewed_at < self.state.lease_ms / 2000

    def renew(self) -> bool:
        """Write the next renewal; False if it did not count. Go on trying while `lost` is None. Raises RetryableError
        if the store failed; the next call finds out if the write happened."""
        with self._lock:
            if self.lost is not None or self.released:
                return False
            began = self.clock()
            if self._write(replace(self.state, renewal=self.state.renewal + 1)):
                self.renewed_at = began
                return True
            return False

    def name_run(self, run_id: str) -> None:
        """Set the holder's run, from the next renewal on."""
        with self._lock:
            self.state = replace(self.state, holder=replace(self.state.holder, run_id=run_id))

    def release(self) -> None:
        """Leave a released object, so that the next driver need not wait. Nothing is written if the lease is lost.

        Call it after the keeper has stopped. Raises RetryableError if the store failed: the lease then runs out.
        """
        with self._lock:
            if self.lost is None and not self.released:
                self.released = self._write(
                    replace(self.state, renewal=self.state.renewal + 1, released=True)
                ) or self._write(replace(self.state, renewal=self.state.renewal + 1, released=True))

    def _write(self, state: LeaseState) -> bool:
        """Replace our own last version, and read the object to find out whose it is now."""
        # Counted even if it fails: a write that lands late must not equal a later one.
        self.state = replace(self.state, renewal=state.renewal)
        data = replace(state, renewed_ms=SYSTEM_CLOCK.now_ms()).encode()
        failure: RetryableError | None = None
        try:
            self.store.put_if_match(self.key, data, self.tag)
        except RetryableError as error:
            failure = error
        try:
            found, self_tag = self.store.get_with_tag(self.key)
        except NotFoundError:
            self.lost = f"the folder of this job, or the lease in it, was deleted while it ran: `{self.key}` is missing"
            return False
        except RetryableError as error:
            raise failure or error from error
        current = LeaseState.decode(found, self.key)
        if current.token != state.token:
            self.lost = f"another driver took this job over: {current.holder}"
            return False
        self.tag = self_tag
        if found != data and failure is not None:
            raise failure
        return found == data


class LeaseKeeper:
    """Renews a lease in a separate daemon thread, from `start` until `stop` or until the lease is lost.

    It waits a third of the lease between renewals, and a twelfth after a failure. `failures` counts failed renewals in
    a row, `failure` is the last cause. No number of failures ends the thread: `may_start_batch` is False meanwhile.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.failures = 0
        self.failure: PenstockError | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-lease", daemon=True)

    def start(self) -> None:
        """Call it once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the renewals. The lease stays held until `Lease.release`. Raises PenstockTimeoutError if a renewal is
        still under way after `timeout_s`; it ends with the store's own timeout."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise PenstockTimeoutError(f"a renewal of lease `{self.lease.key}` did not end within {timeout_s:g} s")

    def _run(self) -> None:
        lease_s = self.lease.state.lease_ms / 1000
        wait_s = lease_s / 3
        while not self._stopping.wait(wait_s):
            wait_s = lease_s / 3 if self._renew() else lease_s / 12
            if self.lease.lost is not None:
                return

    def _renew(self) -> bool:
        try:
            renewed = self.lease.renew()
        except PenstockError as error:
            self.failure = error
            renewed = False
        self.failures = 0 if renewed else self.failures + 1
        return renewed


def acquire(
    store: ObjectStore,
    paths: JobPaths,
    me: LeaseHolder,
    lease_ms: int,
    deadline: float,
    *,
    clock: Clock = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    holder_clock: Clock | None = None,
) -> Lease:
    """Take the lease of a job, waiting at most until `clock()` reaches `deadline`.

    An absent or released lease is taken at once, as is one whose holder was a process of this host and is gone.
    Any other lease is observed: it is taken over once it stood unchanged for the longer of the holder's lease and
    `lease_ms`, and refused as soon as it changes. If several processes try at once, one gets it.

    `holder_clock` times the renewals of the returned lease; the default also counts suspended time.

    Raises:
        LeaseHeldError: its holder lives.
        PenstockTimeoutError: the deadline passed before either was certain.
        CorruptError, IncompatibleError: the object is not a lease this version can read.
    """
    key = paths.lease
    holder_clock = holder_clock or boot_time
    mine = LeaseState(me, lease_ms, token=secrets.token_hex(16), renewed_ms=SYSTEM_CLOCK.now_ms())
    first: Sighting | None = None
    tried_at: float | None = None
    while True:
        failure: RetryableError | None = None
        try:
            state, tag = _read(store, key)
            if state is not None and tag is not None and tried_at is not None and state.token == mine.token:
                return Lease(store, key, mine, tag, renewed_at=tried_at, clock=holder_clock)
            first = first or Sighting(tag, clock())
            verdict = judge(first, state, tag, clock(), lease_ms)
            if verdict is LeaseVerdict.HELD and state is not None:
                raise LeaseHeldError(key, state.holder)
            if verdict is LeaseVerdict.FREE:
                # The first try counts: it may have landed although its reply was lost.
                tried_at = holder_clock() if tried_at is None else tried_at
                if store.put_if_match(key, mine.encode(), tag):
                    continue
        except RetryableError as error:
            failure = error
        remaining = deadline - clock()
        if remaining <= 0:
            raise PenstockTimeoutError(
                f"the lease `{key}` could not be acquired in the time given: "
                f"{failure or 'its holder was still being observed'}. Start again with a longer deadline"
            ) from failure
        pause(min(remaining, lease_ms / 20_000, 0.5))


class LeaseVerdict(Enum):
    """An observer's decision about the lease object."""

    FREE = "take it"
    HELD = "its holder lives"
    WAIT = "go on observing"


@dataclass(frozen=True, slots=True)
class Sighting:
    """The tag of the object at the first look (None: absent), and the time of the look on this process's clock."""

    tag: str | None
    at: float


def judge(first: Sighting, state: LeaseState | None, tag: str | None, now: float, lease_ms: int) -> LeaseVerdict:
    if state is None or state.released or state.holder.known_dead():
        return LeaseVerdict.FREE
    if tag != first.tag:
        return LeaseVerdict.HELD
    stood_s = max(state.lease_ms, lease_ms) / 1000
    return LeaseVerdict.FREE if now - first.at >= stood_s else LeaseVerdict.WAIT


def _read(store: ObjectStore, key: str) -> tuple[LeaseState, str] | tuple[None, None]:
    try:
        data, tag = store.get_with_tag(key)
    except NotFoundError:
        return None, None
    return LeaseState.decode(data, key), tag
