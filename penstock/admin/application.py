"""What an application would read if its job started now."""

from __future__ import annotations

from contextlib import closing

from penstock.application.application import Application
from penstock.config.model import JobConfig
from penstock.side.plan import with_side_inputs
from penstock.start.grouping import Grouping
from penstock.start.startpoints.decide import JobInputs
from penstock.start.streams import JobStreams


def application_inputs(config: JobConfig, app: Application) -> tuple[Grouping, JobInputs]:
    """Which task reads what, and the ends of its inputs. Raises NotFoundError if an input does not exist."""
    graph = with_side_inputs(app.graph(), config)
    with closing(JobStreams.open(graph, config)) as streams:
        ends = streams.ends()
        grouping = streams.group(ends)
        return grouping, JobInputs(grouping.by_name, ends, streams.without_startpoints(graph, config))
