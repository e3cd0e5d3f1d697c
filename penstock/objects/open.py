"""Opens the object store behind a URL, such as `job.root`; and the stores in the cloud and in memory, over obstore.

Here are the clients of these too, with their retries, timeouts and environment, and the meaning of their errors: retry
or give up, the remedy, and the service's own words.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import unquote, urlsplit

from obstore import exceptions as obstore_errors
from obstore.store import MemoryStore, from_url

from penstock.base.documents import decode
from penstock.base.retry import Retry, retry
from penstock.base.secrets import RootKeys
from penstock.config.settings import JobSettings
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.objects.file import FileObjectStore
from penstock.objects.forwarding import SignedStore, UnsignedStore
from penstock.objects.store import ObjectStore, check_key, check_prefix

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Obstore


NOT_FOUND = (obstore_errors.NotFoundError, FileNotFoundError)
EXISTS = (obstore_errors.AlreadyExistsError, FileExistsError)
TAKEN = (
    *EXISTS,
    obstore_errors.PreconditionError,
    obstore_errors.NotModifiedError,
)
CHANGED = (*TAKEN, *NOT_FOUND)
_DENIED = (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError, PermissionError)
_UNSUPPORTED = (obstore_errors.NotSupportedError, obstore_errors.UnknownConfigurationKeyError, NotImplementedError)

_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>|specified bucket does not exist")
_NO_CREDENTIALS = re.compile(r"latest/api/token|latest/meta-data|computeMetadata|job/identity|Missing \w*Key")
_LATE = "<Code>RequestTimeout</Code>"
"""S3's 400 for a body that came too slowly."""
_FORBIDDEN = re.compile(r"status code: 40[13]|^Generic S3 error: DeleteObjects request .*\(code: AccessDenied\)")
"""S3 answers a deletion with 200, and says in the body that it is denied."""
_REFUSED = re.compile(r"status code: (?!408|409|412|425|429)4\d\d|incorrectly configured region")
_SAID = re.compile(r"<Code>(?P<code>[^<]*)</Code>(?:\s*<Message>(?P<message>[^<]*)</Message>)?")
_SYSTEM = re.compile(r'message: "([^"]+)"')
_DETAILS = "\n\nDebug source:"


class Cause(Enum):
    """The cause of a failed call, with the remedy."""

    NO_BUCKET = "The bucket does not exist: create it, or correct `job.root`"
    NO_CREDENTIALS = (
        "There are no credentials in the environment, and the machine provides none: set them, for example "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for the driver and for the executors"
    )
    DENIED = "Check the credentials in the environment and the rights they carry"
    PLAIN_HTTP = (
        "If the endpoint begins with http://, allow it with AWS_ALLOW_HTTP=true (GOOGLE_ALLOW_HTTP, AZURE_ALLOW_HTTP)"
    )
    UNSUPPORTED = "The store must support conditional writes"
    REFUSED = "The service rejects the request: check endpoint, region and `job.root`"
    PASSING = "Retries did not help. Check that the service is up, and reachable at the endpoint in the environment"

    @property
    def may_pass(self) -> bool:
        return self is Cause.PASSING


def cause_of(error: Exception) -> Cause:
    """Classify an error of obstore. An unknown one may pass."""
    text = str(error)
    if _NO_BUCKET.search(text):
        return Cause.NO_BUCKET
    first = text.partition("\n")[0]
    if isinstance(error, _DENIED) or _FORBIDDEN.search(first):  # obstore has no kind for these
        return Cause.DENIED
    if isinstance(error, _UNSUPPORTED):
        return Cause.UNSUPPORTED
    if _NO_CREDENTIALS.search(first):
        return Cause.NO_CREDENTIALS
    if "HTTP error: builder error" in first:
        return Cause.PLAIN_HTTP
    return Cause.REFUSED if _REFUSED.search(first) and _LATE not in text else Cause.PASSING


def reason(error: Exception) -> str:
    """The error in one line: obstore's own first one, and the words of the service or the system."""
    told, _, details = str(error).partition(_DETAILS)
    first = told.partition("\n")[0].partition("<?xml")[0].rstrip(" :.")
    said = _SAID.search(told)
    if said:
        return f"{first}: {': '.join(part.strip().rstrip('.') for part in said.groups() if part)}"
    system = _SYSTEM.search(details)
    return f"{first}: {system[1]}" if system else first


RETRY_SECONDS = 10.0
"""The time for which a call is retried after a passing failure: no connection, a cut one, 5xx, too many requests."""

LARGE_BYTES = 1 << 20
"""Larger objects are written by a client that gives the body time to go out."""

_TIMEOUT = "300s"
"""The limit for one request with all of its body: 32 MB may go at 110 kB/s."""

_SILENCE = "20s"
"""A service that is silent for so long has hung. The time in which a request's body goes out counts, too."""

_PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}

# Options that are given to obstore replace those it would read from the environment, so they are read here.
_OPTIONS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
)


@dataclass(frozen=True, slots=True)
class RemoteClients:
    """Two clients of one store: one that notices soon that a service has hung, one for writing large objects."""

    quick: Obstore
    patient: Obstore


def open_clients(url: str, environ: Mapping[str, str] | None = None) -> RemoteClients:
    """Clients of the store at a URL; no request is made yet.

    Raises ConfigError if obstore cannot make a client of the URL and the environment.
    """
    environ = os.environ if environ is None else environ
    prefix = _PREFIXES[url.partition("://")[0]]
    given = {name: environ[key] for name in _OPTIONS if (key := f"{prefix}_{name.upper()}") in environ}
    patient = {"timeout": _TIMEOUT, **given}
    quick = {"read_timeout": _SILENCE, **patient}
    try:
        return RemoteClients(_open(url, quick), _open(url, patient))
    except (obstore_errors.BaseError, ValueError) as error:
        raise ConfigError(
            f"`{url}` cannot be opened as an object store: {reason(error)}. Look at the variables {prefix}_* of the "
            "environment"
        ) from error


def _open(url: str, options: Mapping[str, str]) -> Obstore:
    """obstore accepts options as text, too, as it does from the environment."""
    return from_url(url, client_options=cast("ClientConfig", dict(options)), retry_config=_retries())


def _retries() -> RetryConfig:
    """Limited by time, not by a number of tries. Pauses stay short, so that a service that is back is noticed soon."""
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2}
    return cast(
        "RetryConfig",
        {"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_SECONDS), "backoff": pauses},
    )


T = TypeVar("T")

_AGAIN = Retry(pause_s=0.1, growth=1.0, within_s=RETRY_SECONDS)


class RemoteObjectStore(ObjectStore):
    """Objects of one bucket or container, below the path of the URL.

    Credentials and endpoints come from the environment, as obstore reads them. Conditional writes are the
    store's own (If-None-Match, If-Match, generation): a service that ignores them cannot be distinguished from one
    that has them by looking at one reply, so it must not be used.

    A failure that may pass is retried for `RETRY_SECONDS` before a call fails. So a write whose reply was lost is done
    twice: the second time it finds its own object, and returns False.
    """

    def __init__(self, url: str, *, store: Obstore | None = None) -> None:
        """Open the store at `url`; `store` is used instead of opening one (tests, own credentials).

        Raises ConfigError if obstore cannot make a store of the URL and the environment.
        """
        self.url = url
        self._clients = open_clients(url) if store is None else RemoteClients(store, store)
        self._store = self._clients.quick

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._explained("write", key):
            return _again(lambda: self._create(key, data))

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        check_key(key)
        with self._explained("read", key):
            try:
                return _again(lambda: self._read(key))
            except NOT_FOUND as error:
                _refuse_without_bucket(error)
                raise NotFoundError(f"there is no object `{key}` in {self.url}") from error

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        if tag is None:
            return self.put_if_absent(key, data)
        check_key(key)
        with self._explained("write", key):
            try:
                _again(lambda: self._writer(data).put(key, data, mode=_decode_tag(tag)))
            except EXISTS as error:  # S3 has answered with nothing but conflicts
                raise self._in_conflict(key) from error
            except CHANGED as error:
                _refuse_without_bucket(error)
                return False
            return True

    def folders(self) -> list[str]:
        with self._explained("list", ""):
            found = _again(lambda: self._store.list_with_delimiter())
        return sorted(prefix.rstrip("/") for prefix in found["common_prefixes"])

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        folder = check_prefix(prefix)
        with self._explained("list", folder):
            found = _again(lambda: self._listed(folder, after))
        return sorted(key for key in found if after is None or key > after)

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = check_prefix(prefix)
        with self._explained("list", folder):
            found = _again(lambda: self._listed(folder))
        return dict(sorted(found.items()))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explained("delete", key):
            try:
                _again(lambda: self._store.delete(key))
            except NOT_FOUND as error:
                _refuse_without_bucket(error)

    def close(self) -> None:
        """Does nothing: obstore closes its connections when the store is collected."""

    def _read(self, key: str) -> tuple[bytes, str]:
        result = self._store.get(key)
        return bytes(result.bytes()), _encode_tag(result.meta["e_tag"], result.meta["version"])

    def _listed(self, folder: str, after: str | None = None) -> dict[str, int]:
        pages = self._store.list(folder or None, offset=after, chunk_size=1000)
        return {entry["path"]: int(entry["size"]) for page in pages for entry in page}

    def _writer(self, data: bytes) -> Obstore:
        return self._clients.patient if len(data) > LARGE_BYTES else self._clients.quick

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._writer(data).put(key, data, mode="create")
        except TAKEN as error:
            # S3 answers two racing creates with a conflict that obstore reports as "exists" even if neither does yet.
            try:
                self._store.head(key)
            except NOT_FOUND:
                raise self._in_conflict(key) from error
            return False
        return True

    def _in_conflict(self, key: str) -> RetryableError:
        return RetryableError(f"could not write `{key}` in {self.url}: a conflicting write was in flight")

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (obstore_errors.BaseError, OSError, NotImplementedError) as error:
            cause = cause_of(error)
            kind = RetryableError if cause.may_pass else ConfigError
            what = f"`{key}` in {self.url}" if key else self.url
            raise kind(f"could not {action} {what}: {reason(error)}. {cause.value}") from error


def _again(call: Callable[[], T]) -> T:
    """The result of the call. obstore retries most failures by itself, but gives up at once when a connection ends in
    the middle of a listing or an error, and when a create is in conflict; every call of a store may be made twice."""
    return retry(call, _AGAIN, passes=_passes)


def _passes(error: Exception) -> bool:
    broke_off = isinstance(error, obstore_errors.GenericError) and cause_of(error).may_pass
    return broke_off or isinstance(error, RetryableError)


def _refuse_without_bucket(error: Exception) -> None:
    """Raise the error if the bucket is missing: that is not the same as an empty store."""
    if cause_of(error) is Cause.NO_BUCKET:
        raise error


def _encode_tag(e_tag: str | None, version: str | None) -> str:
    return json.dumps([e_tag, version])


def _decode_tag(tag: str) -> UpdateVersion:
    """The tag in obstore's form: S3 and Azure need the e-tag, Google the version; obstore refuses an explicit None."""
    e_tag, version = decode(tuple[str | None, str | None], tag, f"{tag!r} is not the tag of an object")
    mode: UpdateVersion = {}
    if e_tag is not None:
        mode["e_tag"] = e_tag
    if version is not None:
        mode["version"] = version
    return mode


_REMOTE = ("s3", "gs", "az")
_KNOWN = "`file:///path`, a plain path, `s3://bucket/path`, `gs://bucket/path`, `az://container/path`, `memory://name`"

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(url: str, *, is_for_others: bool = False) -> ObjectStore:
    """The object store at `url`.

    `file:///path` or a plain path is a folder; `s3://`, `gs://` and `az://` take credentials from the environment;
    `memory://name` is one store per name and process, for tests, and lives as long as the process.

    Args:
        url: the store.
        is_for_others: let other users read the files in a folder. Otherwise only its user can.

    Raises:
        ConfigError: the scheme is unknown, the URL is malformed, or the environment lacks a setting of the store.
    """
    if "://" not in url:
        if not url:
            raise ConfigError(f"`job.root` is empty; it may be {_KNOWN}")
        return FileObjectStore(url, is_for_others=is_for_others)
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise ConfigError(f"`{url}` names a host; a folder is written with three slashes: `file:///path`")
        return FileObjectStore(unquote(parts.path), is_for_others=is_for_others)
    if parts.scheme in _REMOTE:
        return RemoteObjectStore(url)
    if parts.scheme == "memory":
        return RemoteObjectStore(url, store=_memory_store(parts.netloc + parts.path))
    raise ConfigError(f"`{url}` has the unknown scheme `{parts.scheme}`; known are {_KNOWN}")


def open_root(url: str, keys: RootKeys) -> ObjectStore:
    """The object store at `url`, as the root of a job or of a state backend: with keys, its objects are signed.

    Args:
        url: the store, as for `open_store`.
        keys: the keys of the root; `JobSettings.root_keys` has those of a job.

    Raises:
        ConfigError: as `open_store`; from the calls of the store, if an object is signed with another key, is not
            signed though there is a key, or is signed though there is none.
    """
    store = open_store(url)
    return SignedStore(store, keys) if keys.all else UnsignedStore(store)


def open_job_root(job: JobSettings) -> ObjectStore:
    return open_root(job.root, job.root_keys)


def forget_memory_store(url: str) -> None:
    """Drop the content of a `memory://name` store. Whoever has it open keeps it."""
    parts = urlsplit(url)
    with _memory_lock:
        _memory.pop(parts.netloc + parts.path, None)


def _memory_store(name: str) -> MemoryStore:
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())
