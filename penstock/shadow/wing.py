"""Shadows as a wing: jobs whose effects are held back. Each checkpoint of a shadow says that it is one's."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section
from penstock.config.model import JobConfig
from penstock.config.settings import JobSettings
from penstock.errors import ConfigError
from penstock.wing import Wing

SHADOW_WING = Wing("shadow", start="penstock.shadow.start:ShadowStart", driver="penstock.shadow.driver:ShadowDriver")


@dataclass(frozen=True, slots=True)
class ShadowSection:
    """`held`: the output of the job since its fork, or since its beginning, was held back. `unsent`: nothing was
    sent since: the job is a fork that has not run, or another job is in charge."""

    held: bool = False
    unsent: bool = False


SHADOW = Section("shadow", ShadowSection, needed=True)


def refuse_loud(config: JobConfig, view: LogView, job: str) -> None:
    """Raise ConfigError if a job is a shadow, and the configuration does not say so: its streams would be looked for,
    and changed, where they are not."""
    if view.latest is not None and view.latest.section(SHADOW).held and not config.job.shadow_enabled:
        key = JobSettings.shadow_enabled.name
        raise ConfigError(
            f"job `{job}` is a shadow, whose streams are held back in a folder: give the command `-c {key}=true`, too"
        )
