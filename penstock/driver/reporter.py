"""Puts every batch that ended on the progress board."""

from __future__ import annotations

from collections import Counter

from penstock.api.ssp import SystemStream
from penstock.driver.batch_runs import GoodRun
from penstock.driver.boundary import Boundary
from penstock.driver.commits import Commits
from penstock.driver.feed import Feed, Planned
from penstock.driver.ports import Fleet
from penstock.driver.prepare import PreparedJob
from penstock.driver.progress import JobProgress, ProgressBoard, Stopwatch, now_text, source_progress


class ProgressReporter:
    """Makes a `JobProgress` of each batch."""

    def __init__(self, job: PreparedJob, feed: Feed, fleet: Fleet, commits: Commits, board: ProgressBoard) -> None:
        self._job = job
        self._feed = feed
        self._fleet = fleet
        self._commits = commits
        self._board = board
        self._total_rows = 0

    def ended(self, planned: Planned, good: GoodRun, before: Boundary, after: Boundary, watch: Stopwatch) -> None:
        """A batch has ended, and a commit has begun if one was due."""
        rows: Counter[SystemStream] = Counter()
        for at, read in good.outcome.inputs.items():
            rows[at.ssp.system_stream] += read.messages
        messages, total_ms = rows.total(), watch.total_ms()
        self._total_rows += messages
        progress = JobProgress(
            id=self._job.uid,
            run_id=self._job.claim.run_id,
            name=self._job.paths.root,
            timestamp=now_text(),
            batch_id=after.batch,
            num_input_rows=messages,
            num_output_rows=good.outcome.messages_out,
            dead_letters=good.outcome.dead_letters,
            processed_rows_per_second=messages / max(total_ms, 1) * 1000,
            duration_ms={"triggerExecution": total_ms, **watch.parts},
            sources=source_progress(before.positions, after.positions, planned.latest, rows),
            total_input_rows=self._total_rows,
            last_checkpoint=self._board.last_checkpoint,
            container_bytes=self._fleet.resident_bytes(),
            commit_ms=self._commits.last_ms,
        )
        self._board.metrics.took(watch.parts, total_ms)
        now = self._job.clock.monotonic()
        again = self._board.replay.ended(
            good.outcome.inputs, planned.latest, before.positions, after.positions, good.began, now
        )
        self._board.metrics.replayed(again)
        self._board.metrics.lag({source.description: source.lag for source in progress.sources})
        self._board.update(last=progress, remaining=self._feed.remaining(after))
