"""Logs problems of side inputs while the run continues."""

from __future__ import annotations

import logging
from collections.abc import Set

logger = logging.getLogger(__name__)
REPEAT_SECONDS = 60.0


class SideTroubles:
    """Logs each problem when it begins, again each minute while it lasts, and its end. Used by one thread."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}
        """Text of each current problem → when it was last logged."""

    def look(self, texts: Set[str], now: float) -> None:
        """Log the current problems. `now`: monotonic seconds."""
        if not texts and not self._logged:
            return
        for text in sorted(texts):
            if now - self._logged.get(text, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                self._logged[text] = now
                logger.error("side inputs fail; their stores keep what they have, and the job keeps trying: %s", text)
        ended = self._logged.keys() - texts
        self._logged = {text: at for text, at in self._logged.items() if text in texts}
        if ended and not self._logged:
            logger.warning("side inputs fill their stores again")
