"""For all tests."""

from __future__ import annotations

import os

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and tables would be as narrow
