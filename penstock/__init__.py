"""Penstock: stateful stream processing in Python on Apache Spark."""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "Bytes",
    "ConfigError",
    "ContainerLostError",
    "CorruptError",
    "Double",
    "FencedError",
    "IncomingMessageEnvelope",
    "IncompatibleError",
    "Integer",
    "Json",
    "KeyValueStore",
    "Long",
    "MessageCollector",
    "MessageStream",
    "NotFoundError",
    "PenstockError",
    "PenstockTimeoutError",
    "RetryableError",
    "SamzaDouble",
    "SamzaInteger",
    "SamzaLong",
    "Serde",
    "Startpoint",
    "StartpointOldest",
    "StartpointSpecific",
    "StartpointTimestamp",
    "StartpointUpcoming",
    "StartpointVisitor",
    "StreamApplication",
    "StreamTask",
    "String",
    "SystemStream",
    "SystemStreamPartition",
    "TaskApplication",
    "TaskContext",
    "TaskCoordinator",
    "Tuple",
    "UserCodeError",
]

if TYPE_CHECKING:
    from penstock.api.exports import *
else:  # unknown to type checkers, for which a misspelled name stays an error

    def __getattr__(name):
        """A public name. All of them are loaded when the first one is used."""
        if name not in __all__:
            raise AttributeError(f"module 'penstock' has no attribute '{name}'")
        from penstock.api import exports

        globals().update({each: getattr(exports, each) for each in __all__})
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})


del TYPE_CHECKING
