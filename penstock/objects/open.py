"""Opens the object store behind a URL, such as `job.root`."""

from __future__ import annotations

import threading
from urllib.parse import unquote, urlsplit

from obstore.store import MemoryStore

from penstock.base.secrets import RootKeys
from penstock.config.settings import JobSettings
from penstock.errors import ConfigError
from penstock.objects.file import FileObjectStore
from penstock.objects.forwarding import SignedStore, UnsignedStore
from penstock.objects.remote import RemoteObjectStore
from penstock.objects.store import ObjectStore

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
