"""Penstock for programs that are written for PySpark: `import penstock.spark as pss`."""

from typing import TYPE_CHECKING

__all__ = [
    "ApplicationStream",
    "Rows",
    "TransformedStream",
    "read_changes",
    "read_state",
    "run_application",
    "transform_with_state",
]

if TYPE_CHECKING:
    from penstock.spark.applications import ApplicationStream, run_application
    from penstock.spark.rows import Rows
    from penstock.spark.state_frames import read_changes, read_state
    from penstock.spark.transform import TransformedStream, transform_with_state
else:  # unknown to type checkers, for which a misspelled name stays an error
    _MODULES = {
        "applications": "ApplicationStream run_application",
        "rows": "Rows",
        "state_frames": "read_changes read_state",
        "transform": "TransformedStream transform_with_state",
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name):
        """A public name. Its module is imported when it is used: a Python worker needs none of them."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'penstock.spark' has no attribute '{name}'")
        import importlib

        module = importlib.import_module(f"penstock.spark.{_MODULE_OF[name]}")
        globals()[name] = getattr(module, name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})


del TYPE_CHECKING
