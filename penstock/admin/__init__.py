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

__all__ = [
    "AskedFacts",
    "CheckpointChange",
    "CheckpointFacts",
    "CollectedGarbage",
    "DeletedFacts",
    "DeletedStream",
    "DrainFacts",
    "EffectiveValue",
    "ExportedDrains",
    "ExportedStartpoints",
    "FoundJob",
    "FoundStream",
    "ImportFacts",
    "JobContent",
    "JobStatus",
    "KeyFacts",
    "LeaseFacts",
    "ListedCheckpoint",
    "ListedStream",
    "MalformedRecordError",
    "Message",
    "OpenDiff",
    "OpenStore",
    "PublishOptions",
    "Published",
    "RequestFacts",
    "SparkImport",
    "StateFacts",
    "StateVerdict",
    "StopFacts",
    "StoredEntry",
    "StreamFacts",
    "StreamTail",
    "StreamUse",
    "TableVersions",
    "UnreadableJob",
    "Watcher",
    "WrittenCheckpoint",
    "adopt",
    "cancel_drain",
    "checkpoints",
    "collect_garbage",
    "create_stream",
    "delete_job",
    "delete_startpoints",
    "delete_stream",
    "describe_stream",
    "drain",
    "effective_values",
    "end_stream",
    "export_checkpoint",
    "export_drains",
    "export_startpoints",
    "import_drains",
    "import_spark",
    "import_startpoints",
    "job_content",
    "key_facts",
    "lease",
    "open_all_jobs",
    "open_diff",
    "open_job",
    "open_state",
    "open_stream",
    "plan_import",
    "plan_offsets",
    "plan_spark_import",
    "publish",
    "read_checkpoint",
    "set_retention",
    "set_startpoint",
    "startpoints",
    "state_versions",
    "status",
    "statuses",
    "stop",
    "stream_use",
    "streams",
    "table_versions",
    "use_table",
    "verify",
    "write_checkpoint",
]

if TYPE_CHECKING:
    from penstock.admin.checkpoint.change import CheckpointChange, WrittenCheckpoint, write_checkpoint
    from penstock.admin.checkpoint.export import export_checkpoint
    from penstock.admin.checkpoint.facts import CheckpointFacts, ListedCheckpoint, checkpoints, read_checkpoint
    from penstock.admin.checkpoint.import_ import plan_import
    from penstock.admin.checkpoint.set import plan_offsets
    from penstock.admin.configuration import EffectiveValue, KeyFacts, effective_values, key_facts
    from penstock.admin.job.adopt import adopt
    from penstock.admin.job.delete import JobContent, delete_job, job_content
    from penstock.admin.job.drain import DrainFacts, cancel_drain, drain
    from penstock.admin.job.drain_exchange import ExportedDrains, export_drains, import_drains
    from penstock.admin.job.lease import LeaseFacts, lease
    from penstock.admin.job.status import JobStatus, UnreadableJob, status, statuses
    from penstock.admin.job.stop import StopFacts, stop
    from penstock.admin.jobs import FoundJob, open_all_jobs, open_job
    from penstock.admin.startpoint.ask import AskedFacts
    from penstock.admin.startpoint.facts import RequestFacts
    from penstock.admin.startpoint.set import import_startpoints, set_startpoint
    from penstock.admin.startpoint.waiting import (
        DeletedFacts,
        ExportedStartpoints,
        delete_startpoints,
        export_startpoints,
        startpoints,
    )
    from penstock.admin.state.garbage import CollectedGarbage, collect_garbage
    from penstock.admin.state.held import StateFacts, state_versions
    from penstock.admin.state.reading import (
        OpenDiff,
        OpenStore,
        StateVerdict,
        StoredEntry,
        Watcher,
        open_diff,
        open_state,
        verify,
    )
    from penstock.admin.state.spark_import import ImportFacts, SparkImport, import_spark, plan_spark_import
    from penstock.admin.stream.delete import StreamUse, delete_stream, stream_use
    from penstock.admin.stream.names import FoundStream, open_stream
    from penstock.admin.stream.publish import Published, PublishOptions, publish
    from penstock.admin.stream.records import MalformedRecordError
    from penstock.admin.stream.streams import (
        DeletedStream,
        ListedStream,
        StreamFacts,
        create_stream,
        describe_stream,
        end_stream,
        set_retention,
        streams,
    )
    from penstock.admin.stream.tail import Message, StreamTail
    from penstock.admin.table.versions import TableVersions, table_versions, use_table
else:  # unknown to type checkers, for which a misspelled name stays an error
    _MODULES = {
        "checkpoint.change": "CheckpointChange WrittenCheckpoint write_checkpoint",
        "checkpoint.export": "export_checkpoint",
        "checkpoint.facts": "CheckpointFacts ListedCheckpoint checkpoints read_checkpoint",
        "checkpoint.import_": "plan_import",
        "checkpoint.set": "plan_offsets",
        "configuration": "EffectiveValue KeyFacts effective_values key_facts",
        "job.adopt": "adopt",
        "job.delete": "JobContent delete_job job_content",
        "job.lease": "LeaseFacts lease",
        "job.status": "JobStatus UnreadableJob status statuses",
        "job.drain": "DrainFacts cancel_drain drain",
        "job.drain_exchange": "ExportedDrains export_drains import_drains",
        "job.stop": "StopFacts stop",
        "jobs": "FoundJob open_all_jobs open_job",
        "startpoint.ask": "AskedFacts",
        "startpoint.facts": "RequestFacts",
        "startpoint.set": "import_startpoints set_startpoint",
        "startpoint.waiting": "DeletedFacts ExportedStartpoints delete_startpoints export_startpoints startpoints",
        "state.garbage": "CollectedGarbage collect_garbage",
        "state.held": "StateFacts state_versions",
        "state.reading": "OpenDiff OpenStore StateVerdict StoredEntry Watcher open_diff open_state verify",
        "state.spark_import": "ImportFacts SparkImport import_spark plan_spark_import",
        "stream.delete": "StreamUse delete_stream stream_use",
        "stream.names": "FoundStream open_stream",
        "stream.publish": "PublishOptions Published publish",
        "stream.records": "MalformedRecordError",
        "stream.streams": (
            "DeletedStream ListedStream StreamFacts create_stream describe_stream end_stream set_retention streams"
        ),
        "stream.tail": "Message StreamTail",
        "table.versions": "TableVersions table_versions use_table",
    }
    _MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

    def __getattr__(name):
        """A public name. Its module is imported when it is used: most need much less than all of them."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'penstock.admin' has no attribute '{name}'")
        import importlib

        module = importlib.import_module(f"penstock.admin.{_MODULE_OF[name]}")
        globals()[name] = getattr(module, name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *__all__})


del TYPE_CHECKING
