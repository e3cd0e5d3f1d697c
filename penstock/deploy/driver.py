"""The part of deployments in the driver: each checkpoint says who is in charge."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.checkpoint.sections import SectionValues
from penstock.deploy.wing import DEPLOY, DeploySection
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart, RunContext


class DeployDriver(DriverPart):
    """Carries the section on. A run of a job that has handed over is that of a shadow: it does not bring it back."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        latest = run.job.log.known().latest_before(run.job.claim)
        self._section = DeploySection() if latest is None else latest.section(DEPLOY)

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        return {DEPLOY: self._section}
