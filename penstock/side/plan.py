"""The sources of stores that the application does not write, completed by the configuration. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.api.side_inputs import SideInputsProcessorFactory
from penstock.checkpoint.changelog_marker import BACKEND as CHANGELOG_STREAM
from penstock.config.model import JobConfig, named_class
from penstock.config.settings import StoreSettings
from penstock.errors import ConfigError
from penstock.graph.side_declarations import check_side_store, read_only
from penstock.graph.specs import ApplicationGraph
from penstock.graph.stores import OPERATOR_STORES, SideInputs, SideStream, StoreSpec

BACKUP = "blob"
"""The only backend that may back up a store filled by side inputs, so that another host begins with the copy."""


def with_side_inputs(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The application with the side inputs that the configuration names, checked.

    Raises:
        ConfigError: the configuration contradicts the application, names a class that cannot be loaded, or uses a side
            input, or a store that is only read, for something else.
    """
    stores = tuple(_filled(spec, config) for spec in graph.stores)
    filled = graph if stores == graph.stores else replace(graph, stores=stores)
    written = {op.writes_table: op.id for op in filled.operators}
    for spec in filled.side_stores:
        if spec.name in written:
            raise ConfigError(f"`{written[spec.name]}` writes table `{spec.name}`, but {read_only(spec)}")
        _check_backup(spec, config)
    _check_streams(filled, config)
    return filled


def is_backed_up(config: JobConfig, store: str) -> bool:
    """True if the content of a store that side inputs fill is backed up: only its own key can say so."""
    return StoreSettings.backup_factories.full(store) in config.origins


def backed_up_side_stores(graph: ApplicationGraph, config: JobConfig) -> tuple[str, ...]:
    return tuple(
        spec.name for spec in graph.side_stores if isinstance(spec.side, SideInputs) and is_backed_up(config, spec.name)
    )


def _filled(spec: StoreSpec, config: JobConfig) -> StoreSpec:
    settings = config.store(spec.name)
    broadcast = StoreSettings.side_broadcast.full(spec.name)
    if broadcast in config.origins and not settings.side_inputs:
        raise ConfigError(
            f"`{broadcast}` ({config.origin(broadcast)}): `{StoreSettings.side_inputs.full(spec.name)}` names no side "
            f"inputs. Where the application names them, it says broadcast= in app.{spec.kind}(...)"
        )
    if not settings.side_inputs and settings.side_processor is None:
        return spec
    inputs, factory = StoreSettings.side_inputs.full(spec.name), StoreSettings.side_processor.full(spec.name)
    side = spec.side
    if settings.side_inputs:
        where = f"`{inputs}` ({config.origin(inputs)})"
        if side is not None:
            raise ConfigError(
                f"{where}: the application says what fills store `{spec.name}`. Remove the key, or the argument of "
                f"app.{spec.kind}(...)"
            )
        if spec.name.endswith(OPERATOR_STORES):
            raise ConfigError(f"{where}: store `{spec.name}` belongs to an operator, which alone writes it")
        key, value = spec.key_serde.for_keys(), spec.value_serde
        streams = tuple(SideStream(stream, key, value) for stream in settings.side_inputs)
        side = SideInputs(streams, broadcast=settings.side_broadcast)
    if settings.side_processor is not None:
        where = f"`{factory}` = `{settings.side_processor}` ({config.origin(factory)})"
        if not isinstance(side, SideInputs):
            raise ConfigError(
                f"{where}: store `{spec.name}` has no side inputs whose messages a processor could process: name them "
                f"in `{inputs}`, or with side_inputs= of app.{spec.kind}(...)"
            )
        if side.processor is not None:
            raise ConfigError(
                f"{where}: the application gives the processor of store `{spec.name}`: remove one of them"
            )
        side = replace(side, processor=_factory(settings.side_processor, where))
    filled = replace(spec, side=side)
    check_side_store(filled)
    return filled


def _factory(name: str, where: str) -> SideInputsProcessorFactory:
    base: type[Any] = SideInputsProcessorFactory
    found = named_class(name, base, "penstock.SideInputsProcessorFactory", where)
    try:
        factory: SideInputsProcessorFactory = found()
    except Exception as error:  # the user's code
        raise ConfigError(f"{where}: calling it without arguments failed: {type(error).__name__}: {error}") from error
    return factory


def _check_backup(spec: StoreSpec, config: JobConfig) -> None:
    """Raise ConfigError for a backup that a side store cannot have. Keys for all stores do not apply to it."""
    changelog = StoreSettings.changelog.full(spec.name)
    if changelog in config.origins:
        raise ConfigError(
            f"`{changelog}` ({config.origin(changelog)}): store `{spec.name}` has no changelog, because "
            f"{_filler(spec)}. Remove the key"
        )
    for each in (StoreSettings.backup_factories, StoreSettings.restore_factories):
        key = each.full(spec.name)
        if key not in config.origins:
            continue
        given = config.resolved.find(each, spec.name)
        if not isinstance(spec.side, SideInputs):
            raise ConfigError(
                f"`{key}` ({config.origin(key)}): store `{spec.name}` is not backed up, because {_filler(spec)}, whose "
                "versions the job keeps. Remove the key"
            )
        if spec.side.broadcast or config.store(spec.name).factory == "memory":
            what = "has everything in each container" if spec.side.broadcast else "is in memory"
            raise ConfigError(
                f"`{key}` ({config.origin(key)}): store `{spec.name}` {what}, which is not backed up. Remove the key: "
                "then a host that does not have the store fills it from its side inputs"
            )
        if given != (BACKUP,):
            raise ConfigError(
                f"`{key}` = `{','.join(given)}` ({config.origin(key)}): {_filler(spec)}, so it has no changes of the "
                f"job that a changelog could hold. `{BACKUP}` keeps copies of its content, with which another host "
                "begins; or remove the key: then the store is filled from its side inputs"
            )


def _filler(spec: StoreSpec) -> str:
    if isinstance(spec.side, SideInputs):
        return f"side inputs fill store `{spec.name}`"
    return f"a pushed table fills store `{spec.name}`"


def _check_streams(graph: ApplicationGraph, config: JobConfig) -> None:
    """Raise ConfigError for a side input that the job itself writes. Its messages are not part of the batch's state:
    a run that breaks off leaves messages that no later run takes back."""
    written = {op.stream: f"the intermediate stream of `{op.writer}`" for op in graph.intermediates}
    written |= {spec.stream: "an output of the application" for spec in graph.outputs}
    if config.task.dead_letter_stream is not None:
        written[config.task.dead_letter_stream] = "the dead-letter stream of the job"
    for spec in graph.written_stores:
        if CHANGELOG_STREAM in (settings := config.store(spec.name)).backup_factories:
            written[settings.changelog] = f"the changelog of store `{spec.name}`"
    for stream, (spec, *_) in graph.side_streams().items():
        if stream in written:
            raise ConfigError(
                f"the side input `{stream}` of store `{spec.name}` is {written[stream]}: a job cannot fill a store "
                "with what it writes itself, since a batch that runs again writes again. Send the messages to a table, "
                "with .send_to(table), which has each of them once; or let another job fill the stream"
            )
