"""Makes a job's folder somebody's: a claim for a command, `adopt` for a copy, and signatures."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from penstock.admin.job.logs import audited
from penstock.admin.jobs import FoundJob
from penstock.base.wording import counted
from penstock.checkpoint.record import Claim
from penstock.config.model import JobConfig
from penstock.driver.watches import Tenure
from penstock.errors import ConfigError, NotFoundError, PenstockError
from penstock.job.identity import JobIdentity, check_root, known_uid
from penstock.job.identity import adopt as adopt_folder
from penstock.objects.forwarding import SignedStore, UntrustedError
from penstock.objects.open import open_root
from penstock.objects.store import ObjectStore
from penstock.outbox.wing import owed_of, own_debt, publisher_name
from penstock.state.backends.changelog_partition import changelog_writer
from penstock.state.backends.resources import BackendRoots
from penstock.system.base import System, WriterIdentity
from penstock.system.registry import open_system, system_class

logger = logging.getLogger(__name__)


def adopt(job: FoundJob, *, moved: bool = False) -> tuple[JobIdentity, JobIdentity]:
    """Make a copied job folder a separate job, which can be started beside the original.

    Args:
        job: the job in the copied folder.
        moved: the folder was moved and its old place is empty. It remains the same job.

    Returns:
        The identity before and after. They are equal if the folder is not a copy.

    Raises:
        LeaseHeldError: the job runs.

    Example:
        >>> with admin.open_job("flights") as job:
        ...     before, after = admin.adopt(job)
        ...     before == after
        True
    """
    with audited(job, "job adopt") as change, held_job(job, "adopt"):
        before, after = adopt_folder(job.objects, job.paths, job.config.job.root, moved=moved)
        change.changes |= {"uid": f"{before.uid} -> {after.uid}", "folder": f"{before.folder} -> {after.folder}"}
    return before, after


@contextmanager
def owned_job(found: FoundJob, *, wanted: bool) -> Iterator[int]:
    """The epoch to act in: of a separate claim under the job's lease; without `wanted`, the present owner's, for
    looking only.

    Raises:
        LeaseHeldError: the job runs; names the holder.
    """
    if not wanted:
        owner = found.log.read().owner
        yield 0 if owner is None else owner.epoch
        return
    with claimed_job(found, "gc") as claim:
        yield claim.epoch


@contextmanager
def claimed_job(found: FoundJob, command: str) -> Iterator[Claim]:
    """A claim of the job's log, made and held under its lease: the log takes checkpoints of this process alone. It
    keeps the id of a run that has not ended; otherwise its run is named after the command.

    Raises:
        IncompatibleError: the job's folder is a copy of another one. Nothing was claimed.
        LeaseHeldError: the job runs; names the holder. Nothing was claimed.
        CorruptError: the log is damaged where it is needed. Nothing was claimed.
    """
    check_root(found.objects, found.paths, found.config.job.root)
    with held_job(found, command) as tenure:
        yield found.log.claim(tenure.run_id)


@contextmanager
def held_job(found: FoundJob, command: str) -> Iterator[Tenure]:
    """The job's lease. Raises LeaseHeldError if the job runs; names the holder."""
    tenure = Tenure.begin(found.objects, found.paths, found.log, found.config.job.lease_ms, f"{command}-")
    try:
        yield tenure
    finally:
        _leave(tenure)


def _leave(tenure: Tenure) -> None:
    """Never fails: the change is done, and a lease that is not released runs out."""
    try:
        tenure.leave()
    except PenstockError as error:
        logger.warning("the lease was not released; it expires by itself: %s", error)


_THREADS = 16


@dataclass(frozen=True, slots=True)
class SigningFacts:
    """The objects of a job, and of the listings of its `files` systems. All of them have signatures of the key."""

    job: str
    objects: int
    signed: int
    """The objects that this call signed; the others had a signature of the key before."""


def sign(job: FoundJob) -> SigningFacts:
    """Sign every object of a job that does not run, and its records in Kafka, with `job.root.key`, which the
    configuration has to give.

    The first time, what has no signature is trusted as it is, so make sure before that nobody else could write to the
    root and to Penstock's topics. Later, it is refused, and left out in Kafka. What is signed with
    `job.root.key.previous` is verified, and signed with the new key. A call that was interrupted can be repeated, and
    must be before the job starts.

    Args:
        job: the job.

    Raises:
        ConfigError: there is no `job.root.key`, or an object is signed with a key that the configuration does not have,
            or the root was signed before and an object is not.
        CorruptError: an object has a wrong signature.
        IncompatibleError: the job's folder is a copy that was not adopted.
        LeaseHeldError: the job runs.

    Example:
        >>> key = "the key of this root, 32 characters or more"
        >>> with admin.open_job("flights", overrides={"job.root.key": key}) as job:
        ...     first, second = admin.sign(job), admin.sign(job)
        >>> first.signed == first.objects > 10, second.signed
        (True, 0)
    """
    trusts = _trusts_unsigned(job)
    found = replace(job, objects=_to_sign(job.objects, trusts=trusts))
    check_root(found.objects, found.paths, found.config.job.root)
    with audited(found, "job sign") as change, held_job(found, "sign") as tenure, ThreadPoolExecutor(_THREADS) as pool:
        _sign_records(found, tenure, trusts=trusts)
        done = [
            each
            for store, keys in _places(found, trusts=trusts)
            for each in pool.map(partial(_sign_object, store), (key for key in keys if key != change.record))
            if each is not None
        ]
        change.changes |= {"signed": f"{sum(done)} of {counted(len(done), 'object')}"}
    return SigningFacts(found.paths.root, len(done), sum(done))


def _trusts_unsigned(job: FoundJob) -> bool:
    """True if objects without a signature are signed: not once all were, because then a stranger wrote them. The job's
    uid is signed last."""
    try:
        job.objects.get(job.paths.uid)
    except NotFoundError:
        return True
    except UntrustedError:
        if job.config.job.root_keys.previous is None:
            return True
        raise
    return False


def _sign_records(found: FoundJob, tenure: Tenure, *, trusts: bool) -> None:
    """Before any object is signed for good: until the job's uid is, records without a signature are trusted."""
    systems = [each for each in _rooted(found.config) if each.signs]
    uid = known_uid(found.objects, found.paths)
    if not systems or uid is None:
        return
    epoch = found.log.claim(tenure.run_id).epoch
    owed = own_debt(owed_of(found.log.known()), uid, found.paths)
    writers = WriterIdentity(publisher_name(owed, uid, found.paths), epoch), changelog_writer(found.paths, epoch)
    for system in systems:
        for writer in writers:
            system.sign(writer, takes_unsigned=trusts)


def _places(found: FoundJob, *, trusts: bool) -> Iterator[tuple[SignedStore, Iterable[str]]]:
    """Every store with objects of the job, and their keys there; the job's uid comes last."""
    paths, config = found.paths, found.config
    objects = _to_sign(found.objects, trusts=trusts)
    uid = known_uid(objects, paths)
    with closing(BackendRoots(config, objects)) as roots:
        for _, root in roots.separate():
            if uid and known_uid(own := _to_sign(root, trusts=trusts), paths) == uid:
                yield own, own.list(paths.root)
    for place in (each.signed_objects for each in _rooted(config)):
        if place is not None:
            with closing(open_root(place, config.job.root_keys)) as store:
                own = _to_sign(store, trusts=trusts)
                yield own, own.list("")
    yield objects, [key for key in objects.list(paths.root) if key not in {paths.lease, paths.uid}]
    if uid:
        yield objects, [paths.uid]


def _rooted(config: JobConfig) -> Iterator[System]:
    """The systems that get the root's keys. No others are opened, because they have nothing to sign."""
    settings = map(config.system, config.system_names)
    return (open_system(each) for each in settings if system_class(each).takes_root)


def _to_sign(objects: ObjectStore, *, trusts: bool) -> SignedStore:
    if not isinstance(objects, SignedStore):
        raise ConfigError(
            "the configuration has no `job.root.key` to sign with. Make one with `openssl rand -hex 32`, keep it in a "
            "file that nobody else can read, and give it as `job.root.key: file:PATH`"
        )
    return objects.taking_unsigned() if trusts else objects


def _sign_object(store: SignedStore, key: str) -> bool | None:
    """True if this call signed it; None if it was deleted meanwhile."""
    try:
        return store.sign_again(key)
    except NotFoundError:
        return None
