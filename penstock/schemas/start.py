"""Schema registries in the start of a job: the serdes of an application are connected with the registry."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from penstock.api.serdes import Serde
from penstock.config.model import JobConfig
from penstock.config.settings import SchemaRegistrySettings
from penstock.errors import ConfigError, SystemAwayError
from penstock.graph.serdes import with_output_serdes, with_serdes
from penstock.graph.specs import ApplicationGraph
from penstock.job.paths import JobPaths
from penstock.schemas.serde import Connection, SchemaSerde
from penstock.start.part import StartPart

logger = logging.getLogger(__name__)


def with_registry(graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
    """The graph whose serdes find the registry. Nothing is asked of it yet.

    Raises:
        ConfigError: a serde has a registry, and the configuration has no address of one.
    """
    given, paths = config.schema_registry, JobPaths(config.job.name, config.job.id)

    def connected(serde: Serde[Any]) -> Serde[Any]:
        if not isinstance(serde, SchemaSerde) or serde.registry is None:
            return serde
        options = _options(given, serde.registry.url)
        return serde.connected(Connection.of(options, config.job.root, config.job.root_keys, paths))

    return with_serdes(graph, connected)


def with_registered(graph: ApplicationGraph) -> ApplicationGraph:
    """The graph whose outputs have the ids of their schemas, and whose inputs without a schema have the newest one of
    their subject.

    Raises:
        ConfigError: an output has no schema.
        IncompatibleError, NotFoundError, SystemAwayError, SystemRefusedError: the registry's answer.
    """
    inputs = {id(serde) for op in graph.sources for serde in (op.key_serde, op.value_serde)}
    graph = with_serdes(graph, lambda serde: _completed(serde) if id(serde) in inputs else serde)
    return with_output_serdes(graph, lambda serde: serde.registered() if isinstance(serde, SchemaSerde) else serde)


def _completed(serde: Serde[Any]) -> Serde[Any]:
    if not isinstance(serde, SchemaSerde) or serde.registry is None or serde.schema is not None:
        return serde
    try:
        return serde.completed()
    except SystemAwayError as error:
        logger.warning("%s. Messages are read with the schemas that this job has met before", error)
        return serde


def _options(given: Mapping[str, str], url: str | None) -> dict[str, str]:
    options = {**given, **({} if url is None else {"url": url})}
    if "url" not in options:
        raise ConfigError(
            f"`{SchemaRegistrySettings.url.name}` is missing: the application has a serde with a schema registry. Set "
            "it to the registry's address, as http://registry:8081"
        )
    return options


class SchemasStart(StartPart):
    """The part of schema registries in a start."""

    def connect(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """With serdes that know the registry, and have their schemas from it."""
        return with_registered(with_registry(graph, config))
