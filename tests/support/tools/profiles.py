"""The number of examples of a property test, as a part of those of the profile in `tests/conftest.py`."""

from __future__ import annotations

from hypothesis import settings


def examples(of_profile: float) -> settings:
    """For tests whose examples cost much less (above 1) or much more (below 1) than those of others."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=round(profile.max_examples * of_profile))
