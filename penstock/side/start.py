"""Side inputs in the start of a job: which streams fill its stores, and what commands and containers know of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.api.serdes import ColumnSerde, Serde
from penstock.base.refusals import Refusals
from penstock.base.wording import listed
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings, StreamSettings
from penstock.errors import ConfigError, NotFoundError
from penstock.graph.serde_failures import declared
from penstock.graph.side_declarations import side_input_of
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs, StoreSpec
from penstock.objects.store import ObjectStore
from penstock.side.fill.code_text import code_text
from penstock.side.plan import backed_up_side_stores, with_side_inputs
from penstock.side.shown import SideStoreFacts, put_side_stores, side_store_board
from penstock.start.part import StartPart
from penstock.system.base import SystemAdmin

if TYPE_CHECKING:  # brings Arrow
    from penstock.start.job_plan import JobPlan

_OF_INPUTS = (
    StreamSettings.offset_default,
    StreamSettings.reset_offset,
    StreamSettings.idle_ms,
    StreamSettings.bootstrap,
    StreamSettings.priority,
)


class SideStart(StartPart):
    """The part of side inputs, and of pushed tables where they are stores that the job only reads, in a start."""

    def complete(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """With the side inputs that the configuration names."""
        return with_side_inputs(graph, config)

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
        """The configuration says where a side input is read from, which follows from its store. Or it keeps a store in
        columns that is written while it is read."""
        for spec in graph.side_stores:
            name = StoreSettings.factory.full(spec.name)
            if isinstance(spec.side, SideInputs) and config.store(spec.name).factory == "columns":
                yield ConfigError(
                    f"`{name}` ({config.origin(name)}) = columns: store `{spec.name}` is filled by side inputs while "
                    "batches read it. Set it to rocksdb or memory; stores that the job writes and pushed tables can "
                    "be in columns"
                )
        inputs = {op.stream for op in graph.inputs}
        for stream, specs in graph.side_streams().items():
            for key in _OF_INPUTS:
                name = key.full(str(stream))
                if stream not in inputs and name in config.origins:
                    what = side_input_of(spec.name for spec in specs)
                    yield ConfigError(
                        f"`{name}` ({config.origin(name)}): `{stream}` is {what}. It is read from where the content of "
                        "the store ends, else from its oldest message, before the first batch and beside the others, "
                        "and holds no watermark back. Remove the key"
                    )

    def check_streams(self, graph: ApplicationGraph, admins: Mapping[str, SystemAdmin], tasks: int) -> None:
        """Raise NotFoundError if a side input does not exist."""
        refusals = Refusals("side inputs are missing")
        for stream, specs in graph.side_streams().items():
            what = f"the side input `{stream}` of store {listed([f'`{spec.name}`' for spec in specs])}"
            create = f"`penstock stream create {stream} --partitions {tasks}`"
            try:
                admins[stream.system].partition_count(stream.stream)
            except NotFoundError as error:
                missing = NotFoundError(f"{what} does not exist: create it ({create}), or correct its name")
                missing.__cause__ = error
                refusals.note(missing)
        refusals.check()

    def backed_up(self, graph: ApplicationGraph, config: JobConfig) -> Sequence[str]:
        return backed_up_side_stores(graph, config)

    def claimed(self, plan: JobPlan, objects: ObjectStore) -> None:
        """Show the side stores of the run to commands."""
        stores = tuple(map(SideStoreFacts.of, plan.topology.graph.side_stores))
        put_side_stores(side_store_board(objects, plan.paths), stores)

    def for_containers(self, graph: ApplicationGraph) -> dict[str, str]:
        """The fingerprints of side stores. The driver makes them, because its processors have processed nothing: what
        they gather later must not look like another processor."""
        return side_fingerprints(graph)


def side_fingerprints(graph: ApplicationGraph) -> dict[str, str]:
    """Store → fingerprint of its serdes and processor, which make its content from the messages."""
    return {spec.name: _fingerprint(spec, spec.side) for spec in graph.stores if isinstance(spec.side, SideInputs)}


def _fingerprint(spec: StoreSpec, side: SideInputs) -> str:
    serdes = [_text(spec.key_serde), _text(spec.value_serde)]
    serdes += [f"{each.stream} {_text(each.key_serde)} {_text(each.value_serde)}" for each in side.streams]
    return hashlib.sha256("\n".join([*serdes, code_text(side.processor)]).encode()).hexdigest()[:16]


def _text(serde: Serde[Any]) -> str:
    """The declaration of a serde, with its schema if it has one."""
    return repr(serde) if isinstance(serde, ColumnSerde) else f"{declared(serde)} {serde.name}"
