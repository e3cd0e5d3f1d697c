"""Requests for startpoints in the metadata store of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from penstock.api.requests import Startpoint
from penstock.api.ssp import SystemStreamPartition
from penstock.base.retry import SYSTEM_CLOCK
from penstock.base.wording import utc_text
from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.errors import ConfigError, CorruptError, NotFoundError
from penstock.job.commands import new_uuid, write_request
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.start.startpoint_request import (
    NAMESPACE,
    RequestKey,
    StartpointRequest,
    UnreadableRequest,
    WithOutput,
    WithState,
    decode_request,
    encode_request,
    is_from_future,
)
from penstock.start.startpoints import WaitingStartpoints, sort_out

TTL_MS = 12 * 3_600_000
"""The time that Samza keeps a startpoint."""


class StartpointManager:
    """Writes, reads and deletes startpoints of one job, as SEP-18's StartpointManager. Thread-safe.

    Any number of processes may use it at once, whether the job runs or not. Every request is a separate object,
    `<key>/<uuid>`, that is never overwritten. Of several requests for one key, the latest counts. A deletion names the
    requests that were read, so it never deletes a newer one. A start reads the requests once; its start checkpoint
    records where it begins, and which requests it took.

    Any method raises RetryableError if the store fails, and ConfigError for a malformed key or startpoint. An object
    that is not a request is left out, and `read` names it.

    Example:
        >>> from penstock.objects.open import open_store
        >>> manager = StartpointManager(open_store("memory://startpoints"), JobPaths("flights", "1"))
        >>> ssp = ps.SystemStreamPartition("local", "trips", 0)
        >>> _ = manager.write_startpoint(ssp, ps.StartpointSpecific("1200"))
        >>> manager.read_startpoint(ssp).specific_offset
        '1200'
        >>> len(manager.delete_startpoint(ssp)), manager.read_startpoint(ssp)
        (1, None)
    """

    def __init__(
        self,
        objects: ObjectStore,
        paths: JobPaths,
        ttl_ms: int = TTL_MS,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.now_ms,
    ) -> None:
        """Open the startpoints of a job.

        Args:
            objects: the object store of the job root.
            paths: the keys of the job's objects.
            ttl_ms: `job.startpoint.ttl.ms`, in milliseconds.
            now_ms: the wall clock, in epoch milliseconds.
        """
        self._objects = objects
        self._paths = paths
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms

    def write_startpoint(
        self,
        ssp: SystemStreamPartition,
        startpoint: Startpoint,
        task: str | None = None,
        *,
        with_state: WithState | None = None,
        clamp: bool = False,
        with_output: WithOutput | None = None,
        accept_state: bool = False,
    ) -> StartpointRequest:
        """Ask for a startpoint. It applies at the next start, also at one after a crash. Durable when this returns.

        Args:
            ssp: the partition.
            startpoint: the position.
            task: the name of one task, `Partition 3`; every task that reads the partition, if None.
            with_state: what the start does with the state: `nearest`, `clear` or `keep`.
            clamp: accept the nearest offset if that of a StartpointSpecific does not exist.
            with_output: `again` sends the output of messages that are read again, `after` sends nothing before all
                inputs have come to their old positions.
            accept_state: declare that the state is right although positions were moved while it stayed.

        Raises:
            ConfigError: the startpoint is of no known kind, or is from the future; a name is malformed. Nothing was
                written.
        """
        key, uuid = RequestKey(ssp, task), new_uuid().hex
        request = StartpointRequest(key, uuid, startpoint, with_state, clamp, with_output, accept_state)
        self.check_time(request)
        self.write(request)
        return request

    def check_time(self, request: StartpointRequest) -> None:
        """Raise ConfigError for a request that claims to be from the future.

        Args:
            request: one that is not written yet.
        """
        if is_from_future(request.startpoint, self._now_ms()):
            raise ConfigError(
                f"the startpoint for {request} claims to be made at {utc_text(request.startpoint.creation_timestamp)}, "
                "which is in the future by the clock of this host: correct the clock, or the creation_timestamp"
            )

    def write(self, request: StartpointRequest) -> None:
        """Store a request. Failures that may pass are retried. Idempotent.

        Args:
            request: the request.
        """
        write_request(
            self._objects,
            self._path(request),
            encode_request(request),
            what=f"the startpoint {request} could not be written",
            look=f"penstock startpoint list {self._paths.root}",
        )

    def read_startpoint(self, ssp: SystemStreamPartition, task: str | None = None) -> Startpoint | None:
        """The startpoint that counts for exactly this key; None if there is none, or it is expired.

        Args:
            ssp: the partition.
            task: the name of a task; None for requests that are for every task.
        """
        own = [request for request in self.requests() if request.key == RequestKey(ssp, task)]
        newest = max(own, key=lambda request: request.rank, default=None)
        return None if newest is None or newest.is_expired(self._now_ms(), self._ttl_ms) else newest.startpoint

    def delete_startpoint(self, ssp: SystemStreamPartition, task: str | None = None) -> tuple[StartpointRequest, ...]:
        """Delete the requests for exactly this key, and return them.

        Args:
            ssp: the partition.
            task: the name of a task; None for requests that are for every task.
        """
        found = tuple(request for request in self.requests() if request.key == RequestKey(ssp, task))
        self.delete(found)
        return found

    def requests(self) -> tuple[StartpointRequest, ...]:
        """All requests, expired ones too, by key and rank."""
        return self.read()[0]

    def read(self) -> tuple[tuple[StartpointRequest, ...], tuple[UnreadableRequest, ...]]:
        """All requests, expired ones too, by key and rank; and the objects among them that are none."""
        found, unreadable = list[StartpointRequest](), list[UnreadableRequest]()
        for path in self._objects.list(self._paths.metadata_folder(NAMESPACE)):
            key, _, name = self._paths.metadata_key(NAMESPACE, path).rpartition("/")
            try:
                request = decode_request(key, name, self._objects.get(path))
            except NotFoundError:
                continue  # it was deleted meanwhile
            except CorruptError as error:
                unreadable.append(UnreadableRequest(path, _known(key), str(error)))
                continue
            found.append(replace(request, from_future=is_from_future(request.startpoint, self._now_ms())))
        return tuple(sorted(found, key=lambda request: (str(request.key), request.rank))), tuple(unreadable)

    def waiting(self, view: LogView | None = None) -> WaitingStartpoints:
        """All requests, sorted as a start would now.

        Args:
            view: the job's log; None: it is read, behind the requests.
        """
        found, unreadable = self.read()
        if view is None and found:
            view = CheckpointLog(self._objects, self._paths).read("report")
        checkpoints = () if view is None else view.checkpoints
        taken = {uuid for record in checkpoints for uuid in record.consumed_startpoints}
        return sort_out(found, taken, self._now_ms(), self._ttl_ms, unreadable)

    def delete(self, requests: Iterable[StartpointRequest | UnreadableRequest]) -> None:
        """Delete exactly these requests, durably: a start would apply one that a loss of power brings back. Idempotent.

        Args:
            requests: the requests, as `requests` or `read` returned them.
        """
        for request in requests:
            path = request.path if isinstance(request, UnreadableRequest) else self._path(request)
            self._objects.delete_durably(path)

    def _path(self, request: StartpointRequest) -> str:
        return self._paths.metadata(NAMESPACE, f"{request.key}/{request.uuid}")


def _known(key: str) -> RequestKey | None:
    try:
        return RequestKey.parse(key)
    except ConfigError:
        return None
