"""Penstock: stateful stream processing in Python on Apache Spark.

The examples in docstrings of the package begin with these imports:

    import penstock as ps
    from penstock import admin
    from penstock.testing import TestRunner
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Ascending",
    "BoundedOutOfOrderness",
    "Bytes",
    "ConfigError",
    "ContainerLostError",
    "CorruptError",
    "Count",
    "Counter",
    "Distinct",
    "Double",
    "DrainListenerTask",
    "DrainMessage",
    "DrainMode",
    "DrainNotification",
    "EndOfStreamMessage",
    "Entry",
    "ExpiredTimer",
    "FencedError",
    "First",
    "Gauge",
    "IncomingMessageEnvelope",
    "IncompatibleError",
    "Integer",
    "IntermediateMessageSerde",
    "Job",
    "Json",
    "KeyValueStore",
    "Last",
    "LeaseHeldError",
    "Long",
    "Max",
    "Mean",
    "MessageCollector",
    "MessageStream",
    "MessageType",
    "MetricsRegistry",
    "Min",
    "NotFoundError",
    "PenstockError",
    "PenstockTimeoutError",
    "PushedTable",
    "RetryableError",
    "SamzaDouble",
    "SamzaInteger",
    "SamzaLong",
    "Serde",
    "SerdeError",
    "SideInput",
    "SideInputsProcessor",
    "SideInputsProcessorFactory",
    "Startpoint",
    "StartpointOldest",
    "StartpointSpecific",
    "StartpointTimestamp",
    "StartpointUpcoming",
    "StartpointVisitor",
    "StreamApplication",
    "StreamTask",
    "String",
    "Sum",
    "SystemAwayError",
    "SystemStream",
    "SystemStreamPartition",
    "TableCandidate",
    "TaskApplication",
    "TaskContext",
    "TaskCoordinator",
    "TimeWindow",
    "Timer",
    "Trigger",
    "Triggers",
    "Tuple",
    "UserCodeError",
    "WatermarkMessage",
    "WatermarkPolicy",
    "Window",
    "WindowPane",
    "WindowableTask",
    "Windows",
]

if TYPE_CHECKING:
    from penstock.api.exports import *
    from penstock.engine.job import Job
    from penstock.metadata.lease import LeaseHeldError
else:  # unknown to type checkers, for which a misspelled name stays an error
    _APART = {"Job": "penstock.engine.job", "LeaseHeldError": "penstock.metadata.lease"}

    def __getattr__(name):
        """A public name. All of them are loaded when the first one is used, except those that need much more."""
        if name not in __all__:
            raise AttributeError(f"module 'penstock' has no attribute '{name}'")
        import importlib

        if name in _APART:
            globals()[name] = getattr(importlib.import_module(_APART[name]), name)
        else:
            exports = importlib.import_module("penstock.api.exports")
            globals().update({each: getattr(exports, each) for each in __all__ if each not in _APART})
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})


del TYPE_CHECKING
