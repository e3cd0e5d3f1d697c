"""An application beside its configuration: what does not fit is refused, and what may surprise is said."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from penstock.api.ssp import SystemStream
from penstock.base.wording import listed
from penstock.checkpoint.streams import CHANGELOG_STREAM
from penstock.checkpoint.task_values import V2
from penstock.config.model import JobConfig
from penstock.config.settings import StreamSettings
from penstock.errors import ConfigError, Refusals
from penstock.graph.specs import ApplicationGraph, OperatorSpec
from penstock.start.part import StartPart


def check_config(graph: ApplicationGraph, config: JobConfig, parts: Iterable[StartPart]) -> None:
    """Raise ConfigError, with all reasons, if the configuration does not fit the application's stores and outputs."""
    outputs = {spec.stream for spec in graph.outputs} | {config.task.dead_letter_stream}
    refusals = Refusals("the configuration does not fit the application")
    refusals.note_all(_unknown_stores(graph, config))
    refusals.note_all(_retained_others(config, outputs))
    refusals.note_all(_wrong_guarantees(graph, config, outputs))
    for part in parts:
        refusals.note_all(part.misfits(graph, config))
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


def _skipped_losses(graph: ApplicationGraph, config: JobConfig) -> Iterator[ConfigError]:
    """Losses of a stream that is no input should be skipped, and the job needs all of it."""
    inputs = {op.stream for op in graph.inputs}
    used = {op.stream for op in graph.intermediates} | {spec.stream for spec in graph.outputs} | {*graph.side_streams()}
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
    lost = sorted(store for store in stores if CHANGELOG_STREAM not in config.store(store).backup_factories)
    if lost:
        yield ConfigError(
            f"checkpoints would be read in version {used} (task.checkpoint.write.versions is "
            f"{','.join(map(str, write))}, task.checkpoint.read.versions {','.join(map(str, read))}), which holds "
            f"markers of `{CHANGELOG_STREAM}` only. The stores {', '.join(f'`{store}`' for store in lost)} are not "
            f"backed up to it, so no start could restore them. Add it to their backup.factories, or write and read "
            f"version {V2}"
        )


def order_warnings(graph: ApplicationGraph, keeps_order: Callable[[SystemStream], bool]) -> Iterator[str]:
    """A warning for each operator whose results depend on an order that its messages do not have.

    Args:
        keeps_order: says of an input if its system keeps the order of messages across partitions. Asked for inputs of
            such operators alone.
    """
    reads: dict[str, frozenset[SystemStream]] = {}
    for op in graph.operators:
        own = frozenset([] if op.input_stream is None else [op.input_stream])
        reads[op.id] = own.union(*(reads[up] for up in op.upstream))
        if op.ordering is None and op.order_matters:
            unordered = sorted(str(stream) for stream in reads[op.id] if not keeps_order(stream))
            if unordered:
                yield _warning(op, unordered)


def _warning(op: OperatorSpec, streams: list[str]) -> str:
    names, one = listed([f"`{stream}`" for stream in streams]), len(streams) == 1
    order = 'declare order="event-time" for the operator, or ' if op.takes_order else ""
    return (
        f"the results of operator `{op.id}` depend on the order of messages, because {op.order_matters}. The "
        f"{'input' if one else 'inputs'} {names} {'spreads' if one else 'spread'} messages over several partitions, "
        f"which are read side by side, so later messages may come before earlier ones. To have an order, {order}have "
        f"{'the input' if one else 'each input'} read in order, or as one partition"
    )
