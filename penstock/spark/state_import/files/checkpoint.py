"""The checkpoint folder of a Spark query: its committed batches, and the state of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct, field

from penstock.base.documents import Count, decode, decoding
from penstock.errors import IncompatibleError, NotFoundError
from penstock.spark.state_import.files.lineage import StatePartitionFiles, Version

DEFAULT_STORE = "default"
_PREFIX = "spark.sql.streaming.stateStore."
_ROCKSDB = "RocksDBStateStoreProvider"


class StoreFacts(
    Struct,
    frozen=True,
    rename={
        "name": "storeName",
        "partitions": "numPartitions",
        "prefix_columns": "numColsPrefixKey",
        "schema_files": "stateSchemaFilePaths",
    },
):
    """One state store of an operator."""

    name: str
    partitions: Count
    prefix_columns: Count = 0
    schema_files: tuple[str, ...] = ()
    """The paths of its schema files, the newest last, where the metadata names them."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """A stateful operator. `variables`: the state variables of a transformWithState and their types; `expiring`: those
    of them with a time to live."""

    number: int
    name: str
    stores: Mapping[str, StoreFacts]
    variables: Mapping[str, str]
    expiring: frozenset[str] = frozenset()
    time_mode: str = ""


class CheckpointFiles(Protocol):
    """The files of a checkpoint location, by their paths in it."""

    def get(self, key: str, /) -> bytes:
        """Raises NotFoundError."""

    def list(self, prefix: str, /) -> list[str]:
        """All files below a folder; none if it does not exist."""


class SparkCheckpoint:
    """Reads `<checkpoint>/`: `commits`, `offsets`, and `state/<operator>/<partition>/[<store>/]`. Writes nothing."""

    def __init__(self, files: CheckpointFiles, url: str) -> None:
        self.files = files
        self.url = url

    def committed(self) -> int:
        """The last committed batch. Raises NotFoundError if there is none, or this is no checkpoint."""
        batches = [int(name) for name in self._names("commits") if name.isdigit()]
        if not batches:
            raise NotFoundError(
                f"`{self.url}` has no commits/: it is not the checkpointLocation of a query, or no batch was "
                "committed. Correct the location, or let the query commit a batch in PySpark first"
            )
        return max(batches)

    def check_batch(self, batch: int) -> None:
        """Raise NotFoundError unless the batch is committed, IncompatibleError if its state cannot be read here."""
        if batch > (last := self.committed()):
            raise NotFoundError(f"batch {batch} is not committed in `{self.url}`; the last committed one is {last}")
        conf = self._conf(batch)
        provider = conf.get(_PREFIX + "providerClass", _ROCKSDB)
        if not provider.endswith(_ROCKSDB):
            raise IncompatibleError(
                f"the query of `{self.url}` keeps its state with {provider}; only that of {_ROCKSDB} can be read"
            )
        if (encoding := conf.get(_PREFIX + "encodingFormat", "unsaferow")) != "unsaferow":
            raise IncompatibleError(f"the state of `{self.url}` is encoded as {encoding}; only unsaferow can be read")
        if conf.get(_PREFIX + "rowChecksum.enabled", "false") == "true":
            raise IncompatibleError(f"the state of `{self.url}` has row checksums ({_PREFIX}rowChecksum.enabled)")

    def query_id(self) -> str:
        """The id of the query, which distinguishes it from all others. Raises NotFoundError, CorruptError."""
        what = f"`metadata` of `{self.url}` is damaged"
        try:
            return decode(_Query, self.files.get("metadata"), what).id
        except NotFoundError:
            raise NotFoundError(f"`{self.url}` has no metadata: it is not the checkpointLocation of a query") from None

    def source_offsets(self, batch: int) -> list[str]:
        """The batch's end offset in each of the query's sources, in each source's own words. Raises as
        `check_batch`."""
        return [line.decode(errors="replace") for line in self._offset_lines(batch)[2:] if line.strip()]

    def operators(self) -> list[int]:
        found = {key.split("/")[1] for key in self.files.list("state")}
        return sorted(int(name) for name in found if name.isdigit())

    def operator(self, number: int, batch: int) -> OperatorFacts:
        """An operator as of a batch. Raises NotFoundError, CorruptError."""
        key = self._operator_metadata(number, batch)
        if key is None:
            known = self.operators()
            if number in known:
                return self._found_operator(number)
            there = ", ".join(map(str, known)) or "none"
            raise NotFoundError(f"`{self.url}` has no stateful operator {number}; it has: {there}")
        version, _, text = self.files.get(key).partition(b"\n")
        if version not in {b"v1", b"v2"}:
            raise IncompatibleError(
                f"operator metadata `{key}` has version {version[:20]!r}; versions v1 and v2 can be read"
            )
        return _operator(number, text, f"operator metadata `{key}` of `{self.url}` is damaged")

    def schema_key(self, operator: int, store: StoreFacts) -> str:
        """The path of a store's schema. Raises NotFoundError."""
        below = f"state/{operator}/_stateSchema/{store.name}"
        names = self._names(below)  # the paths in the metadata are those of where the query ran
        if named := [name for path in store.schema_files if (name := path.rpartition("/")[2]) in names]:
            return f"{below}/{named[-1]}"
        key = f"{self.folder(operator, 0, store.name)}/_metadata/schema"
        if key not in self.files.list(f"{self.folder(operator, 0, store.name)}/_metadata"):
            raise NotFoundError(f"`{self.url}` has no state schema: neither `{key}` nor one in `{below}`")
        return key

    def folder(self, operator: int, partition: int, store: str) -> str:
        base = f"state/{operator}/{partition}"
        return base if store == DEFAULT_STORE else f"{base}/{store}"

    def partition(self, operator: int, partition: int, store: str) -> StatePartitionFiles:
        folder = self.folder(operator, partition, store)
        return StatePartitionFiles.of(folder, self._names(folder))

    def check_last_partition(self, operator: OperatorFacts) -> None:
        """Raise NotFoundError if a store's last partition has no files. Spark's own reader counts folders, and would
        pass it over."""
        for store in operator.stores.values():
            folder = self.folder(operator.number, store.partitions - 1, store.name)
            if not self._names(folder):
                raise NotFoundError(f"`{folder}` of `{self.url}` has no files, and the operator has had it")

    def version(self, operator: int, batch: int, files: StatePartitionFiles, partition: int) -> Version:
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

    def has_checkpoint_ids(self, operator: int, batch: int) -> bool:
        """True if the versions of the operator's state have ids (format version 2)."""
        return bool(self._commit(batch).get(str(operator)))

    def _checkpoint_ids(self, operator: int, batch: int, partition: int) -> Sequence[str]:
        """The checkpoint ids of the partition's stores, in no order; match them by their file names."""
        with decoding(f"`commits/{batch}` of `{self.url}` is damaged"):
            partitions = self._commit(batch).get(str(operator))
            return partitions[partition] if partitions else []

    def _commit(self, batch: int) -> dict[str, list[list[str]]]:
        key = f"commits/{batch}"
        what = f"`{key}` of `{self.url}` is damaged"
        with decoding(what):
            return decode(_Commit, self.files.get(key).partition(b"\n")[2], what).state_unique_ids or {}

    def _conf(self, batch: int) -> dict[str, str]:
        what = f"`offsets/{batch}` of `{self.url}` is damaged"
        with decoding(what):
            return decode(_Offsets, self._offset_lines(batch)[1], what).conf

    def _offset_lines(self, batch: int) -> list[bytes]:
        key = f"offsets/{batch}"
        try:
            return self.files.get(key).split(b"\n")
        except NotFoundError:
            raise NotFoundError(f"`{key}`, which says how the state is written, is missing in `{self.url}`") from None

    def _operator_metadata(self, number: int, batch: int) -> str | None:
        """The newest metadata at or below the batch, of versions that have a batch; else the only one; None before
        Spark 4."""
        below = f"state/{number}/_metadata"
        batches = [int(name) for name in self._names(f"{below}/v2") if name.isdigit()]
        if fitting := [each for each in batches if each <= batch]:
            return f"{below}/v2/{max(fitting)}"
        return f"{below}/metadata" if "metadata" in self._names(below) else None

    def _found_operator(self, number: int) -> OperatorFacts:
        """The operator as its folders show it, without metadata."""
        numbers, stores = set(), set()
        for key in self.files.list(f"state/{number}"):
            parts = key.split("/")[2:]
            if len(parts) > 1 and parts[0].isdigit():
                numbers.add(int(parts[0]))
                of_store = len(parts) > 2 and parts[1] not in {"SSTs", "logs", "_metadata"}
                stores.add(parts[1] if of_store else DEFAULT_STORE)
        facts = {name: StoreFacts(name, len(numbers)) for name in sorted(stores)}
        return OperatorFacts(number, "unknown", facts, {})

    def _names(self, folder: str) -> set[str]:
        return {key[len(folder) + 1 :] for key in self.files.list(folder) if "/" not in key[len(folder) + 1 :]}


class _Commit(Struct, rename="camel"):
    state_unique_ids: dict[str, list[list[str]]] | None = None


class _Offsets(Struct, rename="camel"):
    conf: dict[str, str] = field(default_factory=dict)


class _Query(Struct):
    id: str


class _Operator(Struct, rename="camel"):
    operator_name: str


class _Metadata(Struct, rename="camel"):
    operator_info: _Operator
    state_store_info: tuple[StoreFacts, ...]
    operator_properties_json: str = ""


class _Variable(Struct, rename="camel"):
    state_name: str
    state_variable_type: str
    ttl_enabled: bool = False


class _Properties(Struct, rename="camel"):
    state_variables: tuple[_Variable, ...] = ()
    time_mode: str = ""


def _operator(number: int, text: bytes, what: str) -> OperatorFacts:
    written = decode(_Metadata, text, what)
    stores = {each.name: each for each in written.state_store_info}
    properties = decode(_Properties, written.operator_properties_json or "{}", what)
    variables = {each.state_name: each.state_variable_type for each in properties.state_variables}
    expiring = frozenset(each.state_name for each in properties.state_variables if each.ttl_enabled)
    name = written.operator_info.operator_name
    return OperatorFacts(number, name, stores, variables, expiring, properties.time_mode)
