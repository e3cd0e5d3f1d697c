"""Checks that a configuration fits an application. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from penstock.api.ssp import SystemStream
from penstock.checkpoint.versions.changelog_marker import BACKEND
from penstock.checkpoint.versions.v2 import VERSION as V2
from penstock.config.model import JobConfig
from penstock.config.settings import StoreSettings, StreamSettings
from penstock.errors import ConfigError
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import SideInputs
from penstock.refusals import Refusals
from penstock.side.plan import side_input_of, side_streams

_OF_INPUTS = (
    StreamSettings.offset_default,
    StreamSettings.reset_offset,
    StreamSettings.idle_ms,
    StreamSettings.bootstrap,
    StreamSettings.priority,
)


def check_config(graph: ApplicationGraph, config: JobConfig) -> None:
    """Raise ConfigError, with all reasons, if the configuration does not fit the application's stores and outputs."""
    outputs = {spec.stream for spec in graph.outputs} | {config.task.dead_letter_stream}
    refusals = Refusals("the configuration does not fit the application")
    refusals.note_all(_unknown_stores(graph, config))
    refusals.note_all(_retained_others(config, outputs))
    refusals.note_all(_wrong_guarantees(graph, config, outputs))
    refusals.note_all(_configured_side_inputs(graph, config))
    refusals.note_all(_skipped_losses(graph, config))
    refusals.note_all(_unread_versions((spec.name for spec in graph.written_stores), config))
    refusals.check()


def _unknown_stores(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    known = {spec.name for spec in graph.stores}
    for name in config.store_names:
        if name not in known:
            stores = ", ".join(f"`{store}`" for store in sorted(known)) or "none"
            yield ConfigError(f"`stores.{name}.*` is configured, but the application has the stores: {stores}")


def _retained_others(config: JobConfig, outputs: Container[SystemStream | None]) -> Iterator[ConfigError]:
    for stream in config.retained_streams:
        if stream not in outputs:
            yield ConfigError(
                f"`streams.{stream}.retention.*` is configured, but `{stream}` is not an output of the application. "
                f"Change the retention of other streams with `penstock stream retain {stream}`"
            )


def _wrong_guarantees(
    graph: ApplicationGraph, config: JobConfig, outputs: Container[SystemStream | None]
) -> Iterator[ConfigError]:
    """The configuration wants exactly-once output in streams that are no outputs."""
    between = {reader.stream for reader in graph.intermediates}
    for stream in config.exactly_once_streams:
        name = StreamSettings.output_guarantee.full(str(stream))
        if stream in between:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is an intermediate stream. Every message in it counts "
                "once in any case, because checkpoints record how far it is read. Remove the key"
            )
        elif stream not in outputs:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is not an output of the application. Correct its name, "
                f"or remove the key. In a file for several jobs, `jobs.<job name>.{name}` is for one of them"
            )


def _configured_side_inputs(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    """The configuration says where a side input is read from, which follows from its store. Or it keeps a store in
    columns that is written while it is read."""
    for spec in graph.side_stores:
        name = StoreSettings.factory.full(spec.name)
        if isinstance(spec.side, SideInputs) and config.store(spec.name).factory == "columns":
            yield ConfigError(
                f"`{name}` ({config.origin(name)}) = columns: store `{spec.name}` is filled by side inputs while "
                "batches read it. Set it to rocksdb or memory; stores that the job writes and pushed tables can be in "
                "columns"
            )
    inputs = {op.stream for op in graph.inputs}
    for stream, specs in side_streams(graph).items():
        for key in _OF_INPUTS:
            name = key.full(str(stream))
            if stream not in inputs and name in config.origins:
                yield ConfigError(
                    f"`{name}` ({config.origin(name)}): `{stream}` is {side_input_of(s.name for s in specs)}. It is "
                    "read from where the content of the store ends, else from its oldest message, before the first "
                    "batch and beside the others, and holds no watermark back. Remove the key"
                )


def _skipped_losses(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    """Losses of a stream that is no input should be skipped, and the job needs all of it."""
    inputs = {op.stream for op in graph.inputs}
    used = {op.stream for op in graph.intermediates} | {spec.stream for spec in graph.outputs} | {*side_streams(graph)}
    used |= {config.store(spec.name).changelog for spec in graph.written_stores}
    for stream in sorted(used - inputs):
        name = StreamSettings.on_data_loss.full(str(stream))
        if name in config.origins:
            yield ConfigError(
                f"`{name}` ({config.origin(name)}): `{stream}` is not an input of the application, and nothing of it "
                "may be skipped. Remove the key"
            )


def _unread_versions(stores: Iterable[str], config: JobConfig) -> Iterator[ConfigError]:
    """Checkpoints must be written in a version that can hold the markers of every store, and be read in it."""
    write, read = config.task.checkpoint_write_versions, config.task.checkpoint_read_versions
    used = next(version for version in read if version in write)
    if used == V2:
        return
    lost = sorted(store for store in stores if BACKEND not in config.store(store).backup_factories)
    if lost:
        yield ConfigError(
            f"checkpoints would be read in version {used} (task.checkpoint.write.versions is "
            f"{','.join(map(str, write))}, task.checkpoint.read.versions {','.join(map(str, read))}), which holds "
            f"markers of `{BACKEND}` only. The stores {', '.join(f'`{store}`' for store in lost)} are not backed up "
            f"to it, so no start could restore them. Add it to their backup.factories, or write and read version {V2}"
        )
