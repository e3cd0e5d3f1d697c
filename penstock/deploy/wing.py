"""Deployments as a wing: one job takes over from another one at a checkpoint. The record that hands over is the only
decision of which of the two is in charge.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.log import CheckpointLog
from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section
from penstock.facts import Facts
from penstock.job.paths import JobPaths
from penstock.objects.store import ObjectStore
from penstock.wing import Wing

DEPLOY_WING = Wing("deploy", start="penstock.deploy.start:DeployStart", facts="penstock.deploy.wing:shown_deployment")


@dataclass(frozen=True, slots=True)
class DeploySection:
    """`handed_to`: the job, name and id, that is in charge from this checkpoint on; empty: this one is.
    `took_over`: the job that this one has taken over from, just here."""

    handed_to: str = ""
    took_over: str = ""


DEPLOY = Section("deploy", DeploySection, needed=True)


def handed_to(view: LogView) -> str:
    """The job that is in charge, by the log of one that has handed over; empty: that one is."""
    return "" if view.latest is None else view.latest.section(DEPLOY).handed_to


def shown_deployment(objects: ObjectStore, paths: JobPaths, run_id: str | None) -> Facts:
    """Who is in charge, for `penstock status`."""
    successor = handed_to(CheckpointLog(objects, paths).read("report"))
    return Facts({"handed over to": successor}) if successor else Facts({})
