"""Commands in messages have the job and the configuration of the call, and can be pasted."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.shared import commands
from penstock.cli.shared.commands import for_people
from tests.support.stores.stopped_job import STREAM, StoppedJob, saved

SET = f"penstock startpoint set JOB --oldest --all-partitions --stream local.{STREAM}"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    commands.forget_call()
    yield
    commands.forget_call()


def test_nothing_is_added_where_nothing_was_given() -> None:
    for text in (f"`{SET}`", "`penstock status x`", "penstock job delete"):
        assert for_people(text) == text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (SET, SET.replace("JOB", "flights-1") + " --config 'my f.yaml' -c a.b=c"),
        ("penstock checkpoint list", "penstock checkpoint list flights-1 --config 'my f.yaml' -c a.b=c"),
        ("penstock status", "penstock status --config 'my f.yaml' -c a.b=c"),
        ("penstock run ... --from ID", "penstock run app.py:app --from ID --config 'my f.yaml' -c a.b=c"),
        ("penstock stream delete local.x", "penstock stream delete local.x --config 'my f.yaml' -c a.b=c"),
        ("penstock stream delete", "penstock stream delete"),  # names it only
        ("penstock stream", "penstock stream"),
        ("penstock --debug ...", "penstock --debug ..."),
        ("penstock fly JOB", "penstock fly flights-1"),
        ("penstock status JOB --config other.yaml -c x=1", "penstock status flights-1 --config other.yaml -c x=1"),
        ("penstock startpoint delete JOB --task 'P", "penstock startpoint delete flights-1 --task 'P"),
        ("penstock config keys", "penstock config keys"),  # it takes no configuration
    ],
)
def test_what_the_command_lacks_is_added(said: str, shown: str) -> None:
    commands.remember_file(Path("my f.yaml"))
    commands.remember_assignments(["a.b=c"])
    commands.remember_job("flights-1")
    commands.remember_application("app.py:app")
    assert for_people(f"so: `{said}`, or `{said}`") == f"so: `{shown}`, or `{shown}`"


def test_a_secret_is_not_repeated() -> None:
    commands.remember_assignments(["systems.k.consumer.sasl.jaas.config=x y", "systems.k.consumer.sasl.password=pw"])
    shown = for_people("`penstock stream list k`")
    assert shown == (
        "`penstock stream list k -c systems.k.consumer.sasl.jaas.config=... -c systems.k.consumer.sasl.password=...`"
    )


def test_the_command_of_a_refusal_works_as_pasted(tmp_path: Path) -> None:
    """A waiting request that cannot be applied: the error's own command deletes it, from another environment."""
    job = StoppedJob(tmp_path)
    job.run(saved(1, (2, 3)), saved(2))
    file = tmp_path / "my flights.yaml"
    file.write_text(
        f"job.root: {tmp_path}/jobs\nsystems.local.samza.factory: local\nsystems.local.path: {tmp_path}/streams\n"
    )
    options = ["--config", str(file)]
    assert job is not None
    set_ = ["startpoint", "set", "flights", "--stream", f"local.{STREAM}", "--partition", "1"]
    made = CliRunner().invoke(app, [*set_, "--offset", "5", *options])
    assert made.exit_code == 0, made.stderr
    shown = CliRunner().invoke(app, ["status", "flights", *options])
    assert shown.exit_code == 0, shown.stderr
    refused = CliRunner().invoke(app, [*set_, "--offset", "99", *options])
    assert refused.exit_code != 0
    assert "cannot be applied" in refused.stderr
    assert "startpoint delete" not in refused.stderr  # this one does not wait: nothing is to be deleted
    listed = CliRunner().invoke(app, ["checkpoint", "show", "flights", "1-2", *options])
    (command,) = re.findall(r"`(penstock [^`]*)`", listed.stderr)
    again = CliRunner().invoke(app, shlex.split(command)[1:])
    assert again.exit_code == 0, again.stderr
