"""Schema registries in the start of a job."""

from __future__ import annotations

from penstock.config.model import JobConfig
from penstock.graph.specs import ApplicationGraph
from penstock.schemas.connect import with_registered, with_registry
from penstock.start.part import StartPart


class SchemasStart(StartPart):
    """The part of schema registries in a start."""

    def connect(self, graph: ApplicationGraph, config: JobConfig) -> ApplicationGraph:
        """With serdes that know the registry, and have their schemas from it."""
        return with_registered(with_registry(graph, config))
