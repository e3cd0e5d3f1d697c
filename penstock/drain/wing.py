"""Draining as a wing: requests to process everything in flight, and then to end."""

from __future__ import annotations

from penstock.wing import Wing

DRAIN_WING = Wing("drain", driver="penstock.drain.driver.drain:Drain")
