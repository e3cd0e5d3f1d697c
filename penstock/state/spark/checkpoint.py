"""The checkpoint folder of a Spark query: which batches are committed, which operators keep which state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import CorruptError, IncompatibleError, NotFoundError
from penstock.metadata.object_store import ObjectStore
from penstock.state.spark.lineage import PartitionFiles, Version

DEFAULT_STORE = "default"
_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB = "RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One state store of an operator."""

    name: str
    partitions: int
    prefix_columns: int
    schema_files: tuple[str, ...]
    """The names of its schema files, the newest last, where the metadata names them."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """A stateful operator. `variables` has the state variables of a transformWithState and their types."""

    number: int
    name: str
    stores: Mapping[str, StoreFacts]
    variables: Mapping[str, str]


class SparkCheckpoint:
    """Reads `<checkpoint>/`: `commits`, `offsets`, and `state/<operator>/<partition>/[<store>/]`. Writes nothing."""

    def __init__(self, files: ObjectStore, url: str) -> None:
        self.files = files
        self.url = url
        """What it is called in messages."""

    def committed(self) -> int:
        """The last committed batch. Raises NotFoundError if there is none, or this is no checkpoint."""
        batches = [int(name) for name in self._names("commits") if name.isdigit()]
        if not batches:
            raise NotFoundError(
                f"`{self.url}` has no commits/: it is not the checkpointLocation of a query, or no batch was committed"
            )
        return max(batches)

    def check_batch(self, batch: int) -> None:
        """Raise NotFoundError unless the batch is committed, IncompatibleError if its state cannot be read here."""
        if batch > (last := self.committed()):
            raise NotFoundError(f"batch {batch} is not committed in `{self.url}`; the last one that is is {last}")
        conf = self._conf(batch)
        provider = conf.get(_PREFIX + "providerClass", _ROCKSDB)
        if not provider.endswith(_ROCKSDB):
            raise IncompatibleError(
                f"the query of `{self.url}` keeps its state with {provider}; read is that of {_ROCKSDB} only"
            )
        if (encoding := conf.get(_PREFIX + "encodingFormat", "unsaferow")) != "unsaferow":
            raise IncompatibleError(f"the state of `{self.url}` is encoded as {encoding}; read is unsaferow only")
        if conf.get(_PREFIX + "rowChecksum.enabled", "false") == "true":
            raise IncompatibleError(f"the state of `{self.url}` has row checksums ({_PREFIX}rowChecksum.enabled)")

    def source_offsets(self, batch: int) -> list[str]:
        """How far the batch read each of the query's sources, in each source's own words. Raises as `check_batch`."""
        return [line.decode(errors="replace") for line in self._offset_lines(batch)[2:] if line.strip()]

    def operators(self) -> list[int]:
        """The numbers of the stateful operators."""
        found = {key.split("/")[1] for key in self.files.list("state")}
        return sorted(int(name) for name in found if name.isdigit())

    def operator(self, number: int, batch: int) -> OperatorFacts:
        """What is known of an operator as of a batch. Raises NotFoundError, CorruptError."""
        known = self.operators()
        if number not in known:
            there = ", ".join(map(str, known)) or "none"
            raise NotFoundError(f"`{self.url}` has no stateful operator {number}; it has: {there}")
        key = self._operator_metadata(number, batch)
        if key is None:
            return self._found_operator(number)
        version, _, text = self.files.get(key).partition(b"\n")
        if version not in {b"v1", b"v2"}:
            raise IncompatibleError(f"operator metadata `{key}` has version {version[:20]!r}; read are v1 and v2")
        try:
            return _operator(number, orjson.loads(text))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"operator metadata `{key}` of `{self.url}` is damaged: {error}") from error

    def schema_key(self, operator: int, store: StoreFacts) -> str:
        """Where the schema of a store lies. Raises NotFoundError."""
        below = f"state/{operator}/_stateSchema/{store.name}"
        named = [name for name in store.schema_files if name in self._names(below)]
        if named:
            return f"{below}/{named[-1]}"
        key = f"{self.folder(operator, 0, store.name)}/_metadata/schema"
        if key not in self.files.list(f"{self.folder(operator, 0, store.name)}/_metadata"):
            raise NotFoundError(f"`{self.url}` has no state schema: neither `{key}` nor one in `{below}`")
        return key

    def folder(self, operator: int, partition: int, store: str) -> str:
        """The folder of one partition of a store."""
        base = f"state/{operator}/{partition}"
        return base if store == DEFAULT_STORE else f"{base}/{store}"

    def partition(self, operator: int, partition: int, store: str) -> PartitionFiles:
        """The files of one partition of a store."""
        folder = self.folder(operator, partition, store)
        return PartitionFiles.of(folder, self._names(folder))

    def version(self, operator: int, batch: int, files: PartitionFiles, partition: int) -> Version:
        """The version of a partition that a batch has made. Its checkpoint id, if there are any, is in the commit."""
        number = batch + 1
        ids = self._checkpoint_ids(operator, batch, partition)
        if not ids:
            return Version(number)
        for own in (Version(number, each) for each in ids):
            if own in files.snapshots | files.changelogs:
                return own
        raise NotFoundError(
            f"`{files.folder}` has no file of version {number} with a checkpoint id that commits/{batch} names: "
            + ", ".join(ids)
        )

    def _checkpoint_ids(self, operator: int, batch: int, partition: int) -> Sequence[str]:
        """The ids of all stores of the partition; which of them is which store's, their files say."""
        key = f"commits/{batch}"
        try:
            document = orjson.loads(self.files.get(key).partition(b"\n")[2])
            partitions = document.get("stateUniqueIds", {}).get(str(operator), [])
            return [str(each) for each in partitions[partition]] if partitions else []
        except (orjson.JSONDecodeError, AttributeError, TypeError, IndexError) as error:
            raise CorruptError(f"`{key}` of `{self.url}` is damaged: {error}") from error

    def _conf(self, batch: int) -> dict[str, str]:
        try:
            document = orjson.loads(self._offset_lines(batch)[1])
            return {str(name): str(value) for name, value in document.get("conf", {}).items()}
        except (orjson.JSONDecodeError, AttributeError, IndexError) as error:
            raise CorruptError(f"`offsets/{batch}` of `{self.url}` is damaged: {error}") from error

    def _offset_lines(self, batch: int) -> list[bytes]:
        key = f"offsets/{batch}"
        try:
            return self.files.get(key).split(b"\n")
        except NotFoundError:
            raise NotFoundError(f"`{key}` is missing in `{self.url}`: nothing says how the state is written") from None

    def _operator_metadata(self, number: int, batch: int) -> str | None:
        """The newest one at or below the batch, of those that come with one; else the only one; None before Spark 4."""
        below = f"state/{number}/_metadata"
        batches = [int(name) for name in self._names(f"{below}/v2") if name.isdigit()]
        if fitting := [each for each in batches if each <= batch]:
            return f"{below}/v2/{max(fitting)}"
        return f"{below}/metadata" if "metadata" in self._names(below) else None

    def _found_operator(self, number: int) -> OperatorFacts:
        """Without metadata: what the folders say."""
        numbers, stores = set(), set()
        for key in self.files.list(f"state/{number}"):
            parts = key.split("/")[2:]
            if len(parts) > 1 and parts[0].isdigit():
                numbers.add(int(parts[0]))
                of_store = len(parts) > 2 and parts[1] not in {"SSTs", "logs", "_metadata"}
                stores.add(parts[1] if of_store else DEFAULT_STORE)
        facts = {name: StoreFacts(name, len(numbers), 0, ()) for name in sorted(stores)}
        return OperatorFacts(number, "unknown", facts, {})

    def _names(self, folder: str) -> set[str]:
        """The names of the files directly in a folder."""
        return {key[len(folder) + 1 :] for key in self.files.list(folder) if "/" not in key[len(folder) + 1 :]}


def _operator(number: int, document: Mapping[str, Any]) -> OperatorFacts:
    stores = {
        str(each["storeName"]): StoreFacts(
            str(each["storeName"]),
            int(each["numPartitions"]),
            int(each.get("numColsPrefixKey", 0)),
            tuple(str(path).rsplit("/", 1)[-1] for path in each.get("stateSchemaFilePaths", ())),
        )
        for each in document["stateStoreInfo"]
    }
    properties = orjson.loads(document.get("operatorPropertiesJson") or "{}")
    variables = {
        str(each["stateName"]): str(each["stateVariableType"]) for each in properties.get("stateVariables", ())
    }
    return OperatorFacts(number, str(document["operatorInfo"]["operatorName"]), stores, variables)
