"""Look at a job and change it, from a program or a notebook: status, checkpoints, startpoints, state and streams.

The command line calls these functions and prints the frozen values that they return. Nothing here prints, asks or needs
Spark. Errors are those of `penstock`. Notes and warnings are logged, under `penstock.admin`.

The examples in this package look at a job `flights`. Two runs of it have read four messages of the stream `trips`, and
added up the miles of each aircraft in the store `miles`.

Example:
    >>> from penstock import admin
    >>> with admin.open_all_jobs() as jobs:
    ...     [(status.job, status.status) for status in admin.statuses(jobs)]
    [('flights-1', 'not running')]
"""

from typing import TYPE_CHECKING

from penstock.base import lazy_names

if TYPE_CHECKING:
    from penstock.admin.checkpoint.change import CheckpointChange as CheckpointChange
    from penstock.admin.checkpoint.change import WrittenCheckpoint as WrittenCheckpoint
    from penstock.admin.checkpoint.change import plan_offsets as plan_offsets
    from penstock.admin.checkpoint.change import write_checkpoint as write_checkpoint
    from penstock.admin.checkpoint.facts import CheckpointFacts as CheckpointFacts
    from penstock.admin.checkpoint.facts import ListedCheckpoint as ListedCheckpoint
    from penstock.admin.checkpoint.facts import checkpoints as checkpoints
    from penstock.admin.checkpoint.facts import read_checkpoint as read_checkpoint
    from penstock.admin.checkpoint.labels import LabelFacts as LabelFacts
    from penstock.admin.checkpoint.labels import label_checkpoint as label_checkpoint
    from penstock.admin.checkpoint.labels import unlabel_checkpoint as unlabel_checkpoint
    from penstock.admin.configuration import EffectiveValue as EffectiveValue
    from penstock.admin.configuration import KeyFacts as KeyFacts
    from penstock.admin.configuration import effective_values as effective_values
    from penstock.admin.configuration import key_facts as key_facts
    from penstock.admin.job.delete import JobContent as JobContent
    from penstock.admin.job.delete import delete_job as delete_job
    from penstock.admin.job.delete import job_content as job_content
    from penstock.admin.job.deploy import Deployment as Deployment
    from penstock.admin.job.drain import DrainFacts as DrainFacts
    from penstock.admin.job.drain import DrainMonitor as DrainMonitor
    from penstock.admin.job.drain import DrainUtils as DrainUtils
    from penstock.admin.job.drain import ExportedDrains as ExportedDrains
    from penstock.admin.job.drain import cancel_drain as cancel_drain
    from penstock.admin.job.drain import drain as drain
    from penstock.admin.job.drain import export_drains as export_drains
    from penstock.admin.job.drain import import_drains as import_drains
    from penstock.admin.job.fork import DetachedFacts as DetachedFacts
    from penstock.admin.job.fork import ForkFacts as ForkFacts
    from penstock.admin.job.fork import detach as detach
    from penstock.admin.job.fork import fork as fork
    from penstock.admin.job.logs import AuditRecord as AuditRecord
    from penstock.admin.job.logs import LogLine as LogLine
    from penstock.admin.job.logs import UnreadableAuditRecord as UnreadableAuditRecord
    from penstock.admin.job.logs import audit as audit
    from penstock.admin.job.logs import container_logs as container_logs
    from penstock.admin.job.look import status as status
    from penstock.admin.job.look import statuses as statuses
    from penstock.admin.job.ownership import SigningFacts as SigningFacts
    from penstock.admin.job.ownership import adopt as adopt
    from penstock.admin.job.ownership import sign as sign
    from penstock.admin.job.running import LeaseFacts as LeaseFacts
    from penstock.admin.job.running import StopFacts as StopFacts
    from penstock.admin.job.running import lease as lease
    from penstock.admin.job.running import stop as stop
    from penstock.admin.job.status import JobStatus as JobStatus
    from penstock.admin.job.status import UnreadableJob as UnreadableJob
    from penstock.admin.job.status import graph as graph
    from penstock.admin.jobs import FoundJob as FoundJob
    from penstock.admin.jobs import open_all_jobs as open_all_jobs
    from penstock.admin.jobs import open_job as open_job
    from penstock.admin.samza import export_checkpoint as export_checkpoint
    from penstock.admin.samza import plan_import as plan_import
    from penstock.admin.startpoint.set import AskedFacts as AskedFacts
    from penstock.admin.startpoint.set import import_startpoints as import_startpoints
    from penstock.admin.startpoint.set import set_startpoint as set_startpoint
    from penstock.admin.startpoint.waiting import DeletedFacts as DeletedFacts
    from penstock.admin.startpoint.waiting import ExportedStartpoints as ExportedStartpoints
    from penstock.admin.startpoint.waiting import FannedOut as FannedOut
    from penstock.admin.startpoint.waiting import RequestFacts as RequestFacts
    from penstock.admin.startpoint.waiting import delete_startpoints as delete_startpoints
    from penstock.admin.startpoint.waiting import export_startpoints as export_startpoints
    from penstock.admin.startpoint.waiting import fan_out as fan_out
    from penstock.admin.startpoint.waiting import startpoints as startpoints
    from penstock.admin.state.edit import EditFacts as EditFacts
    from penstock.admin.state.edit import EntryChange as EntryChange
    from penstock.admin.state.edit import StateEdit as StateEdit
    from penstock.admin.state.edit import edit_state as edit_state
    from penstock.admin.state.edit import plan_edit as plan_edit
    from penstock.admin.state.held import CollectedGarbage as CollectedGarbage
    from penstock.admin.state.held import StateFacts as StateFacts
    from penstock.admin.state.held import collect_garbage as collect_garbage
    from penstock.admin.state.held import state_versions as state_versions
    from penstock.admin.state.reading import OpenDiff as OpenDiff
    from penstock.admin.state.reading import OpenStore as OpenStore
    from penstock.admin.state.reading import StateVerdict as StateVerdict
    from penstock.admin.state.reading import StoredEntry as StoredEntry
    from penstock.admin.state.reading import Watcher as Watcher
    from penstock.admin.state.reading import open_diff as open_diff
    from penstock.admin.state.reading import open_state as open_state
    from penstock.admin.state.reading import verify as verify
    from penstock.admin.state.repartition import MovedStore as MovedStore
    from penstock.admin.state.repartition import Repartition as Repartition
    from penstock.admin.state.repartition import RepartitionFacts as RepartitionFacts
    from penstock.admin.state.repartition import plan_repartition as plan_repartition
    from penstock.admin.state.repartition import repartition as repartition
    from penstock.admin.state.spark_import import ImportFacts as ImportFacts
    from penstock.admin.state.spark_import import SparkImport as SparkImport
    from penstock.admin.state.spark_import import import_spark as import_spark
    from penstock.admin.state.spark_import import plan_spark_import as plan_spark_import
    from penstock.admin.stream.found import FoundStream as FoundStream
    from penstock.admin.stream.found import Message as Message
    from penstock.admin.stream.found import StreamTail as StreamTail
    from penstock.admin.stream.found import open_stream as open_stream
    from penstock.admin.stream.publish import Published as Published
    from penstock.admin.stream.publish import PublishOptions as PublishOptions
    from penstock.admin.stream.publish import publish as publish
    from penstock.admin.stream.records import MalformedRecordError as MalformedRecordError
    from penstock.admin.stream.replay import ReplayedLetters as ReplayedLetters
    from penstock.admin.stream.replay import replay as replay
    from penstock.admin.stream.streams import DeletedStream as DeletedStream
    from penstock.admin.stream.streams import ListedStream as ListedStream
    from penstock.admin.stream.streams import StreamFacts as StreamFacts
    from penstock.admin.stream.streams import StreamUse as StreamUse
    from penstock.admin.stream.streams import create_stream as create_stream
    from penstock.admin.stream.streams import delete_stream as delete_stream
    from penstock.admin.stream.streams import describe_stream as describe_stream
    from penstock.admin.stream.streams import end_stream as end_stream
    from penstock.admin.stream.streams import set_retention as set_retention
    from penstock.admin.stream.streams import stream_use as stream_use
    from penstock.admin.stream.streams import streams as streams
    from penstock.admin.table import TableVersions as TableVersions
    from penstock.admin.table import table_versions as table_versions
    from penstock.admin.table import use_table as use_table
    from penstock.checkpoint.task_values import Checkpoint as Checkpoint
    from penstock.checkpoint.task_values import CheckpointV1 as CheckpointV1
    from penstock.checkpoint.task_values import CheckpointV2 as CheckpointV2
    from penstock.job.shown import GraphEdge as GraphEdge
    from penstock.job.shown import GraphOperator as GraphOperator
    from penstock.job.shown import GraphStage as GraphStage
    from penstock.job.shown import JobGraph as JobGraph
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)


del TYPE_CHECKING, lazy_names
