"""Object stores in the cloud and in memory, over obstore (DESIGN section 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from obstore import exceptions as obstore_errors
from obstore.store import from_url

from penstock.errors import ConfigError, NotFoundError, RetryableError
from penstock.metadata.object_store import ObjectStore, check_key, check_prefix

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore as Obstore

_NOT_FOUND = (obstore_errors.NotFoundError, FileNotFoundError)
_TAKEN = (obstore_errors.AlreadyExistsError, FileExistsError)
_CHANGED = (*_TAKEN, *_NOT_FOUND, obstore_errors.PreconditionError, obstore_errors.NotModifiedError)
_DENIED = (obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError, PermissionError)
_UNSUPPORTED = (obstore_errors.NotSupportedError, obstore_errors.UnknownConfigurationKeyError, NotImplementedError)


class RemoteObjectStore(ObjectStore):
    """Objects of one bucket or container, below the path of the URL.

    Credentials and endpoints come from the environment, as obstore reads them. Conditional writes are the
    store's own (If-None-Match, If-Match, generation): a service that ignores them cannot be told apart from one
    that has them by looking at one reply, so it must not be used.
    """

    def __init__(self, url: str, *, store: Obstore | None = None) -> None:
        """Open the store at `url`; `store` is used instead of opening one (tests, own credentials).

        Raises ConfigError if obstore cannot make a store of the URL and the environment.
        """
        self.url = url
        if store is None:
            try:
                store = from_url(url)
            except (obstore_errors.BaseError, ValueError) as error:
                raise ConfigError(f"`{url}` cannot be opened as an object store: {_first_line(error)}") from error
        self._store: Obstore = store

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        with self._explained("write", key):
            try:
                self._store.put(key, data, mode="create")
            except (*_TAKEN, obstore_errors.PreconditionError, obstore_errors.NotModifiedError) as error:
                self._confirm_taken(key, error)
                return False
            return True

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        check_key(key)
        with self._explained("read", key):
            try:
                result = self._store.get(key)
                data = bytes(result.bytes())
            except _NOT_FOUND as error:
                raise NotFoundError(f"there is no object `{key}` in {self.url}") from error
            return data, _encode_tag(result.meta["e_tag"], result.meta["version"])

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        if tag is None:
            return self.put_if_absent(key, data)
        check_key(key)
        with self._explained("write", key):
            try:
                self._store.put(key, data, mode=_decode_tag(tag))
            except _CHANGED:
                return False
            return True

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        folder = check_prefix(prefix)
        with self._explained("list", folder):
            pages = self._store.list(folder or None, offset=after, chunk_size=1000)
            keys = [entry["path"] for page in pages for entry in page]
        return sorted(key for key in keys if after is None or key > after)

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = check_prefix(prefix)
        with self._explained("list", folder):
            pages = self._store.list(folder or None, chunk_size=1000)
            found = {entry["path"]: int(entry["size"]) for page in pages for entry in page}
        return dict(sorted(found.items()))

    def delete(self, key: str) -> None:
        check_key(key)
        with self._explained("delete", key):
            try:
                self._store.delete(key)
            except _NOT_FOUND:
                return

    def close(self) -> None:
        """Nothing to do: obstore closes its connections when the store is collected."""

    def _confirm_taken(self, key: str, cause: Exception) -> None:
        """S3 answers two racing creates with a conflict that obstore reports as "exists" even if neither does yet."""
        try:
            self._store.head(key)
        except _NOT_FOUND:
            raise RetryableError(f"could not write `{key}` in {self.url}: a conflicting write was in flight") from cause

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        """Turn obstore's errors into ours, chained, naming the key and the store."""
        try:
            yield
        except _DENIED as error:
            raise ConfigError(
                f"not allowed to {action} `{key}` in {self.url}: {_first_line(error)}. Check the credentials in the "
                f"environment and the rights they carry"
            ) from error
        except _UNSUPPORTED as error:
            raise ConfigError(
                f"the store at {self.url} cannot {action} `{key}` as needed: {_first_line(error)}. It must support "
                f"conditional writes"
            ) from error
        except (obstore_errors.BaseError, OSError) as error:
            raise RetryableError(f"could not {action} `{key}` in {self.url}: {_first_line(error)}") from error


def _encode_tag(e_tag: str | None, version: str | None) -> str:
    return json.dumps([e_tag, version])


def _decode_tag(tag: str) -> UpdateVersion:
    """What obstore compares: S3 and Azure need the e-tag, Google the version; obstore refuses an explicit None."""
    e_tag, version = json.loads(tag)
    mode: UpdateVersion = {}
    if e_tag is not None:
        mode["e_tag"] = e_tag
    if version is not None:
        mode["version"] = version
    return mode


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
