"""How many examples a property test takes, as a part of those of the profile in `tests/conftest.py`."""

from __future__ import annotations

from hypothesis import settings


def examples(of_profile: float) -> settings:
    """For tests whose examples cost much less (above 1) or much more (below 1) than those of others.

    Example:
        >>> examples(0.25).max_examples == settings.default.max_examples // 4
        True
    """
    return settings(max_examples=round(settings.default.max_examples * of_profile))
