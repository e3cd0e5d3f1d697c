"""The public names of `penstock`, except `Job` and `LeaseHeldError`. This module is imported when the first of them is
used, because the command line needs few."""

from __future__ import annotations

from penstock.api.aggregates import (
    Aggregate,
    Count,
    Distinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Sum,
)
from penstock.api.application import StreamApplication, TaskApplication
from penstock.api.drain import DrainMode, DrainNotification
from penstock.api.intermediate import (
    DrainMessage,
    EndOfStreamMessage,
    IntermediateMessageSerde,
    MessageType,
    WatermarkMessage,
)
from penstock.api.key_state import ListState, MapState, ValueState
from penstock.api.message_stream import MessageStream
from penstock.api.serdes import (
    Bytes,
    Double,
    Integer,
    Json,
    Long,
    SamzaDouble,
    SamzaInteger,
    SamzaLong,
    Serde,
    String,
    Tuple,
)
from penstock.api.side_inputs import (
    Entry,
    PushedTable,
    SideInput,
    SideInputsProcessor,
    SideInputsProcessorFactory,
    TableCandidate,
)
from penstock.api.ssp import SystemStream, SystemStreamPartition
from penstock.api.startpoint import (
    Startpoint,
    StartpointOldest,
    StartpointSpecific,
    StartpointTimestamp,
    StartpointUpcoming,
    StartpointVisitor,
)
from penstock.api.store import KeyValueStore
from penstock.api.tables import Table
from penstock.api.task import (
    DrainListenerTask,
    IncomingMessageEnvelope,
    MessageCollector,
    StreamTask,
    TaskContext,
    TaskCoordinator,
    WindowableTask,
)
from penstock.api.timers import ExpiredTimer
from penstock.api.triggers import (
    Trigger,
    Triggers,
)
from penstock.api.watermarks import Ascending, BoundedOutOfOrderness, WatermarkPolicy
from penstock.api.windows import (
    TimeWindow,
    Window,
    WindowPane,
    Windows,
)
from penstock.errors import (
    ConfigError,
    ContainerLostError,
    CorruptError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    PenstockError,
    PenstockTimeoutError,
    RetryableError,
    SerdeError,
    SystemAwayError,
    UserCodeError,
)
from penstock.metrics.registry import MetricsRegistry
from penstock.metrics.values import Counter, Gauge, Timer

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
    "Json",
    "KeyValueStore",
    "Last",
    "ListState",
    "Long",
    "MapState",
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
    "Table",
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
    "ValueState",
    "WatermarkMessage",
    "WatermarkPolicy",
    "Window",
    "WindowPane",
    "WindowableTask",
    "Windows",
]
