"""What `penstock startpoint set` and `import` print."""

from __future__ import annotations

from dataclasses import replace

from penstock.admin.startpoint.set import AskedFacts
from penstock.cli.shared.arguments import with_options
from penstock.cli.shared.errors import say
from penstock.cli.shared.output import effect, print_json, print_table, time_text


def show_asked(facts: AskedFacts, *, as_json: bool) -> None:
    """Print what was asked for, and what the next start would do."""
    if as_json:
        print_json(replace(facts, notes=tuple(map(with_options, facts.notes))))
        return
    print_table(
        f"Startpoints of {facts.job}",
        ("stream", "partition", "task", "startpoint", "means now", "expires"),
        [
            (each.stream, each.partition, each.task, each.text, each.resolves_to, time_text(each.expires_ms))
            for each in facts.requests
        ],
        first_to_go="expires, means now",
        right="partition",
    )
    if facts.changes:
        rows = [
            (c.task, c.stream, c.partition, c.old_next, c.new_next, effect(c.old_next, c.new_next))
            for c in facts.changes
        ]
        title = "The next start would move, as of the last checkpoint"
        columns = ("task", "stream", "partition", "next", "begins at", "messages")
        print_table(title, columns, rows, right="task partition next")
    for note in facts.notes:
        say(f"note: {note}")
    if facts.dry_run:
        say("nothing was written (--dry-run)")
        return
    say(
        "written: the job's next start applies it once, even if that is a restart after a crash. A run that is "
        f"active now is not affected. `penstock startpoint list {facts.job}` lists the startpoints that wait, "
        "`penstock startpoint delete` deletes them"
    )
