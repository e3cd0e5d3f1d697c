"""Shadows as a wing: jobs whose effects are held back. Each checkpoint of a shadow says that it is one's."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.checkpoint.sections import Section
from penstock.wing import Wing

SHADOW_WING = Wing("shadow", start="penstock.shadow.start:ShadowStart", driver="penstock.shadow.driver:ShadowDriver")


@dataclass(frozen=True, slots=True)
class ShadowSection:
    """`held`: what the job has sent since its fork, or since its beginning, was held back."""

    held: bool = False


SHADOW = Section("shadow", ShadowSection, needed=True)
