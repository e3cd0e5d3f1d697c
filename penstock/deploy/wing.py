"""Deployments as a wing: one job takes over from another one at a checkpoint. The record that hands over is the only
decision of which of the two is in charge.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.log_view import LogView
from penstock.checkpoint.sections import Section
from penstock.errors import IncompatibleError
from penstock.facts import Facts
from penstock.wing import Wing

DEPLOY_WING = Wing(
    "deploy",
    start="penstock.deploy.start:DeployStart",
    driver="penstock.deploy.driver:DeployDriver",
)


@dataclass(frozen=True, slots=True)
class DeploySection:
    """The charge of a job, by its last checkpoint."""

    handed_to: str = ""
    """The job, name and id, that is in charge in place of this one; empty: this one is."""
    took_over: str = ""
    """The job that this one has taken over from, the last time."""
    given_up: bool = False
    """The job never takes over: it had been handed the charge, and the old one has taken it back."""


DEPLOY = Section("deploy", DeploySection, needed=True)


def handed_to(view: LogView) -> str:
    """The job that is in charge, by the log of one that has handed over; empty: that one is."""
    return "" if view.latest is None else view.latest.section(DEPLOY).handed_to


def shown_deployment(view: LogView) -> Facts:
    """Who is in charge, for `penstock status`."""
    section = DeploySection() if view.latest is None else view.latest.section(DEPLOY)
    lines = {"handed over to": section.handed_to, "took over from": section.took_over}
    if section.given_up:
        lines["has given up"] = "it never takes over"
    return Facts({name: text for name, text in lines.items() if text})


def refuse_handed(view: LogView, job: str) -> None:
    """Raise IncompatibleError if a job has handed over: a change of its checkpoint would leave its successor, and the
    way back, without the checkpoint that they go by."""
    if successor := handed_to(view):
        raise IncompatibleError(
            f"job `{job}` has handed over to job `{successor}`, so its last checkpoint stays as it is: change that "
            f"job, or a fork of this one (`penstock fork {job} NAME`)"
        )
