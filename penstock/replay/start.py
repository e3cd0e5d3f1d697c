"""The part of replays in a start: whether the job can make the batches of another one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.config.settings import JobSettings
from penstock.errors import ConfigError, IncompatibleError
from penstock.replay.wing import REPLAY
from penstock.start.part import StartPart

if TYPE_CHECKING:
    from penstock.config.model import JobConfig
    from penstock.graph.specs import ApplicationGraph
    from penstock.start.plan import StartFacts, StartPlan


_JOB = re.compile(r".+-[^-]+")


class ReplayStart(StartPart):
    """A job that follows another one is a shadow, and has no durable streams."""

    def check(self, facts: StartFacts, plan: StartPlan) -> None:
        """Name the way on if a job that has followed another one is started to send. The part of shadows refuses it."""
        latest = facts.view.latest
        followed = "" if latest is None else latest.section(REPLAY).followed.job
        if followed and not facts.config.job.shadow_enabled:
            raise IncompatibleError(
                f"job `{facts.job}` makes the batches of job `{followed}`, with its output held back. To let it take "
                f"over: `penstock deploy {followed.rpartition('-')[0]} APP`"
            )

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterable[ConfigError]:
        key, job = JobSettings.replay_follows.name, config.job
        if job.replay_follows is None:
            return
        if not job.shadow_enabled:
            shadow = JobSettings.shadow_enabled.name
            yield ConfigError(
                f"`{key}`: a job that makes the batches of job `{job.replay_follows}` would send its output a second "
                f"time: set `{shadow}=true`, too, or let it take over with `penstock deploy`"
            )
        if not _JOB.fullmatch(job.replay_follows):
            yield ConfigError(f"`{key}`: `{job.replay_follows}` is no job's name and id, such as `flights-1`")
        if job.replay_follows == f"{job.name}-{job.id}":
            yield ConfigError(f"`{key}`: job `{job.replay_follows}` cannot follow itself")
        if graph.intermediates:
            yield ConfigError(
                f"`{key}`: the application has the durable stream `{min(graph.intermediates, key=str).stream}`, and "
                "checkpoints do not say in which batches messages of such streams were read. Follow with an "
                "application that has none"
            )
