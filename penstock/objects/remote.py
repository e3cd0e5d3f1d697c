"""Object stores in the cloud and in memory, over obstore."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from obstore import exceptions as obstore_errors

from penstock.base.documents import decode
from penstock.base.retry import Retry, retry
from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.objects.remote_client import LARGE_BYTES, RETRY_SECONDS, RemoteClients, open_clients
from penstock.objects.remote_errors import CHANGED, NOT_FOUND, TAKEN, Cause, cause_of, reason
from penstock.objects.store import ObjectStore, check_key, check_prefix

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore as Obstore

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
            try:
                _again(lambda: self._writer(data).put(key, data, mode="create"))
            except TAKEN as error:
                self._confirm_taken(key, error)
                return False
            return True

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

    def _confirm_taken(self, key: str, cause: Exception) -> None:
        """S3 answers two racing creates with a conflict that obstore reports as "exists" even if neither does yet."""
        try:
            self._store.head(key)
        except NOT_FOUND:
            raise RetryableError(f"could not write `{key}` in {self.url}: a conflicting write was in flight") from cause

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
    the middle of a listing or an error; every call of a store may be made twice."""
    return retry(call, _AGAIN, passes=_broke_off)


def _broke_off(error: Exception) -> bool:
    return isinstance(error, obstore_errors.GenericError) and cause_of(error).may_pass


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
