"""Penstock: stateful stream processing in Python on Apache Spark.

The examples in docstrings of the package begin with these imports:

    import penstock as ps
    from penstock import admin
    from penstock.testing import TestRunner
"""

from typing import TYPE_CHECKING

from penstock.base import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.api.expressions import Expression as Expression
    from penstock.api.expressions import col as col
    from penstock.api.intermediate import DrainMessage as DrainMessage
    from penstock.api.intermediate import EndOfStreamMessage as EndOfStreamMessage
    from penstock.api.intermediate import IntermediateMessageSerde as IntermediateMessageSerde
    from penstock.api.intermediate import MessageType as MessageType
    from penstock.api.intermediate import WatermarkMessage as WatermarkMessage
    from penstock.api.key_state import ListState as ListState
    from penstock.api.key_state import MapState as MapState
    from penstock.api.key_state import ValueState as ValueState
    from penstock.api.messages import Headers as Headers
    from penstock.api.messages import IncomingMessageEnvelope as IncomingMessageEnvelope
    from penstock.api.requests import DrainMode as DrainMode
    from penstock.api.requests import DrainNotification as DrainNotification
    from penstock.api.requests import Startpoint as Startpoint
    from penstock.api.requests import StartpointOldest as StartpointOldest
    from penstock.api.requests import StartpointSpecific as StartpointSpecific
    from penstock.api.requests import StartpointTimestamp as StartpointTimestamp
    from penstock.api.requests import StartpointUpcoming as StartpointUpcoming
    from penstock.api.requests import StartpointVisitor as StartpointVisitor
    from penstock.api.serdes import Bytes as Bytes
    from penstock.api.serdes import Columns as Columns
    from penstock.api.serdes import Double as Double
    from penstock.api.serdes import Integer as Integer
    from penstock.api.serdes import Json as Json
    from penstock.api.serdes import Long as Long
    from penstock.api.serdes import SamzaDouble as SamzaDouble
    from penstock.api.serdes import SamzaInteger as SamzaInteger
    from penstock.api.serdes import SamzaLong as SamzaLong
    from penstock.api.serdes import Serde as Serde
    from penstock.api.serdes import String as String
    from penstock.api.serdes import Tuple as Tuple
    from penstock.api.side_inputs import Entry as Entry
    from penstock.api.side_inputs import PushedTable as PushedTable
    from penstock.api.side_inputs import SideInput as SideInput
    from penstock.api.side_inputs import SideInputsProcessor as SideInputsProcessor
    from penstock.api.side_inputs import SideInputsProcessorFactory as SideInputsProcessorFactory
    from penstock.api.side_inputs import TableCandidate as TableCandidate
    from penstock.api.ssp import SystemStream as SystemStream
    from penstock.api.ssp import SystemStreamPartition as SystemStreamPartition
    from penstock.api.store import ColumnStore as ColumnStore
    from penstock.api.store import KeyValueStore as KeyValueStore
    from penstock.api.store import Table as Table
    from penstock.api.task import BatchCollector as BatchCollector
    from penstock.api.task import BatchProcessor as BatchProcessor
    from penstock.api.task import BatchProcessorContext as BatchProcessorContext
    from penstock.api.task import DrainListenerTask as DrainListenerTask
    from penstock.api.task import MessageBatch as MessageBatch
    from penstock.api.task import StreamTask as StreamTask
    from penstock.api.task import WindowableTask as WindowableTask
    from penstock.api.task_context import MessageCollector as MessageCollector
    from penstock.api.task_context import TaskContext as TaskContext
    from penstock.api.task_context import TaskCoordinator as TaskCoordinator
    from penstock.api.time.aggregates import Aggregate as Aggregate
    from penstock.api.time.aggregates import Count as Count
    from penstock.api.time.aggregates import Distinct as Distinct
    from penstock.api.time.aggregates import First as First
    from penstock.api.time.aggregates import Last as Last
    from penstock.api.time.aggregates import Max as Max
    from penstock.api.time.aggregates import Mean as Mean
    from penstock.api.time.aggregates import Min as Min
    from penstock.api.time.aggregates import Sum as Sum
    from penstock.api.time.aggregates import TopN as TopN
    from penstock.api.time.aggregates import Variance as Variance
    from penstock.api.time.firing import Ascending as Ascending
    from penstock.api.time.firing import BoundedOutOfOrderness as BoundedOutOfOrderness
    from penstock.api.time.firing import ExpiredTimer as ExpiredTimer
    from penstock.api.time.firing import TimeWindow as TimeWindow
    from penstock.api.time.firing import Trigger as Trigger
    from penstock.api.time.firing import Triggers as Triggers
    from penstock.api.time.firing import WatermarkPolicy as WatermarkPolicy
    from penstock.api.time.firing import WindowPane as WindowPane
    from penstock.api.time.sketches import ApproxDistinct as ApproxDistinct
    from penstock.api.time.sketches import ApproxQuantiles as ApproxQuantiles
    from penstock.api.time.windows import Window as Window
    from penstock.api.time.windows import Windows as Windows
    from penstock.application.application import StreamApplication as StreamApplication
    from penstock.application.message_stream import MessageStream as MessageStream
    from penstock.application.task_application import TaskApplication as TaskApplication
    from penstock.driver.job import Job as Job
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import ContainerLostError as ContainerLostError
    from penstock.errors import CorruptError as CorruptError
    from penstock.errors import FencedError as FencedError
    from penstock.errors import IncompatibleError as IncompatibleError
    from penstock.errors import NotFoundError as NotFoundError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import PenstockTimeoutError as PenstockTimeoutError
    from penstock.errors import RetryableError as RetryableError
    from penstock.errors import SerdeError as SerdeError
    from penstock.errors import SystemAwayError as SystemAwayError
    from penstock.errors import SystemRefusedError as SystemRefusedError
    from penstock.errors import UserCodeError as UserCodeError
    from penstock.job.lease import LeaseHeldError as LeaseHeldError
    from penstock.metrics.registry import Counter as Counter
    from penstock.metrics.registry import Gauge as Gauge
    from penstock.metrics.registry import MetricsRegistry as MetricsRegistry
    from penstock.metrics.registry import Timer as Timer
    from penstock.schemas.avro import Avro as Avro
    from penstock.schemas.json_schema import JsonSchema as JsonSchema
    from penstock.schemas.protobuf import Protobuf as Protobuf
    from penstock.schemas.registry import SchemaRegistry as SchemaRegistry
    from penstock.schemas.structs import Struct as Struct
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)


del TYPE_CHECKING, lazy_names
