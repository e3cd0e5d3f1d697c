"""The part of deployments in a start."""

from __future__ import annotations

from penstock.deploy.wing import handed_to
from penstock.errors import IncompatibleError
from penstock.start.part import StartPart
from penstock.start.plan import StartFacts, StartPlan


class DeployStart(StartPart):
    """A job that has handed over sends nothing any more."""

    def check(self, facts: StartFacts, plan: StartPlan) -> None:
        """Refuse the start of a job that has handed over, unless it makes the batches of its successor, held back."""
        view = facts.view
        successor = handed_to(view)
        if successor and facts.config.job.replay_follows != successor:
            raise IncompatibleError(
                f"job `{facts.job}` has handed over to job `{successor}`, which has its messages from checkpoint "
                f"{view.latest and view.latest.id} on. Start that one. To bring this one back: `penstock deploy "
                f"{successor} APP --rollback`"
            )
