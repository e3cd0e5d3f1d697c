"""Notes in the log about the plan of a start: startpoints, times, operators and stores that it changes."""

from __future__ import annotations

import logging

from penstock.base.wording import argument, counted, listed, utc_text
from penstock.start.facts import StartFacts
from penstock.start.plan import StartPlan
from penstock.start.startpoints.decide import passing_over
from penstock.start.startpoints.request import StartpointRequest
from penstock.start.times import StartTimes

logger = logging.getLogger(__name__)


def report(plan: StartPlan, facts: StartFacts) -> None:
    record, latest = plan.restore_from, facts.view.latest
    if facts.from_checkpoint is not None and record is not None and latest is not None and record.id != latest.id:
        logger.warning(
            "this start begins with checkpoint %s (batch %d), and not with the last one, %s (batch %d): all that came "
            "behind the older one is read again",
            record.id,
            record.batch,
            latest.id,
            latest.batch,
        )
    if unfollowed := facts.graph.unfollowed:
        logger.warning(
            "no operator follows %s: the results are dropped. If they matter, send them to an output with "
            ".send_to(app.output(...))",
            listed([f"`{op.id}`" for op in unfollowed]),
        )
    _report_startpoints(plan, facts)
    _report_times(plan.times)
    _report_stores(plan)
    if plan.reset.operators:
        logger.warning(
            "this start drops what waits in operator %s, and the totals of an aggregate among them. It keeps all other "
            "state. Each start with %s does so again",
            listed([f"`{operator}`" for operator in plan.reset.operators]),
            argument("reset_operators", list(plan.reset.operators)),
        )


def _report_startpoints(plan: StartPlan, facts: StartFacts) -> None:
    decision = plan.decision
    for request in facts.requests.expired:
        logger.warning("the startpoint for %s has expired (job.startpoint.ttl.ms) and is deleted", request)
    for request in facts.requests.live:
        if request.from_future:
            logger.warning(
                "the startpoint for %s was made at %s, which is in the future by the clock of this host: one of two "
                "clocks is wrong, and any other startpoint for the partition goes before it",
                request,
                utc_text(request.startpoint.creation_timestamp),
            )
    applied: dict[StartpointRequest, set[int]] = {}
    for at, request in decision.requests.items():
        applied.setdefault(request, set()).add(plan.positions[at])
    for request, offsets in applied.items():
        logger.info("the startpoint for %s is applied: offset %s", request, ", ".join(map(str, sorted(offsets))))
    if text := passing_over(decision.passed_over):
        logger.warning("%s", text)
    if decision.requests and decision.restore_from is not None:
        logger.info("state: %s, checkpoint %s", decision.with_state, decision.restore_from.id)
    if plan.quiet_until:
        left = sum(max(0, until - plan.positions.get(at, until)) for at, until in plan.quiet_until.items())
        logger.warning(
            "nothing is sent to outputs before %s have been read again, up to the old positions of all inputs",
            counted(left, "offset"),
        )


def _report_times(times: StartTimes) -> None:
    for ssp in times.grown:
        logger.info("`%s` had ended, and has new messages: they are read", ssp)
    for ssp in sorted({at.ssp for at in times.late}):
        logger.warning(
            "`%s` was moved back, and the state is kept: the messages that are read again are late where an operator's "
            "watermark has passed them. A startpoint with the state `clear` or `nearest` begins event time again",
            ssp,
        )


def _report_stores(plan: StartPlan) -> None:
    if plan.restore_from is None:
        return
    for store in sorted(plan.deleted):
        logger.info("store `%s` of checkpoint %s is dropped: the application deletes it", store, plan.restore_from.id)
    for store in sorted(plan.filled):
        logger.warning(
            "the job wrote store `%s` until checkpoint %s. Side inputs or a pushed table fill the store now, and its "
            "earlier content is not used",
            store,
            plan.restore_from.id,
        )
