"""The part of shadows in the driver: each checkpoint says whether the job is one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.checkpoint.sections import SectionValues
from penstock.driver.feed.boundary import Boundary
from penstock.driver.part import DriverPart
from penstock.shadow.wing import SHADOW, ShadowSection


class ShadowDriver(DriverPart):
    """Gives each record its section."""

    def sections(self, boundary: Boundary, uploaded: Sequence[msgspec.Raw]) -> SectionValues:
        return {SHADOW: ShadowSection(self.run.job.config.job.shadow_enabled)}
