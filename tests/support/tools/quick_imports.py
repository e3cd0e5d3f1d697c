"""Packages that take seconds to import, and that nothing here uses."""

from __future__ import annotations

import sys


def without_grammars() -> None:
    """Keep jsonschema from importing `rfc3987_syntax`, where that is installed: it builds 38 grammars, for formats that
    Penstock does not check, which takes as long as importing all of Penstock twice."""
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
