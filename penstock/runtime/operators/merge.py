"""merge: everything of several streams."""

from __future__ import annotations

from penstock.api.graph import MergeSpec
from penstock.runtime.operators.base import PassingOperator


class Merge(PassingOperator[MergeSpec]):
    """The messages of every operator that it reads."""
