"""What an application would read if its job started now."""

from __future__ import annotations

from contextlib import closing

from penstock.api.application import Application
from penstock.config.model import JobConfig
from penstock.plan.grouping import Grouping
from penstock.plan.side_inputs import with_side_inputs
from penstock.plan.streams import JobStreams
from penstock.startpoint.decide import JobInputs


def application_inputs(config: JobConfig, app: Application) -> tuple[Grouping, JobInputs]:
    """Which task reads what, and the ends of its inputs. Raises NotFoundError if an input does not exist."""
    graph = with_side_inputs(app.graph(), config)
    with closing(JobStreams.open(graph, config)) as streams:
        ends = streams.ends()
        grouping = streams.group(ends)
        return grouping, JobInputs(grouping.by_name, ends, streams.without_startpoints(graph, config))
