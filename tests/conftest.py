"""For all tests."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and tables would be as narrow

# Tests are not timed: neither an example nor the making of one. A failure prints what repeats it.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("test", _UNTIMED, max_examples=100, stateful_step_count=30)
settings.register_profile("deep", _UNTIMED, max_examples=500, stateful_step_count=50)
settings.load_profile("test")
