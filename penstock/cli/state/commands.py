"""`penstock state`: what the backends of a job hold."""

from __future__ import annotations

import typer

from penstock.cli.state import diff as state_diff
from penstock.cli.state import gc as state_gc
from penstock.cli.state import import_spark as state_import
from penstock.cli.state import list as state_list
from penstock.cli.state import read as state_read
from penstock.cli.state import verify as state_verify

app = typer.Typer(help="Read, compare and verify the backed-up state of a job.", no_args_is_help=True)
app.command("list")(state_list.list_state)
app.command("get")(state_read.get_value)
app.command("scan")(state_read.scan_entries)
app.command("diff")(state_diff.diff_versions)
app.command("verify")(state_verify.verify_state)
app.command("gc")(state_gc.collect_garbage)
app.command("import-spark")(state_import.import_spark)
