"""Time, retries, texts, documents, plugins: nothing here knows jobs.

Every package may import it, and it imports only `penstock.errors` and others of its room. Every import of Penstock
begins here, so this file loads nothing but what Python has loaded anyway.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package: the names that it imports under `if TYPE_CHECKING`, for
    type checkers. They are read from its source, which therefore has to be installed."""
    spec = sys.modules[package].__spec__
    source = spec.loader.get_source(package)  # type: ignore[union-attr]
    module_of = {
        alias.name: str(node.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        found = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted({*vars(sys.modules[package]), *module_of}), sorted(module_of)
