"""Reading one store of a Spark query at one batch, partition by partition."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import ConfigError, IncompatibleError, NotFoundError
from penstock.spark.state_import.engine import PartitionEngine
from penstock.spark.state_import.files.changelog import read_head
from penstock.spark.state_import.files.checkpoint import OperatorFacts, SparkCheckpoint, StoreFacts
from penstock.spark.state_import.files.lineage import RestoreSteps, StatePartitionFiles, Version, plan_rebuild
from penstock.spark.state_import.files.snapshot import fetch_snapshot
from penstock.spark.state_import.rows import EntryDecoder, entry_decoder
from penstock.spark.state_import.schema import DEFAULT_FAMILY, EntrySchema, read_schema

_LIST = "ListState"


@dataclass(frozen=True, slots=True)
class SparkState:
    """One store of a query, or one state variable (column family) of it, as of one batch."""

    checkpoint: SparkCheckpoint
    operator: OperatorFacts
    store: StoreFacts
    variable: str | None
    """None if the store has no column families."""
    batch: int
    schema: EntrySchema
    is_list: bool

    @property
    def name(self) -> str:
        of = "" if self.variable is None else f", variable `{self.variable}`"
        return f"store `{self.store.name}` of operator {self.operator.number}{of}"

    def decoder(self) -> EntryDecoder:
        """A function from the bytes of an entry to its key and value. Raises IncompatibleError."""
        return entry_decoder(self.schema, "rows" if self.is_list else "row", self.name)

    def check(self) -> None:
        """Check, by the names of files only, that every partition can be rebuilt. Raises as `entries`."""
        for partition in range(self.store.partitions):
            self._plan(partition)

    def entries(self, partition: int, scratch: Path) -> Generator[tuple[bytes, bytes], None, None]:
        """The entries of a partition, by key, in Spark's bytes, without the number of the column family.

        `scratch` is a separate folder, which this makes and removes. Close the generator if it is left before its end.

        Raises:
            NotFoundError, CorruptError: naming the file that is missing or damaged.
            IncompatibleError: files of a version or codec that is not known.
        """
        plan, files = self._plan(partition), self.checkpoint.files
        folder = self.checkpoint.folder(self.operator.number, partition, self.store.name)
        try:
            families: Mapping[str, int] = {}
            if plan.snapshot is not None:
                families = fetch_snapshot(files, folder, plan.snapshot.snapshot, scratch)
            prefix = self._prefix(families, folder)
            with closing(PartitionEngine(scratch)) as engine:
                for version in plan.changelogs:
                    name = f"{folder}/{version.changelog}"
                    engine.replay(files.get(name), name)
                for key, value in engine.scan(prefix or None, _after(prefix)):
                    yield key[len(prefix) :], value
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _plan(self, partition: int) -> RestoreSteps:
        checkpoint, number = self.checkpoint, self.operator.number
        files = checkpoint.partition(number, partition, self.store.name)
        wanted = checkpoint.version(number, self.batch, files, partition)
        return plan_rebuild(files, wanted, lambda version: self._lineage(files, version))

    def _lineage(self, files: StatePartitionFiles, version: Version) -> Mapping[int, str]:
        name = f"{files.folder}/{version.changelog}"
        return read_head(self.checkpoint.files.get(name), name).lineage

    def _prefix(self, families: Mapping[str, int], folder: str) -> bytes:
        """First bytes of the keys: the number of the column family, in the byte order of the machine that wrote it."""
        if self.variable is None and not families:
            return b""
        family = self.variable or DEFAULT_FAMILY
        if family not in families:
            raise IncompatibleError(
                f"in `{folder}` no snapshot at or below version {self.batch + 1} says which number variable "
                f"`{family}` has in the keys. Run the query once more until one is uploaded"
            )
        return families[family].to_bytes(2, "little")


def open_state(
    checkpoint: SparkCheckpoint, operator: int, store: str, variable: str | None, batch: int | None
) -> SparkState:
    """The state of a store as of a batch; the last committed one if none is named.

    `variable` names the state variable of a transformWithState; it may be left out if there is only one.

    Raises:
        NotFoundError: there is no such operator, store, variable or batch; names those there are.
        ConfigError: a variable must be named.
        IncompatibleError, CorruptError: it cannot be read.
    """
    batch = checkpoint.committed() if batch is None else batch
    checkpoint.check_batch(batch)
    facts = checkpoint.operator(operator, batch)
    if store not in facts.stores:
        raise NotFoundError(
            f"operator {operator} ({facts.name}) has no store `{store}`; it has: {_named(facts.stores)}"
        )
    key = checkpoint.schema_key(operator, facts.stores[store])
    families = read_schema(checkpoint.files.get(key), key, facts.stores[store].prefix_columns)
    chosen = _choose(families, variable, f"store `{store}` of operator {operator} ({facts.name})")
    is_list = facts.variables.get(chosen or "") == _LIST
    schema = families[chosen or DEFAULT_FAMILY]
    return SparkState(checkpoint, facts, facts.stores[store], chosen, batch, schema, is_list)


def _choose(families: Mapping[str, EntrySchema], variable: str | None, where: str) -> str | None:
    if families.keys() == {DEFAULT_FAMILY}:
        if variable is not None:
            raise NotFoundError(f"{where} has no state variables, so no `{variable}`")
        return None
    users = [name for name in families if not name.startswith("$")]  # the others are Spark's own: timers, indexes
    if variable is None and len(users) == 1:
        return users[0]
    if variable is None:
        raise ConfigError(f"{where} has the state variables {_named(users)}: name one of them")
    if variable not in families:
        raise NotFoundError(f"{where} has no state variable `{variable}`; it has: {_named(users)}")
    return variable


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def _after(prefix: bytes) -> bytes | None:
    """The first key after all keys with the prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return None if number >> 8 * len(prefix) else number.to_bytes(len(prefix), "big")
