"""The part of shadows in a start."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.base.wording import listed
from penstock.checkpoint.streams import CHANGELOG_STREAM, ChangelogStreamMarker
from penstock.checkpoint.task_versions import markers_of
from penstock.config.settings import JobSettings, StoreSettings
from penstock.errors import ConfigError, IncompatibleError
from penstock.shadow.wing import SHADOW
from penstock.start.part import StartPart
from penstock.start.plan import StartFacts, StartPlan

if TYPE_CHECKING:
    from penstock.checkpoint.record import CheckpointRecord
    from penstock.config.model import JobConfig
    from penstock.graph.specs import ApplicationGraph

_KEY = JobSettings.shadow_enabled.name


class ShadowStart(StartPart):
    """Output is held back from a job's first checkpoint on, or never, but for a job that hands over or takes over."""

    def misfits(self, graph: ApplicationGraph, config: JobConfig) -> Iterable[ConfigError]:
        """A shadow would read what it holds back itself, in place of what the job has written."""
        read = {op.stream for op in graph.inputs} | set(graph.side_streams())
        looped = sorted(read & {spec.stream for spec in graph.outputs})
        if config.job.shadow_enabled and looped:
            yield ConfigError(
                f"`{_KEY}`: the application reads {listed([f'`{stream}`' for stream in looped])}, which it writes as "
                "well, so what is written cannot be held back. Read another stream"
            )

    def check(self, facts: StartFacts, plan: StartPlan) -> None:
        """Refuse a shadow that continues from output that was sent, and a job that continues from held output."""
        config, latest, job = facts.config, facts.view.latest, facts.job
        begins = latest is None or latest.section(SHADOW).unsent
        was, begin = latest is not None and latest.section(SHADOW).held, plan.restore_from
        if begin is not None and begin.section(SHADOW).held and not was:
            raise IncompatibleError(
                f"checkpoint {begin.id} is of the time when the output of job `{job}` was held back, so a start with "
                "it would leave a gap in the output. Begin with a later checkpoint"
            )
        if was and not config.job.shadow_enabled:
            raise IncompatibleError(
                f"job `{job}` is a shadow: what it has sent so far was held back in {config.job.shadow_folder}, and no "
                f"output has it. Start it with `{_KEY}=true`. For a job that sends, fork again (`penstock fork`)"
            )
        if config.job.shadow_enabled and not was and not begins:
            raise IncompatibleError(
                f"`{_KEY}`: job `{job}` has sent output, and would leave a gap in it. Make the shadow a fork of the "
                f"job: `penstock fork {job} NAME`, and start that one with `{_KEY}=true`"
            )
        if config.job.shadow_enabled and latest is not None and not was:
            _refuse_its_parents_changelog(facts, latest)


def _refuse_its_parents_changelog(facts: StartFacts, fork: CheckpointRecord) -> None:
    """A shadow's own changelog is in a folder, so that it cannot have the name of one that is restored from."""
    for task in range(fork.task_count):
        for store, marker in markers_of(fork, task).get(CHANGELOG_STREAM, {}).items():
            stream = ChangelogStreamMarker.parse(marker).ssp.system_stream
            if stream == facts.config.store(store).changelog:
                key = StoreSettings.changelog.full(store)
                raise ConfigError(
                    f"`{key}`: the changelog `{stream}` is that of the job that `{facts.job}` was forked from. "
                    f"Give the shadow another one, as `-c {key}={stream}-{facts.job}`"
                )
