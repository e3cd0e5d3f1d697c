"""`penstock job sign`."""

from __future__ import annotations

from penstock.admin.job.sign import sign as sign_job
from penstock.admin.jobs import open_job
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, Assignments, ConfigFile, JobName
from penstock.cli.shared.output import print_json
from penstock.wording import counted


def sign(
    job: JobName,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Sign the objects of a job that is not running, and its records in Kafka, with `job.root.key`.

    The first time, the command trusts objects and records without a signature as they are: make sure before that nobody
    else could write to the root and to Penstock's topics. Later, it refuses such objects and leaves out such records.
    It verifies what is signed with `job.root.key.previous`, and signs it with the new key. If the command is
    interrupted, repeat it.
    """
    with open_job(job, config, assignments) as found:
        facts = sign_job(found)
    if as_json:
        print_json(facts)
    else:
        say(f"job {facts.job}: {counted(facts.signed, 'object')} of {facts.objects} signed; the others were before")
