"""An error that names commands tells the options of the call, which they need as well."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.shared.options import Call
from tests.support.stores.stopped_job import STREAM, StoppedJob, saved


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (Call(), ""),
        (Call(Path("my f.yaml"), ["a.b=c"]), " --config 'my f.yaml' -c a.b=c"),
        (
            Call(None, ["systems.k.consumer.sasl.jaas.config=x y", "systems.k.consumer.sasl.password=pw"]),
            " -c systems.k.consumer.sasl.jaas.config=... -c systems.k.consumer.sasl.password=...",
        ),
    ],
)
def test_the_options_of_a_call_have_no_secrets(call: Call, options: str) -> None:
    assert call.options == options


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
    lacking = f" --config {shlex.quote(str(file))}"
    assert listed.stderr.endswith(f"Give the commands in this message the options of this call:{lacking}\n")
    again = CliRunner().invoke(app, shlex.split(command + lacking)[1:])
    assert again.exit_code == 0, again.stderr
