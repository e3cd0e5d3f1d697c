"""What `penstock checkpoint set` and `import` share: show what would change, ask, write it, and say so."""

from __future__ import annotations

from penstock.admin.checkpoint.change import CheckpointChange, write_checkpoint
from penstock.cli.shared.confirm import Confirmation
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import effect, print_json, print_table


def carry_out(change: CheckpointChange, confirmation: Confirmation) -> None:
    """Show the change, ask, and write it. Nothing is written if nothing changes.

    Raises:
        ConfigError: there is nobody to ask.
        typer.Exit: the answer was no.
        What `write_checkpoint` raises.
    """
    for note in change.notes:
        say(f"note: {note}")
    if change.is_needed:
        if not confirmation.as_json:
            _show(change)
        for warning in change.warnings:
            say(f"warning: {warning}")
        confirmation.ask("Write this checkpoint?", "nothing was changed")
    written = write_checkpoint(change)
    if confirmation.as_json:
        print_json(written)
    elif written.checkpoint is None:
        say(
            f"nothing to change: checkpoint {change.base.id} holds all of this already; if it is not the last one, "
            "`penstock run ... --from ID` begins with it"
        )
    else:
        say(f"checkpoint {written.checkpoint} is now the last one of job `{written.job}`: its next start begins there")


def _show(change: CheckpointChange) -> None:
    job = change.job.paths.root
    rows = [
        (each.task, each.ssp.system_stream, each.ssp.partition, each.old, each.new, effect(each.old, each.new))
        for each in change.changes
    ]
    if rows:
        columns = ("task", "stream", "partition", "next", "new next", "messages")
        print_table(f"Positions of {job} that change", columns, rows, right="task partition next")
    if change.moves_markers:
        markers = [(store, name, count) for name, own in change.markers.items() for store, count in own.items()]
        print_table(f"State of {job} from then on", ("store", "backend", "tasks"), markers, right="tasks")
