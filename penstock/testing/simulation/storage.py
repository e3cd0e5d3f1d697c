"""An object store of the simulation: conditional writes, lost replies, late effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.errors import NotFoundError, RetryableError
from penstock.objects.store import ObjectStore, check_key, check_prefix
from penstock.testing.simulation.faults import Fate, Trouble

T = TypeVar("T")
SCHEME = "memory://simulated"


@dataclass
class Bucket:
    """The objects of one store, which outlive every process."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    writes: int = 0
    on_put: Callable[[str, bytes], None] = lambda _key, _data: None
    """Told what is put, and where, before it is there."""

    def put(self, key: str, data: bytes) -> None:
        self.on_put(key, data)
        self.writes += 1
        self.objects[key] = data, self.writes

    def create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.put(key, data)
        return True

    def replace(self, key: str, data: bytes, tag: str) -> bool:
        found = self.objects.get(key)
        if found is None or str(found[1]) != tag:
            return False
        self.put(key, data)
        return True

    def get(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise NotFoundError(f"there is no object `{key}` in the simulated store")
        data, version = self.objects[key]
        return data, str(version)

    def below(self, folder: str) -> dict[str, int]:
        return {key: len(data) for key, (data, _) in sorted(self.objects.items()) if key.startswith(folder)}


class SimulatedStore(ObjectStore):
    """One process's client of a bucket. Without a trouble, every call works at once."""

    def __init__(self, bucket: Bucket, trouble: Trouble | None) -> None:
        self._bucket = bucket
        self._trouble = trouble

    def put_if_absent(self, key: str, data: bytes) -> bool:
        check_key(key)
        return self._act(f"put {key}", lambda: self._bucket.create(key, bytes(data)), *Fate)

    def put_if_match(self, key: str, data: bytes, tag: str | None) -> bool:
        if tag is None:
            return self.put_if_absent(key, data)
        check_key(key)
        return self._act(f"replace {key}", lambda: self._bucket.replace(key, bytes(data), tag), *Fate)

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        check_key(key)
        return self._look(f"get {key}", lambda: self._bucket.get(key))

    def list(self, prefix: str, after: str | None = None) -> list[str]:
        return [key for key in self.sizes(prefix) if after is None or key > after]

    def sizes(self, prefix: str) -> dict[str, int]:
        folder = check_prefix(prefix)
        return self._look(f"list {folder}", lambda: self._bucket.below(folder))

    def delete(self, key: str) -> None:
        check_key(key)
        self._act(f"delete {key}", lambda: self._bucket.objects.pop(key, None), *Fate)

    def close(self) -> None:
        """Nothing is open."""

    def _look(self, what: str, call: Callable[[], T]) -> T:
        trouble = self._trouble
        return call() if trouble is None else trouble.look(what, call, trouble.rates.store, RetryableError)

    def _act(self, what: str, call: Callable[[], T], *fates: Fate) -> T:
        trouble = self._trouble
        if trouble is None:
            return call()
        # The records of the log are few among all objects, and decide everything.
        crash = trouble.rates.crash * (4 if "/checkpoints/" in what else 1)
        return trouble.act(what, call, trouble.rates.store, RetryableError, *fates, crash=crash)
